#include "server/net/tls_relay.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "server/observe/log.h"

namespace recurve {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// Between two looks at deadlines and at the files.
constexpr milliseconds kLook(1000);
// Between two lines in the log about handshakes that have failed.
constexpr seconds kSayFailed(1);
// For what doors have said, once the relay is to end.
constexpr seconds kLastWords(2);
// The event that is no connection's.
constexpr uint64_t kWake = 0;

}  // namespace

void TlsRelay::Door::close() {
  std::lock_guard lock(mutex_);
  take_ = nullptr;
}

bool TlsRelay::Door::take(int descriptor, const Peer& peer) {
  std::lock_guard lock(mutex_);
  if (!take_) return false;
  take_(descriptor, peer);
  return true;
}

TlsRelay::TlsRelay(TlsFiles files) : settings_(std::move(files)) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  watch(wake_, kWake);
  thread_ = std::thread([this] { work(); });
  pthread_setname_np(thread_.native_handle(), "tls");
}

TlsRelay::~TlsRelay() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  eventfd_write(wake_, 1);
  thread_.join();
  for (const Accepted& left : accepted_) close(left.descriptor);
  connections_.clear();
  close(wake_);
  close(epoll_);
}

std::string TlsRelay::new_name() {
  std::lock_guard lock(mutex_);
  return fmt::format("recurve-tls-{}-{}-{}", getpid(), epoll_, ++names_);
}

void TlsRelay::accept(int descriptor, std::string name, Peer peer, std::shared_ptr<Door> door) {
  {
    std::lock_guard lock(mutex_);
    accepted_.push_back({descriptor, std::move(name), std::move(peer), std::move(door)});
  }
  eventfd_write(wake_, 1);
}

void TlsRelay::work() {
  // OpenSSL writes to connections that may be gone.
  sigset_t pipe_signal;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe_signal, nullptr);

  auto end = steady_clock::time_point::max();
  while (true) {
    wait_for_events(ready_.empty() ? kLook : milliseconds(0));
    begin_new();
    for (const uint64_t number : std::exchange(ready_, {})) run(number);
    look_at_the_time();
    bool ending = false;
    {
      std::lock_guard lock(mutex_);
      ending = ending_;
    }
    if (ending) end = std::min(end, steady_clock::now() + kLastWords);
    if (ending && (connections_.empty() || steady_clock::now() >= end)) return;
  }
}

void TlsRelay::wait_for_events(milliseconds most) {
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()),
                               static_cast<int>(most.count()));
  for (int i = 0; i < count; ++i) {
    const uint64_t number = events[static_cast<size_t>(i)].data.u64;
    if (number != kWake) {
      ready_.push_back(number);
      continue;
    }
    eventfd_t wakes = 0;
    eventfd_read(wake_, &wakes);
  }
}

void TlsRelay::begin_new() {
  std::vector<Accepted> accepted;
  {
    std::lock_guard lock(mutex_);
    accepted.swap(accepted_);
  }
  for (Accepted& one : accepted) {
    const int yes = 1;
    setsockopt(one.descriptor, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    TlsPipe::Connection tls = settings_.connect(one.descriptor, one.door->protocol_);
    if (tls == nullptr) {
      close(one.descriptor);
      say_failed(one.peer, tls_error());
      continue;
    }
    const uint64_t number = ++last_number_;
    connections_.emplace(number,
                         new Connection{{one.descriptor, std::move(tls), std::move(one.name)},
                                        std::move(one.peer),
                                        std::move(one.door)});
    watch(one.descriptor, number);
    ready_.push_back(number);
  }
}

// Events come once for each time that something can be read or written anew: so all is done that
// can be, here or in the next round.
void TlsRelay::run(uint64_t number) {
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;
  Connection& connection = *found->second;
  const TlsPipe::State state = connection.pipe.run();
  const int plain_end = connection.pipe.take_plain_end();
  if (plain_end >= 0) {
    watch(connection.pipe.plain(), number);
    connection.peer.subject = connection.pipe.subject();
    if (!connection.door->take(plain_end, connection.peer)) close(plain_end);
  }
  if (state == TlsPipe::State::kMore) ready_.push_back(number);
  if (state != TlsPipe::State::kOver) return;
  if (!connection.pipe.problem().empty()) say_failed(connection.peer, connection.pipe.problem());
  connections_.erase(found);
}

void TlsRelay::look_at_the_time() {
  const auto now = steady_clock::now();
  if (now - looked_ < kLook) return;
  looked_ = now;
  settings_.reload_if_changed();
  std::erase_if(connections_, [&](const auto& entry) {
    const TlsPipe& pipe = entry.second->pipe;
    if (pipe.deadline() > now) return false;
    if (pipe.plain() < 0) say_failed(entry.second->peer, "the handshake takes too long");
    return true;
  });
}

// A connection's two ends are looked at together.
void TlsRelay::watch(int descriptor, uint64_t number) const {
  epoll_event event{};
  event.events = number == kWake ? EPOLLIN : EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = number;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event);
}

void TlsRelay::say_failed(const Peer& peer, const std::string& problem) {
  ++failures_;
  const auto now = steady_clock::now();
  if (now - said_ < kSayFailed) return;
  said_ = now;
  log_event(LogLevel::kInfo, "tls_handshake_failed",
            {{"peer", peer.address}, {"what", problem}, {"times", std::exchange(failures_, 0)}});
}

}  // namespace recurve
