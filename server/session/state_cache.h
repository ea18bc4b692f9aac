#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "model/state/state_pool.h"
#include "server/session/image_memory.h"
#include "server/storage/archive.h"

namespace recurve {

// The images of states in host memory, of sessions, marks, prefixes and preempted requests, and the
// ways there: from slots and from the disk. Sessions and prefixes share a budget: sessions reserve
// what they may come to take of it, and prefixes have what is not reserved; they also make room for
// what preempted requests take beyond their plan. Belongs to the engine's thread; images may go on
// any. Outlives them.
class StateCache {
 public:
  enum class Owner { kSessions, kPrefixes, kPreempted };

  // budget: bytes for sessions and prefixes. archive: where stored states are read; null: nowhere.
  // preempted: bytes that are planned for states of preempted requests. All outlive the cache.
  StateCache(Backend& backend, StatePool& pool, int64_t budget, Archive* archive = nullptr,
             int64_t preempted = std::numeric_limits<int64_t>::max());
  ~StateCache();

  // The state of a slot, which has absorbed so many tokens. Its copy is asked for when this
  // returns: see StatePool::asked(). before: see ImageMemory::take(); its full pages may be null,
  // for an image that lacks them. Throws std::bad_alloc.
  StateImage save(Owner owner, const StateSlot& slot, int64_t tokens,
                  const StateImage& before = nullptr, int64_t before_tokens = 0);

  // Reads a stored state of so many tokens, which fits `wanted`. A state that is being read already
  // is read once, and the image shared; null where that failed. Throws std::bad_alloc.
  using OnRead = std::function<void(const Archive::Loaded& loaded, const StateImage& image)>;
  void read(Owner owner, const StoredPtr& state, const StateHeader& wanted, int64_t tokens,
            OnRead done);

  // Memory for a state of so many tokens that comes from elsewhere; prepare() is to be called
  // before it is first touched, on any thread. Throws std::bad_alloc.
  struct Incoming {
    NewImage image;
    std::function<void()> prepare;
  };
  Incoming expect(Owner owner, int64_t tokens);

  // Sessions have so many bytes reserved from now on, in all.
  void reserve(int64_t bytes) noexcept;
  int64_t unreserved() const { return std::max<int64_t>(budget_ - reserved_ - excess_, 0); }
  // Bytes of preempted requests, with what they have given back meanwhile; to be called between
  // steps.
  int64_t count_preempted() noexcept {
    expect_preempted(0);
    return bytes(Owner::kPreempted);
  }
  int64_t planned_for_preempted() const { return preempted_; }
  // Called where unreserved() has changed, before sessions or preempted requests take what they may
  // then: it frees what others have too much. Null: nothing is called.
  void on_reserve(std::function<void()> done) { on_reserve_ = std::move(done); }

  // See PieceMemory.
  void keep_spare(bool keep) noexcept { memory_.keep_spare(keep); }
  int64_t bytes(Owner owner) const { return bytes_[static_cast<size_t>(owner)]; }
  // What an image takes.
  static size_t bytes_each(const StateLayout& layout, int64_t tokens = 0);

 private:
  struct Held;
  NewImage take(Owner owner, int64_t tokens, const StateImage& before = nullptr,
                int64_t before_tokens = 0);
  void expect_preempted(size_t bytes) noexcept;

  StatePool& pool_;
  Archive* const archive_;
  ImageMemory memory_;
  const int64_t budget_;
  const int64_t preempted_;  // planned for such requests
  int64_t reserved_ = 0;     // by sessions
  int64_t excess_ = 0;       // what preempted requests take beyond their plan
  std::function<void()> on_reserve_;
  std::atomic<int64_t> bytes_[3] = {};
  std::map<uint64_t, std::vector<OnRead>> reading_;  // by the state's id
};

}  // namespace recurve
