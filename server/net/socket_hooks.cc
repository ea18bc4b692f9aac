// recv() is defined here, also that which checks how much room there is.
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

template <typename Function>
bool is_ours(const char* name, Function* ours) {
  return dlsym(RTLD_DEFAULT, name) == reinterpret_cast<void*>(ours);
}

}  // namespace

const SystemSockets& system_sockets() {
  static const SystemSockets found = find_system();
  return found;
}

SocketHooks& SocketHooks::of_process() {
  static auto* const hooks = new SocketHooks;  // gRPC's threads may read to the end
  return *hooks;
}

bool SocketHooks::work() {
  const SystemSockets& next = system_sockets();
  return is_ours("recvmsg", &::recvmsg) && is_ours("sendmsg", &::sendmsg) &&
         is_ours("recv", &::recv) && is_ours("send", &::send) && is_ours("shutdown", &::shutdown) &&
         next.recvmsg != nullptr && next.sendmsg != nullptr && next.recv != nullptr &&
         next.send != nullptr && next.shutdown != nullptr;
}

SocketHooks::Shard& SocketHooks::shard_of(int descriptor) {
  return shards_[static_cast<size_t>(descriptor) % shards_.size()];
}

SocketHooks::Hooked& SocketHooks::make(Shard& shard, int descriptor) {
  const ino_t socket = inode_of(descriptor);
  const auto [entry, is_new] = shard.hooked.try_emplace(descriptor);
  if (is_new) ++sockets_;
  if (entry->second.socket != socket) entry->second = {.socket = socket};
  return entry->second;
}

void SocketHooks::carry_tls(int descriptor, TlsSocket::Connection tls) {
  auto made = std::make_shared<TlsSocket>(std::move(tls));
  Shard& shard = shard_of(descriptor);
  std::lock_guard lock(shard.mutex);
  make(shard, descriptor).tls = std::move(made);
}

void SocketHooks::count_frames(int descriptor, std::shared_ptr<FrameGuard> guard) {
  Shard& shard = shard_of(descriptor);
  std::lock_guard lock(shard.mutex);
  make(shard, descriptor).guard = std::move(guard);
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

// What is asked for beside the bytes themselves, or left in the socket, is no read.
ssize_t SocketHooks::receive(int descriptor, msghdr& message, int flags) {
  const Hooked hooked = find(descriptor);
  const bool left = (flags & (MSG_PEEK | MSG_OOB)) != 0;
  if (hooked.tls != nullptr && left) {
    errno = EOPNOTSUPP;
    return -1;
  }
  const bool of_tls = hooked.tls != nullptr && (flags & MSG_ERRQUEUE) == 0;
  const ssize_t got =
      of_tls ? hooked.tls->receive(message) : system_sockets().recvmsg(descriptor, &message, flags);
  if (got <= 0 || hooked.guard == nullptr || left || (flags & MSG_ERRQUEUE) != 0) return got;
  if (take(descriptor, hooked, message, static_cast<size_t>(got))) return got;
  errno = ECONNRESET;
  return -1;
}

bool SocketHooks::take(int descriptor, const Hooked& hooked, const msghdr& message, size_t size) {
  for (size_t i = 0; i < message.msg_iovlen && size > 0; ++i) {
    const iovec& part = message.msg_iov[i];
    const size_t taken = std::min(size, part.iov_len);
    size -= taken;
    std::optional<std::string> goodbye =
        hooked.guard->take({static_cast<const char*>(part.iov_base), taken});
    if (!goodbye) continue;
    if (goodbye->empty()) return false;
    iovec last{goodbye->data(), goodbye->size()};
    msghdr said{};
    said.msg_iov = &last;
    said.msg_iovlen = 1;
    send(descriptor, said, MSG_DONTWAIT | MSG_NOSIGNAL);
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
  tell_sent(*hooked.guard, message, static_cast<size_t>(sent));
  errno = error;
  return sent;
}

void SocketHooks::tell_sent(FrameGuard& guard, const msghdr& message, size_t size) {
  for (size_t i = 0; i < message.msg_iovlen && size > 0; ++i) {
    const iovec& part = message.msg_iov[i];
    const size_t of_part = std::min(size, part.iov_len);
    size -= of_part;
    guard.sent({static_cast<const char*>(part.iov_base), of_part});
  }
}

int SocketHooks::end(int descriptor, int how) {
  const Hooked hooked = find(descriptor);
  if (hooked.tls != nullptr && how != SHUT_RD) hooked.tls->say_end();
  return system_sockets().shutdown(descriptor, how);
}

}  // namespace recurve

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
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  return hooks.receive(descriptor, message, flags);
}

// What recv() becomes where the compiler knows how much room there is.
extern "C" ssize_t __recv_chk(int descriptor, void* bytes, size_t size, size_t room, int flags) {
  if (size > room) std::abort();
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
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  return hooks.send(descriptor, message, flags);
}

extern "C" int shutdown(int descriptor, int how) {
  SocketHooks& hooks = SocketHooks::of_process();
  if (!hooks.any()) return system_sockets().shutdown(descriptor, how);
  return hooks.end(descriptor, how);
}
