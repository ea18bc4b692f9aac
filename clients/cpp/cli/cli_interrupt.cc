#include "clients/cpp/cli/cli_interrupt.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <system_error>

#include "clients/cpp/cli/cli.h"
#include "clients/cpp/same_stop.h"

namespace recurve {
namespace {

sigset_t sigint_only() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

void Interrupts::start() {
  struct sigaction now{};
  sigaction(SIGINT, nullptr, &now);
  if (now.sa_handler == SIG_IGN) return;
  const sigset_t set = sigint_only();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::thread([this] { wait_for_signals(); });
}

Interrupts::~Interrupts() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  pthread_kill(thread_.native_handle(), SIGINT);
  thread_.join();
}

void Interrupts::wait_for_signals() {
  const sigset_t set = sigint_only();
  for (int signal = 0; sigwait(&set, &signal) == 0 && !stopping_;) handle();
}

void Interrupts::handle() {
  std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (cancelled_at_ && now - *cancelled_at_ < kSameStop) return;
  if (armed_ && !armed_->cancelled()) {
    cancelled_at_ = now;
    seen_ = true;
    armed_->cancel();
  } else if (!armed_ && to_fd_) {
    // Full is as good as written.
    [[maybe_unused]] const ssize_t written = write(pipe_[1], "", 1);
  } else {
    _exit(kExitInterrupted);
  }
}

void Interrupts::deliver_to_fd() {
  std::lock_guard lock(mutex_);
  if (pipe_[0] < 0 && pipe2(pipe_, O_NONBLOCK | O_CLOEXEC) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot make a pipe");
  }
  to_fd_ = true;
}

void Interrupts::clear_fd() {
  char bytes[64];
  while (read(pipe_[0], bytes, sizeof bytes) > 0) continue;
}

Interrupts::Scope::Scope(Interrupts& interrupts) : interrupts_(interrupts) {
  std::lock_guard lock(interrupts_.mutex_);
  interrupts_.armed_ = &canceller_;
}

Interrupts::Scope::~Scope() {
  std::lock_guard lock(interrupts_.mutex_);
  interrupts_.armed_ = nullptr;
}

}  // namespace recurve
