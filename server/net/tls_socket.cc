#include "server/net/tls_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace recurve {
namespace {

constexpr size_t kRecord = 16 << 10;

// Collects the parts of one message, which become one record.
char* record() {
  static thread_local std::array<char, kRecord> bytes;
  return bytes.data();
}

// The bytes of the parts from `from` on, up to a record. Not copied if one part has them all.
std::string_view gather(const msghdr& message, size_t from) {
  size_t size = 0;
  for (size_t i = 0; i < message.msg_iovlen && size < kRecord; ++i) {
    const iovec& part = message.msg_iov[i];
    const size_t skipped = std::min(from, part.iov_len);
    from -= skipped;
    const char* bytes = static_cast<const char*>(part.iov_base) + skipped;
    const size_t taken = std::min(part.iov_len - skipped, kRecord - size);
    const bool alone = size == 0 && (taken == kRecord || i + 1 == message.msg_iovlen);
    if (alone) return {bytes, taken};
    std::copy_n(bytes, taken, record() + size);
    size += taken;
  }
  return {record(), size};
}

// Reports in a control message whether there may be unread bytes, as TCP_INQ does: gRPC asks for
// it.
void report_unread(msghdr& message, bool any) {
  const size_t capacity = std::exchange(message.msg_controllen, 0);
  if (message.msg_control == nullptr || capacity < CMSG_SPACE(sizeof(int))) return;
  message.msg_controllen = CMSG_SPACE(sizeof(int));
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_TCP;
  part->cmsg_type = TCP_CM_INQ;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  const int unread = any ? 1 : 0;
  std::memcpy(CMSG_DATA(part), &unread, sizeof unread);
}

}  // namespace

TlsSocket::TlsSocket(Connection tls) : tls_(std::move(tls)) {
  // Only after the handshake: bytes that OpenSSL has read ahead do not make the socket readable for
  // the first poll of the connection's owner.
  SSL_set_read_ahead(tls_.get(), 1);
}

ssize_t TlsSocket::receive(msghdr& message) {
  std::lock_guard lock(mutex_);
  BIO_reset(SSL_get_rbio(tls_.get()));
  ssize_t total = 0;
  bool unread = true;
  for (size_t i = 0; i < message.msg_iovlen && unread; ++i) {
    auto* bytes = static_cast<char*>(message.msg_iov[i].iov_base);
    for (size_t capacity = message.msg_iov[i].iov_len; capacity > 0;) {
      const ssize_t got = read(bytes, capacity);
      if (got <= 0) {
        unread = total > 0 && (got == 0 || errno != EAGAIN);  // the next call finds the end
        if (total == 0) total = got;
        break;
      }
      total += got, bytes += got, capacity -= static_cast<size_t>(got);
    }
  }
  message.msg_flags = 0;
  report_unread(message, unread);
  return total;
}

ssize_t TlsSocket::send(const msghdr& message) {
  std::lock_guard lock(mutex_);
  size_t size = 0, sent = 0;
  for (size_t i = 0; i < message.msg_iovlen; ++i) size += message.msg_iov[i].iov_len;
  while (sent < size) {
    const std::string_view bytes = gather(message, sent);
    const ssize_t written = write(bytes.data(), bytes.size());
    if (written <= 0) return sent > 0 ? static_cast<ssize_t>(sent) : -1;
    sent += static_cast<size_t>(written);
  }
  return static_cast<ssize_t>(sent);
}

void TlsSocket::send_close_notify() {
  std::lock_guard lock(mutex_);
  // A second SSL_shutdown() would read, to wait for the other end's.
  if ((SSL_get_shutdown(tls_.get()) & SSL_SENT_SHUTDOWN) != 0) return;
  ERR_clear_error();
  SSL_shutdown(tls_.get());
  ERR_clear_error();
}

ssize_t TlsSocket::read(char* bytes, size_t size) {
  ERR_clear_error();
  size_t got = 0;
  if (SSL_read_ex(tls_.get(), bytes, size, &got) == 1) return static_cast<ssize_t>(got);
  switch (SSL_get_error(tls_.get(), 0)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      errno = EAGAIN;
      return -1;
    case SSL_ERROR_ZERO_RETURN:
      return 0;
    default:
      ERR_clear_error();
      errno = ECONNRESET;
      return -1;
  }
}

ssize_t TlsSocket::write(const char* bytes, size_t size) {
  ERR_clear_error();
  size_t sent = 0;
  if (SSL_write_ex(tls_.get(), bytes, size, &sent) == 1) return static_cast<ssize_t>(sent);
  const int error = SSL_get_error(tls_.get(), 0);
  ERR_clear_error();
  errno = error == SSL_ERROR_WANT_WRITE || error == SSL_ERROR_WANT_READ ? EAGAIN : EPIPE;
  return -1;
}

}  // namespace recurve
