#include "server/net/tls_pipe.h"

#include <openssl/err.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "server/net/tls.h"

namespace recurve {
namespace {

constexpr auto kHandshakeTime = std::chrono::seconds(10);
// For a client to close what the door has closed.
constexpr auto kLingerTime = std::chrono::seconds(2);
// Records, each way, before others have their turn.
constexpr int kAtOnce = 16;
constexpr size_t kRecord = 16 << 10;

// Read into and written from again before anything else happens on the thread.
char* buffer() {
  static thread_local std::array<char, kRecord> bytes;
  return bytes.data();
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

TlsPipe::TlsPipe(int tcp, Connection tls, std::string name)
    : tcp_(tcp),
      tls_(std::move(tls)),
      name_(std::move(name)),
      deadline_(std::chrono::steady_clock::now() + kHandshakeTime) {}

TlsPipe::~TlsPipe() {
  tls_.reset();
  for (const int descriptor : {tcp_, plain_, to_take_}) {
    if (descriptor >= 0) close(descriptor);
  }
}

TlsPipe::State TlsPipe::run() {
  if (plain_ < 0 && !shake_hands()) {
    return problem_.empty() ? State::kOpen : State::kOver;
  }
  for (int i = 0; i < kAtOnce; ++i) {
    const bool in = carry_in(), out = carry_out();
    if (failed_ || (in_.closed && out_.closed)) return State::kOver;
    if (!in && !out) return State::kOpen;
  }
  return State::kMore;
}

std::string TlsPipe::subject() const {
  const std::unique_ptr<X509, decltype(&X509_free)> shown(SSL_get1_peer_certificate(tls_.get()),
                                                          X509_free);
  if (shown == nullptr || SSL_get_verify_result(tls_.get()) != X509_V_OK) return {};
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> out(BIO_new(BIO_s_mem()), BIO_free_all);
  if (out == nullptr) return {};
  X509_NAME_print_ex(out.get(), X509_get_subject_name(shown.get()), 0, XN_FLAG_RFC2253);
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return size > 0 ? std::string(text, static_cast<size_t>(size)) : std::string();
}

int TlsPipe::take_plain_end() { return std::exchange(to_take_, -1); }

bool TlsPipe::shake_hands() {
  ERR_clear_error();
  errno = 0;
  const int done = SSL_do_handshake(tls_.get());
  if (done == 1) return open_plain();
  switch (SSL_get_error(tls_.get(), done)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return false;
    case SSL_ERROR_SYSCALL:
    case SSL_ERROR_ZERO_RETURN:
      problem_ = "the client has left";
      return false;
    default:
      problem_ = tls_error();
      return false;
  }
}

bool TlsPipe::open_plain() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    problem_ = std::strerror(errno);
    return false;
  }
  plain_ = ends[0];
  to_take_ = ends[1];
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name_.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name_.data(), length);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  if (bind(plain_, reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    problem_ = std::strerror(errno);
    return false;
  }
  deadline_ = Time::max();
  return true;
}

bool TlsPipe::carry_in() {
  if (in_.closed) return false;
  if (!in_.rest.empty()) {
    const size_t before = in_.rest.size();
    write_plain(std::exchange(in_.rest, {}).data(), before);
    return in_.rest.size() < before;
  }
  if (in_.ended) {
    end_in();
    return true;
  }
  ERR_clear_error();
  const int got = SSL_read(tls_.get(), buffer(), kRecord);
  if (got > 0) {
    write_plain(buffer(), static_cast<size_t>(got));
    return true;
  }
  switch (SSL_get_error(tls_.get(), got)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return false;
    case SSL_ERROR_ZERO_RETURN:
      in_.ended = true;
      return true;
    default:
      failed_ = true;
      return false;
  }
}

bool TlsPipe::carry_out() {
  if (out_.closed) return false;
  if (!out_.rest.empty()) {
    const size_t before = out_.rest.size();
    write_tls(std::exchange(out_.rest, {}).data(), before);
    return out_.rest.size() < before;
  }
  if (out_.ended) {
    end_out();
    return true;
  }
  const ssize_t got = recv(plain_, buffer(), kRecord, MSG_DONTWAIT);
  if (got > 0) {
    write_tls(buffer(), static_cast<size_t>(got));
    return true;
  }
  if (got < 0 && would_block()) return false;
  out_.ended = true;
  return true;
}

// What a door no longer reads goes nowhere.
void TlsPipe::write_plain(const char* bytes, size_t size) {
  const ssize_t sent = send(plain_, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0 && !would_block()) return;
  const size_t gone = sent < 0 ? 0 : static_cast<size_t>(sent);
  in_.rest.assign(bytes + gone, size - gone);
}

void TlsPipe::write_tls(const char* bytes, size_t size) {
  ERR_clear_error();
  const int sent = SSL_write(tls_.get(), bytes, static_cast<int>(size));
  const int error = sent > 0 ? SSL_ERROR_NONE : SSL_get_error(tls_.get(), sent);
  if (error != SSL_ERROR_NONE && error != SSL_ERROR_WANT_WRITE && error != SSL_ERROR_WANT_READ) {
    failed_ = true;
    return;
  }
  const size_t gone = sent > 0 ? static_cast<size_t>(sent) : 0;
  out_.rest.assign(bytes + gone, size - gone);
}

void TlsPipe::end_in() {
  in_.closed = true;
  shutdown(plain_, SHUT_WR);
}

void TlsPipe::end_out() {
  out_.closed = true;
  ERR_clear_error();
  SSL_shutdown(tls_.get());
  ERR_clear_error();
  shutdown(tcp_, SHUT_WR);
  deadline_ = std::chrono::steady_clock::now() + kLingerTime;
}

}  // namespace recurve
