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

// The functions by which gRPC and Asio read, write and shut down sockets. This library defines
// them, and the linker prefers the program's functions to the system's. At a registered socket they
// encrypt and decrypt TLS and pass received bytes to a FrameGuard; at any other socket they call
// the system's functions. So a frontend needs no thread and no second socket for either.
//
// Thread-safe. Owners close sockets without a notification: a descriptor that refers to another
// socket than the registered one is not registered.
class SocketHooks {
 public:
  // The one of this process.
  static SocketHooks& of_process();

  // From now on the non-blocking socket carries TLS, whose handshake is done.
  void carry_tls(int descriptor, TlsSocket::Connection tls);
  // From now on the guard gets the bytes of the HTTP/2 connection, of which nothing was read yet.
  void guard_frames(int descriptor, std::shared_ptr<FrameGuard> guard);
  // Removes closed sockets.
  void sweep();

  // As the system's recvmsg(), sendmsg() and shutdown().
  ssize_t receive(int descriptor, msghdr& message, int flags);
  ssize_t send(int descriptor, const msghdr& message, int flags);
  int end(int descriptor, int how);
  // Whether any socket is registered.
  bool any() const { return sockets_.load(std::memory_order_relaxed) > 0; }

 private:
  struct Hooked {
    ino_t socket = 0;                        // inode: the descriptor may be reused
    std::shared_ptr<TlsSocket> tls = {};     // null: none
    std::shared_ptr<FrameGuard> guard = {};  // null: none
  };
  struct Shard {
    std::mutex mutex;
    std::unordered_map<int, Hooked> hooked;
  };

  Shard& shard_of(int descriptor);
  // Empty: not registered.
  Hooked find(int descriptor);
  // Creates a missing entry. Requires the shard's lock.
  Hooked& find_or_add(Shard& shard, int descriptor);
  bool pass_received(int descriptor, const Hooked& hooked, const msghdr& message, size_t size);
  static void pass_sent(FrameGuard& guard, const msghdr& message, size_t size);

  std::array<Shard, 16> shards_;
  std::atomic<int> sockets_{0};
};

// The system's functions.
struct SystemSockets {
  ssize_t (*recvmsg)(int, msghdr*, int);
  ssize_t (*recv)(int, void*, size_t, int);
  ssize_t (*sendmsg)(int, const msghdr*, int);
  ssize_t (*send)(int, const void*, size_t, int);
  int (*shutdown)(int, int);
};
const SystemSockets& system_sockets();

}  // namespace recurve
