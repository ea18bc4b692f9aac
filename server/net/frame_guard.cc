#include "server/net/frame_guard.h"

#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "server/observe/log.h"
#include "server/observe/metrics.h"

namespace recurve {
namespace {

using Receive = ssize_t (*)(int, msghdr*, int);
constexpr std::chrono::seconds kSayFlood(1);

Receive receive_of_system() {
  static const auto found = reinterpret_cast<Receive>(dlsym(RTLD_NEXT, "recvmsg"));
  return found;
}

ino_t inode_of(int descriptor) {
  struct stat status {};
  return fstat(descriptor, &status) == 0 ? status.st_ino : 0;
}

// The last frame that the client gets: GOAWAY, whose error is ENHANCE_YOUR_CALM (RFC 9113, sections
// 6.8 and 7). It may stand in the midst of another one that gRPC is writing; the connection is over
// then all the same.
std::string goodbye(std::string_view why) {
  std::string frame = {0, 0, static_cast<char>(8 + why.size()), 7, 0, 0, 0, 0, 0};
  frame += std::string_view("\x7f\xff\xff\xff\0\0\0\x0b", 8);
  return frame.append(why);
}

}  // namespace

FrameGuard& FrameGuard::of_process() {
  static auto* const guard = new FrameGuard;  // gRPC's threads may read to the end
  return *guard;
}

bool FrameGuard::works() {
  return dlsym(RTLD_DEFAULT, "recvmsg") == reinterpret_cast<void*>(&::recvmsg) &&
         receive_of_system() != nullptr;
}

void FrameGuard::guard(int descriptor, const Peer& peer, Metrics& metrics) {
  auto made = std::make_shared<Guarded>();
  made->socket = inode_of(descriptor);
  made->peer = peer;
  made->metrics = &metrics;
  Shard& shard = shards_[static_cast<size_t>(descriptor) % shards_.size()];
  std::lock_guard lock(shard.mutex);
  shard.guarded[descriptor] = std::move(made);
  if (shard.guarded.size() < shard.swept_at) return;
  std::erase_if(shard.guarded,
                [](const auto& one) { return inode_of(one.first) != one.second->socket; });
  shard.swept_at = std::max<size_t>(64, 2 * shard.guarded.size());
}

std::shared_ptr<FrameGuard::Guarded> FrameGuard::find(int descriptor) {
  Shard& shard = shards_[static_cast<size_t>(descriptor) % shards_.size()];
  std::lock_guard lock(shard.mutex);
  const auto found = shard.guarded.find(descriptor);
  if (found == shard.guarded.end()) return nullptr;
  if (inode_of(descriptor) == found->second->socket) return found->second;
  shard.guarded.erase(found);
  return nullptr;
}

bool FrameGuard::take(int descriptor, const char* bytes, size_t size) {
  if (descriptor < 0) return true;
  const std::shared_ptr<Guarded> connection = find(descriptor);
  if (connection == nullptr) return true;
  if (connection->ended) return false;
  const auto flood = connection->counter.count({bytes, size}, std::chrono::steady_clock::now());
  if (!flood) return true;
  end(descriptor, *connection, *flood);
  return false;
}

void FrameGuard::end(int descriptor, Guarded& connection, FrameCounter::Flood flood) {
  connection.ended = true;
  const std::string frame = goodbye(std::string("too many: ") + name_of(flood));
  send(descriptor, frame.data(), frame.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  shutdown(descriptor, SHUT_RDWR);
  connection.metrics->flood_ended(static_cast<int>(flood));
  int times = 0;
  {
    std::lock_guard lock(mutex_);
    ++since_;
    const auto now = std::chrono::steady_clock::now();
    if (now - said_ < kSayFlood) return;
    said_ = now;
    times = std::exchange(since_, 0);
  }
  log_event(LogLevel::kWarning, "flood",
            {{"peer", connection.peer.address}, {"of", name_of(flood)}, {"times", times}});
}

}  // namespace recurve

// See FrameGuard. What is asked for beside the bytes themselves, or left in the socket, is no read.
extern "C" ssize_t recvmsg(int descriptor, msghdr* message, int flags) {
  const ssize_t got = recurve::receive_of_system()(descriptor, message, flags);
  if (got <= 0 || (flags & (MSG_PEEK | MSG_ERRQUEUE)) != 0) return got;
  auto left = static_cast<size_t>(got);
  for (size_t i = 0; i < message->msg_iovlen && left > 0; ++i) {
    const iovec& part = message->msg_iov[i];
    const size_t size = std::min(left, part.iov_len);
    if (!recurve::FrameGuard::of_process().take(descriptor, static_cast<const char*>(part.iov_base),
                                                size)) {
      errno = ECONNRESET;
      return -1;
    }
    left -= size;
  }
  return got;
}
