#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "server/net/socket_hooks.h"
#include "server/net/tls_socket.h"

namespace recurve {
namespace {

struct Socket {
  int descriptor = -1;
  bool drained = false;  // the last read reported nothing unread, and not the end
  bool ended = false;
};

Socket& socket_of(BIO* bio) { return *static_cast<Socket*>(BIO_get_data(bio)); }

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// Whether the system reports nothing unread (TCP_INQ). The end of the stream counts as unread.
bool nothing_unread(msghdr& message) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_TCP || part->cmsg_type != TCP_CM_INQ) continue;
    int unread = 0;
    std::memcpy(&unread, CMSG_DATA(part), sizeof unread);
    return unread == 0;
  }
  return false;
}

int read(BIO* bio, char* bytes, int size) {
  Socket& socket = socket_of(bio);
  BIO_clear_retry_flags(bio);
  if (std::exchange(socket.drained, false)) {
    BIO_set_retry_read(bio);
    errno = EAGAIN;
    return -1;
  }
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control;
  iovec part{bytes, static_cast<size_t>(size)};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = system_sockets().recvmsg(socket.descriptor, &message, 0);
  if (got > 0) socket.drained = nothing_unread(message);
  if (got == 0) socket.ended = true;
  if (got < 0 && would_block()) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

int write(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = system_sockets().send(socket_of(bio).descriptor, bytes,
                                             static_cast<size_t>(size), MSG_NOSIGNAL);
  if (sent < 0 && would_block()) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

long control(BIO* bio, int what, long, void*) {
  if (what == BIO_CTRL_EOF) return socket_of(bio).ended ? 1 : 0;
  if (what == BIO_CTRL_RESET) socket_of(bio).drained = false;
  return what == BIO_CTRL_FLUSH || what == BIO_CTRL_RESET ? 1 : 0;
}

int destroy(BIO* bio) {
  delete static_cast<Socket*>(BIO_get_data(bio));
  return 1;
}

BIO_METHOD* make_method() {
  BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
  BIO_meth_set_read(method, read);
  BIO_meth_set_write(method, write);
  BIO_meth_set_ctrl(method, control);
  BIO_meth_set_destroy(method, destroy);
  return method;
}

}  // namespace

BIO* new_socket_bio(int descriptor) {
  static BIO_METHOD* const method = make_method();  // gRPC's threads may read until exit
  BIO* bio = BIO_new(method);
  if (bio == nullptr) return nullptr;
  // Fails for a Unix socket: then each read is a system call.
  const int yes = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_INQ, &yes, sizeof yes);
  BIO_set_data(bio, new Socket{.descriptor = descriptor});
  BIO_set_init(bio, 1);
  return bio;
}

}  // namespace recurve
