#pragma once
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <memory>
#include <mutex>

namespace recurve {

// recvmsg() and sendmsg() for the content of a TLS connection over a non-blocking socket.
// Thread-safe: one thread may read while another writes.
class TlsSocket {
 public:
  using Connection = std::unique_ptr<SSL, decltype(&SSL_free)>;

  // tls: after its handshake, with a BIO of new_socket_bio().
  explicit TlsSocket(Connection tls);

  // As many bytes as have arrived and fit. Returns how many; 0 at the end; -1 and errno. In reply
  // to TCP_INQ, for which the caller provides a control message, it reports 0 unread bytes, or 1 if
  // there may be some.
  ssize_t receive(msghdr& message);
  // As many bytes as the socket takes. -1 and EAGAIN if it is full: call again with the same bytes,
  // and possibly more, once the socket is ready.
  ssize_t send(const msghdr& message);
  // Tells the other end that nothing follows.
  void send_close_notify();

 private:
  // One read or write: the number of bytes; 0 at the end; -1 and errno.
  ssize_t read(char* bytes, size_t size);
  ssize_t write(const char* bytes, size_t size);

  std::mutex mutex_;
  const Connection tls_;
};

// A socket for OpenSSL; the caller owns the descriptor. Writing to a closed connection is an error
// and not a signal. A read makes no system call if the last one reported that nothing is unread
// (TCP_INQ). BIO_reset() clears that: call it before reading after a wait.
BIO* new_socket_bio(int descriptor);

}  // namespace recurve
