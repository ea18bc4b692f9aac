#pragma once
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <memory>
#include <mutex>

namespace recurve {

// A connection of TLS, for who knows nothing of TLS: what recvmsg() and sendmsg() do at a socket
// that does not block, done with what is within TLS. Thread-safe: one may read while another
// writes.
class TlsSocket {
 public:
  using Connection = std::unique_ptr<SSL, decltype(&SSL_free)>;

  // tls: once its handshake is done, with a BIO of new_socket_bio().
  explicit TlsSocket(Connection tls);

  // As much as there is room for and has come. The bytes; 0: nothing follows; -1, and errno says
  // why. To who asks how many bytes wait behind it (TCP_INQ) it says 0 or 1: none, or maybe some.
  ssize_t receive(msghdr& message);
  // As much as the socket takes; where it is full, -1 and EAGAIN: then it is to be called again
  // with the same bytes, and more maybe, once the socket is ready.
  ssize_t send(const msghdr& message);
  // Says to the other end that nothing follows.
  void say_end();

 private:
  // One read or write: the bytes, 0 at the end, -1 and errno.
  ssize_t read(char* bytes, size_t size);
  ssize_t write(const char* bytes, size_t size);

  std::mutex mutex_;
  const Connection tls_;
};

// A socket for OpenSSL, which stays the caller's: writing to a client that has left is an error and
// no signal, and a read is no call of the system's where that has said with the last one that
// nothing is left (TCP_INQ). BIO_reset() forgets that: to be called first by whoever has waited for
// more.
BIO* new_socket_bio(int descriptor);

}  // namespace recurve
