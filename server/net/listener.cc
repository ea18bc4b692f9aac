#include "server/net/listener.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "server/net/bind.h"
#include "server/observe/log.h"

namespace recurve {
namespace {

using std::chrono::milliseconds;
// Between two sweeps for closed connections while none arrives.
constexpr milliseconds kSweep(1000);
// Before the next attempt when no descriptor is left.
constexpr milliseconds kRetry(50);
// Between two log lines about refused connections.
constexpr std::chrono::seconds kRefusalLogInterval(10);

}  // namespace

Listener::Listener(const std::string& address, const std::string& flag) {
  BoundSockets bound = bind_all(address, flag);
  listening_ = std::move(bound.descriptors);
  port_ = bound.port;
  path_ = std::move(bound.path);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

Listener::~Listener() {
  stop();
  if (!path_.empty()) unlink(path_.c_str());
  for (const int descriptor : listening_) close(descriptor);
  close(wake_);
}

void Listener::start(Connections& connections, Metrics& metrics, Take take, ListenerTls tls) {
  connections_ = &connections;
  metrics_ = &metrics;
  take_ = std::move(take);
  if (tls.handshaker != nullptr && port_ != 0) {
    handshaker_ = std::move(tls.handshaker);
    receiver_ = std::make_shared<TlsHandshaker::Receiver>(
        tls.protocol, [this](int descriptor, const Peer& peer) {
          if (connections_->certify(peer)) return take_(descriptor, peer);
          refuse(descriptor, peer, Connections::Verdict::kTooManyOfNetwork);
        });
  }
  thread_ = std::thread([this] { run(); });
}

void Listener::stop() {
  if (!thread_.joinable()) return;
  eventfd_write(wake_, 1);
  thread_.join();
  if (receiver_ != nullptr) receiver_->close();
}

void Listener::run() {
  std::vector<pollfd> ready = {{.fd = wake_, .events = POLLIN, .revents = 0}};
  for (const int descriptor : listening_) ready.push_back({descriptor, POLLIN, 0});
  bool full = false;
  while (true) {
    // Without a free descriptor the queue stays ready: wait for time only.
    const nfds_t watched = full ? 1 : ready.size();
    poll(ready.data(), watched, static_cast<int>((full ? kRetry : kSweep).count()));
    if (ready.front().revents != 0) return;
    metrics_->set_connections(connections_->sweep());
    full = false;
    for (size_t i = 1; i < ready.size(); ++i) full = !accept_all(ready[i].fd) || full;
  }
}

bool Listener::accept_all(int listening) {
  constexpr int kAtOnce = 64;  // before the other sockets, and the check whether to stop
  for (int i = 0; i < kAtOnce; ++i) {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    const int descriptor = accept4(listening, reinterpret_cast<sockaddr*>(&address), &size,
                                   SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor >= 0) {
      receive(descriptor, to_peer(address, descriptor));
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      log_refused({.address = "any"}, Metrics::Refusal::kNoFile);
      return false;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    }  // else this connection has failed
  }
  return true;
}

void Listener::receive(int descriptor, Peer peer) {
  peer.number = connections_->next_number();
  const Connections::Verdict verdict = connections_->add(descriptor, peer);
  if (verdict != Connections::Verdict::kTaken) return refuse(descriptor, peer, verdict);
  if (handshaker_ == nullptr) return take_(descriptor, peer);
  handshaker_->accept(descriptor, std::move(peer), receiver_);
}

void Listener::refuse(int descriptor, const Peer& peer, Connections::Verdict why) {
  log_refused(peer, why == Connections::Verdict::kTooMany ? Metrics::Refusal::kTooMany
                                                          : Metrics::Refusal::kTooManyOfAddress);
  close(descriptor);  // after it is counted: a client that sees it closed finds the count
}

void Listener::log_refused(const Peer& peer, Metrics::Refusal why) {
  metrics_->connection_refused(why);
  const auto now = std::chrono::steady_clock::now();
  if (logged_.time_since_epoch().count() != 0 && now - logged_ < kRefusalLogInterval) return;
  logged_ = now;
  const char* reason = "no_file_left";
  if (why == Metrics::Refusal::kTooMany) reason = "too_many_connections";
  if (why == Metrics::Refusal::kTooManyOfAddress) reason = "too_many_of_this_address";
  log_event(LogLevel::kWarning, "connection_refused",
            {{"peer", peer.address},
             {"reason", reason},
             {"most", connections_->limits().in_all},
             {"most_by_address", connections_->limits().by_network}});
}

}  // namespace recurve
