#include "server/net/tls_handshaker.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "server/net/socket_hooks.h"
#include "server/observe/log.h"

namespace recurve {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// Between two checks of deadlines and files.
constexpr milliseconds kCheckInterval(1000);
// Between two log lines about failed handshakes.
constexpr seconds kFailureLogInterval(1);
constexpr seconds kHandshakeTime(10);

std::string why_it_failed(const SSL* tls, int outcome) {
  const int error = SSL_get_error(tls, outcome);
  const bool closed = error == SSL_ERROR_SYSCALL || error == SSL_ERROR_ZERO_RETURN;
  return closed ? "the client has disconnected" : tls_error();
}

bool is_pending(const SSL* tls, int outcome) {
  const int error = SSL_get_error(tls, outcome);
  return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
}

// Of the client's verified certificate; empty: none.
std::string subject_of(const SSL* tls) {
  const std::unique_ptr<X509, decltype(&X509_free)> shown(SSL_get1_peer_certificate(tls),
                                                          X509_free);
  if (shown == nullptr || SSL_get_verify_result(tls) != X509_V_OK) return {};
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> out(BIO_new(BIO_s_mem()), BIO_free_all);
  if (out == nullptr) return {};
  X509_NAME_print_ex(out.get(), X509_get_subject_name(shown.get()), 0, XN_FLAG_RFC2253);
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return size > 0 ? std::string(text, static_cast<size_t>(size)) : std::string();
}

}  // namespace

void TlsHandshaker::Receiver::close() {
  std::lock_guard lock(mutex_);
  take_ = nullptr;
}

bool TlsHandshaker::Receiver::take(int descriptor, const Peer& peer) {
  std::lock_guard lock(mutex_);
  if (!take_) return false;
  take_(descriptor, peer);
  return true;
}

TlsHandshaker::TlsHandshaker(TlsFiles files) : settings_(std::move(files)) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  watch(wake_);
  thread_ = std::thread([this] { work(); });
  pthread_setname_np(thread_.native_handle(), "tls");
}

TlsHandshaker::~TlsHandshaker() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  eventfd_write(wake_, 1);
  thread_.join();
  for (const Accepted& one : accepted_) close(one.descriptor);
  for (const auto& [descriptor, handshake] : handshakes_) close(descriptor);
  close(wake_);
  close(epoll_);
}

void TlsHandshaker::accept(int descriptor, Peer peer, std::shared_ptr<Receiver> receiver) {
  {
    std::lock_guard lock(mutex_);
    accepted_.push_back({descriptor, std::move(peer), std::move(receiver)});
  }
  eventfd_write(wake_, 1);
}

void TlsHandshaker::work() {
  while (true) {
    wait_for_events();
    begin_new();
    for (const int descriptor : std::exchange(ready_, {})) continue_handshake(descriptor);
    check_periodically();
    std::lock_guard lock(mutex_);
    if (ending_) return;
  }
}

void TlsHandshaker::wait_for_events() {
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()),
                               static_cast<int>(kCheckInterval.count()));
  for (int i = 0; i < count; ++i) {
    const int descriptor = events[static_cast<size_t>(i)].data.fd;
    if (descriptor != wake_) {
      ready_.push_back(descriptor);
      continue;
    }
    eventfd_t wakes = 0;
    eventfd_read(wake_, &wakes);
  }
}

void TlsHandshaker::begin_new() {
  std::vector<Accepted> accepted;
  {
    std::lock_guard lock(mutex_);
    accepted.swap(accepted_);
  }
  for (Accepted& one : accepted) {
    const int yes = 1;
    setsockopt(one.descriptor, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    TlsSocket::Connection tls = settings_.connect(one.descriptor, one.receiver->protocol_);
    if (tls == nullptr) {
      log_failure(one.peer, tls_error());
      close(one.descriptor);
      continue;
    }
    handshakes_.emplace(one.descriptor,
                        Handshake{std::move(tls), std::move(one.peer), std::move(one.receiver),
                                  steady_clock::now() + kHandshakeTime});
    watch(one.descriptor);
    ready_.push_back(one.descriptor);
  }
}

// Events are edge-triggered: do all that is possible now.
void TlsHandshaker::continue_handshake(int descriptor) {
  const auto found = handshakes_.find(descriptor);
  if (found == handshakes_.end()) return;
  SSL* tls = found->second.tls.get();
  BIO_reset(SSL_get_rbio(tls));
  ERR_clear_error();
  const int outcome = SSL_do_handshake(tls);
  if (outcome == 1) return hand_over(found);
  if (!is_pending(tls, outcome)) fail(found, why_it_failed(tls, outcome));
}

void TlsHandshaker::hand_over(Handshakes::iterator done) {
  const int descriptor = done->first;
  Handshake handshake = std::move(done->second);
  handshakes_.erase(done);
  epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor, nullptr);
  handshake.peer.subject = subject_of(handshake.tls.get());
  SocketHooks::of_process().carry_tls(descriptor, std::move(handshake.tls));
  if (handshake.receiver->take(descriptor, handshake.peer)) return;
  shutdown(descriptor, SHUT_RDWR);
  close(descriptor);
}

void TlsHandshaker::fail(Handshakes::iterator failed, const std::string& problem) {
  log_failure(failed->second.peer, problem);
  const int descriptor = failed->first;
  handshakes_.erase(failed);
  close(descriptor);
}

void TlsHandshaker::check_periodically() {
  const auto now = steady_clock::now();
  if (now - checked_ < kCheckInterval) return;
  checked_ = now;
  settings_.reload_if_changed();
  SocketHooks::of_process().sweep();
  for (auto it = handshakes_.begin(); it != handshakes_.end();) {
    const auto handshake = it++;
    if (handshake->second.deadline <= now) fail(handshake, "the handshake has timed out");
  }
}

void TlsHandshaker::watch(int descriptor) const {
  epoll_event event{};
  event.events = descriptor == wake_ ? EPOLLIN : EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.fd = descriptor;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event);
}

void TlsHandshaker::log_failure(const Peer& peer, const std::string& problem) {
  ++failures_;
  const auto now = steady_clock::now();
  if (now - logged_ < kFailureLogInterval) return;
  logged_ = now;
  log_event(LogLevel::kInfo, "tls_handshake_failed",
            {{"peer", peer.address}, {"what", problem}, {"times", std::exchange(failures_, 0)}});
}

}  // namespace recurve
