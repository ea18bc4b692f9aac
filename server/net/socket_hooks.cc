// This file defines recv(), and __recv_chk(), which the fortified recv() becomes.
#undef _FORTIFY_SOURCE
#include "server/net/socket_hooks.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

namespace recurve {
namespace {

ino_t inode_of(int descriptor) {
  struct stat status{};
  return fstat(descriptor, &status) == 0 ? status.st_ino : 0;
}

template <typename Function>
void find_next(const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

SystemSockets find_system() {
  SystemSockets found{};
  find_next("recvmsg", found.recvmsg);
  find_next("recv", found.recv);
  find_next("sendmsg", found.sendmsg);
  find_next("send", found.send);
  find_next("shutdown", found.shutdown);
  return found;
}

msghdr one_part(iovec* part) {
  msghdr message{};
  message.msg_iov = part;
  message.msg_iovlen = 1;
  return message;
}

}  // namespace

const SystemSockets& system_sockets() {
  static const SystemSockets found = find_system();
  return found;
}

SocketHooks& SocketHooks::of_process() {
  static auto* const hooks =
      new SocketHooks;  // never destroyed: gRPC's threads may read until exit
  return *hooks;
}

SocketHooks::Shard& SocketHooks::shard_of(int descriptor) {
  return shards_[static_cast<size_t>(descriptor) % shards_.size()];
}

SocketHooks::Hooked& SocketHooks::find_or_add(Shard& shard, int descriptor) {
  const ino_t socket = inode_of(descriptor);
  const auto [entry, is_new] = shard.hooked.try_emplace(descriptor);
  if (is_new) ++sockets_;
  if (entry->second.socket != socket) entry->second = {.socket = socket};
  return entry->second;
}

void SocketHooks::carry_tls(int descriptor, TlsSocket::Connection tls) {
  auto socket = std::make_shared<TlsSocket>(std::move(tls));
  Shard& shard = shard_of(descriptor);
  std::lock_guard lock(shard.mutex);
  find_or_add(shard, descriptor).tls = std::move(socket);
}

void SocketHooks::guard_frames(int descriptor, std::shared_ptr<FrameGuard> guard) {
  Shard& shard = shard_of(descriptor);
  std::lock_guard lock(shard.mutex);
  find_or_add(shard, descriptor).guard = std::move(guard);
}

void SocketHooks::sweep() {
  for (Shard& shard : shards_) {
    std::lock_guard lock(shard.mutex);
    const size_t gone = std::erase_if(
        shard.hooked, [](const auto& one) { return inode_of(one.first) != one.second.socket; });
    sockets_ -= static_cast<int>(gone);
  }
}

SocketHooks::Hooked SocketHooks::find(int descriptor) {
  if (descriptor < 0 || !any()) return {};
  Shard& shard = shard_of(descriptor);
  std::lock_guard lock(shard.mutex);
  const auto found = shard.hooked.find(descriptor);
  if (found == shard.hooked.end()) return {};
  if (inode_of(descriptor) == found->second.socket) return found->second;
  shard.hooked.erase(found);
  --sockets_;
  return {};
}

// A peek, out-of-band data and the error queue are not part of the byte stream.
ssize_t SocketHooks::receive(int descriptor, msghdr& message, int flags) {
  const Hooked hooked = find(descriptor);
  const bool peeks = (flags & (MSG_PEEK | MSG_OOB)) != 0;
  if (hooked.tls != nullptr && peeks) {
    errno = EOPNOTSUPP;
    return -1;
  }
  const bool of_tls = hooked.tls != nullptr && (flags & MSG_ERRQUEUE) == 0;
  const ssize_t got =
      of_tls ? hooked.tls->receive(message) : system_sockets().recvmsg(descriptor, &message, flags);
  if (got <= 0 || hooked.guard == nullptr || peeks || (flags & MSG_ERRQUEUE) != 0) return got;
  if (pass_received(descriptor, hooked, message, static_cast<size_t>(got))) return got;
  errno = ECONNRESET;
  return -1;
}

bool SocketHooks::pass_received(int descriptor, const Hooked& hooked, const msghdr& message,
                                size_t size) {
  for (size_t i = 0; i < message.msg_iovlen && size > 0; ++i) {
    const iovec& part = message.msg_iov[i];
    const size_t taken = std::min(size, part.iov_len);
    size -= taken;
    std::optional<std::string> goaway =
        hooked.guard->received({static_cast<const char*>(part.iov_base), taken});
    if (!goaway) continue;
    if (goaway->empty()) return false;
    iovec bytes{goaway->data(), goaway->size()};
    send(descriptor, one_part(&bytes), MSG_DONTWAIT | MSG_NOSIGNAL);
    end(descriptor, SHUT_RDWR);
    return false;
  }
  return true;
}

ssize_t SocketHooks::send(int descriptor, const msghdr& message, int flags) {
  const Hooked hooked = find(descriptor);
  const ssize_t sent = hooked.tls != nullptr
                           ? hooked.tls->send(message)
                           : system_sockets().sendmsg(descriptor, &message, flags);
  if (sent <= 0 || hooked.guard == nullptr) return sent;
  const int error = errno;
  pass_sent(*hooked.guard, message, static_cast<size_t>(sent));
  errno = error;
  return sent;
}

void SocketHooks::pass_sent(FrameGuard& guard, const msghdr& message, size_t size) {
  for (size_t i = 0; i < message.msg_iovlen && size > 0; ++i) {
    const iovec& part = message.msg_iov[i];
    const size_t of_part = std::min(size, part.iov_len);
    size -= of_part;
    guard.sent({static_cast<const char*>(part.iov_base), of_part});
  }
}

int SocketHooks::end(int descriptor, int how) {
  const Hooked hooked = find(descriptor);
  if (hooked.tls != nullptr && how != SHUT_RD) hooked.tls->send_close_notify();
  return system_sockets().shutdown(descriptor, how);
}

}  // namespace recurve

using recurve::one_part;
using recurve::SocketHooks;
using recurve::system_sockets;

extern "C" ssize_t recvmsg(int descriptor, msghdr* message, int flags) {
  SocketHooks& hooks = SocketHooks::of_process();
  if (!hooks.any()) return system_sockets().recvmsg(descriptor, message, flags);
  return hooks.receive(descriptor, *message, flags);
}

extern "C" ssize_t recv(int descriptor, void* bytes, size_t size, int flags) {
  SocketHooks& hooks = SocketHooks::of_process();
  if (!hooks.any()) return system_sockets().recv(descriptor, bytes, size, flags);
  iovec part{bytes, size};
  msghdr message = one_part(&part);
  return hooks.receive(descriptor, message, flags);
}

// The fortified recv(), where the compiler knows the size of the buffer.
extern "C" ssize_t __recv_chk(int descriptor, void* bytes, size_t size, size_t capacity,
                              int flags) {
  if (size > capacity) std::abort();
  return recv(descriptor, bytes, size, flags);
}

extern "C" ssize_t sendmsg(int descriptor, const msghdr* message, int flags) {
  SocketHooks& hooks = SocketHooks::of_process();
  if (!hooks.any()) return system_sockets().sendmsg(descriptor, message, flags);
  return hooks.send(descriptor, *message, flags);
}

extern "C" ssize_t send(int descriptor, const void* bytes, size_t size, int flags) {
  SocketHooks& hooks = SocketHooks::of_process();
  if (!hooks.any()) return system_sockets().send(descriptor, bytes, size, flags);
  iovec part{const_cast<void*>(bytes), size};
  return hooks.send(descriptor, one_part(&part), flags);
}

extern "C" int shutdown(int descriptor, int how) {
  SocketHooks& hooks = SocketHooks::of_process();
  if (!hooks.any()) return system_sockets().shutdown(descriptor, how);
  return hooks.end(descriptor, how);
}
