#pragma once
#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "server/net/frame_guard.h"
#include "server/net/tls_socket.h"

namespace recurve {

// What gRPC and Asio read, write and end their sockets with, which this library defines: the
// program's own functions go before the system's, as the linker has it. At a socket that was given
// to this they carry TLS, and look at what has been read, before they hand it on; at any other they
// are the system's. So no thread and no second socket stands between a door and its clients.
//
// Thread-safe. Sockets are closed by who has them, and nobody says when: a descriptor that stands
// for another socket than the one that was given has nothing to do with it.
class SocketHooks {
 public:
  // The one of this process.
  static SocketHooks& of_process();

  // Whether the functions are these, which another library may have defined before.
  static bool work();

  // The socket, which does not block, is one of TLS, whose handshake is done, from now on and until
  // it is closed.
  void carry_tls(int descriptor, TlsSocket::Connection tls);
  // Lets the guard look at the frames of HTTP/2 that come at it, of which nothing has been read.
  void count_frames(int descriptor, std::shared_ptr<FrameGuard> guard);
  // Forgets sockets that have been closed.
  void sweep();

  // As the system's functions of these names.
  ssize_t receive(int descriptor, msghdr& message, int flags);
  ssize_t send(int descriptor, const msghdr& message, int flags);
  int end(int descriptor, int how);
  // Whether any socket was given to this that is not known to be closed.
  bool any() const { return sockets_.load(std::memory_order_relaxed) > 0; }

 private:
  struct Hooked {
    ino_t socket = 0;  // another one's, where the descriptor has been closed and opened again
    std::shared_ptr<TlsSocket> tls = {};     // null: none
    std::shared_ptr<FrameGuard> guard = {};  // null: nobody looks
  };
  struct Shard {
    std::mutex mutex;
    std::unordered_map<int, Hooked> hooked;
  };

  Shard& shard_of(int descriptor);
  // What is empty: not given to this.
  Hooked find(int descriptor);
  // Made where it is not there. With the shard's lock.
  Hooked& make(Shard& shard, int descriptor);
  bool take(int descriptor, const Hooked& hooked, const msghdr& message, size_t size);
  static void tell_sent(FrameGuard& guard, const msghdr& message, size_t size);

  std::array<Shard, 16> shards_;
  std::atomic<int> sockets_{0};
};

// The system's own.
struct SystemSockets {
  ssize_t (*recvmsg)(int, msghdr*, int);
  ssize_t (*recv)(int, void*, size_t, int);
  ssize_t (*sendmsg)(int, const msghdr*, int);
  ssize_t (*send)(int, const void*, size_t, int);
  int (*shutdown)(int, int);
};
const SystemSockets& system_sockets();

}  // namespace recurve
