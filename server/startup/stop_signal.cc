#include "server/startup/stop_signal.h"

#include <chrono>
#include <csignal>
#include <cstdlib>

#include "server/observe/log.h"

namespace recurve {
namespace {

// How long the process waits at its end for the reader of the log.
constexpr std::chrono::milliseconds kFlushTimeout(200);

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

StopSignal::StopSignal() {
  std::signal(SIGHUP, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  watcher_ = std::thread([this] { watch(); });
}

StopSignal::~StopSignal() {
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  pthread_kill(watcher_.native_handle(), SIGTERM);
  watcher_.join();
}

void StopSignal::watch() {
  const sigset_t set = stop_signals();
  for (int signal = 0; sigwait(&set, &signal) == 0;) {
    std::lock_guard lock(mutex_);
    if (leaving_) return;
    on_signal(signal);
  }
}

// Under the lock.
void StopSignal::on_signal(int signal) {
  const auto now = std::chrono::steady_clock::now();
  if (first_signal_ && now - *first_signal_ < kSameStop) return;
  if (first_signal_) {
    log_text("recurve-server: second signal: exiting now, requests in progress are aborted\n");
    flush_log(kFlushTimeout);
    std::_Exit(128 + signal);
  }
  log_event(LogLevel::kInfo, "signal",
            {{"signal", signal == SIGINT ? "SIGINT" : "SIGTERM"},
             {"effect", raised_ ? "the drain continues" : "drains"}});
  first_signal_ = now;
  raised_ = true;
  changed_.notify_all();
}

void StopSignal::raise(double drain_seconds) {
  std::lock_guard lock(mutex_);
  if (raised_) return;
  raised_ = true;
  drain_seconds_ = drain_seconds;
  changed_.notify_all();
}

bool StopSignal::raised() const {
  std::lock_guard lock(mutex_);
  return raised_;
}

std::optional<double> StopSignal::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return raised_; });
  return drain_seconds_;
}

}  // namespace recurve
