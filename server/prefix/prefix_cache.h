#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/state/state_pool.h"
#include "server/identity/identity.h"
#include "server/prefix/prefix_index.h"
#include "server/request/prefix_use.h"
#include "server/session/image_memory.h"
#include "server/storage/archive.h"

namespace recurve {

struct PrefixLimits {
  int64_t bytes = 0;    // of host memory; 0: nothing is kept
  bool shared = false;  // one tenant's prompts may begin with the states of another's
};

// Where states are written that may have to make room; of `identity` in model, weights and chunk.
struct PrefixDisk {
  Archive* archive = nullptr;  // null: nowhere. Outlives the cache.
  StateHeader identity = {};
};

// States that prompts have left on their way, in host memory, and on a disk those for which there
// is no room any more, for prompts that begin alike: those begin there, and give the same tokens,
// to the bit, as if all of it had been absorbed, for a prompt is cut on the grid of chunks anyway.
// A tenant has what its own prompts have left, unless they are shared: how long a prompt takes
// tells whether another one has begun so. Belongs to the engine's thread.
//
// What is on the disk is gone with the server, and makes room there for sessions.
class PrefixCache {
 public:
  // chunk: the grid of the model's prompts, in tokens. Backend and pool outlive the cache.
  PrefixCache(Backend& backend, StatePool& pool, int chunk, const PrefixLimits& limits,
              PrefixDisk disk = {});
  ~PrefixCache();

  struct Start {
    PrefixUse use = {};
    StateImage image = {};             // of the first use.tokens of the prompt; null: none
    std::vector<int64_t> points = {};  // tokens after which keep() is to be called
  };
  // A prompt begins in a state that has absorbed nothing.
  Start start(TenantId tenant, std::span<const int32_t> ids, PrefixWish wish,
              const PrefixPlaces& places = {});
  // The slot has absorbed these ids, from nothing; steps on the pool's stream included that have
  // been launched. Where there is no memory for it, nothing is kept.
  void keep(TenantId tenant, std::span<const int32_t> ids, const StateSlot& slot);

  // Sends for what is on the disk alone of a prompt, where that is quicker than to absorb it:
  // done() is called once start() would find it, or it cannot be had. False: there is nothing to
  // wait for.
  bool fetch(TenantId tenant, std::span<const int32_t> ids, PrefixWish wish,
             std::function<void()> done);
  // Has at most so many states on the disk from now on, and writes what may soon have to make room.
  // To be called between steps.
  void use_disk(int64_t most_states);

  PrefixIndex::Counts counts() const { return index_.counts(); }
  // What a state takes, with the nodes of so many tokens.
  static int64_t bytes_each(const StateLayout& layout, int chunk, int64_t tokens);

 private:
  // A state on its way from the disk, and who waits for it.
  struct Fetch {
    PrefixIndex::Owner owner = 0;
    std::vector<int32_t> ids = {};
    NewImage made = {};
    std::vector<std::function<void()>> done = {};
  };
  using FetchPtr = std::shared_ptr<Fetch>;

  PrefixIndex::Owner owner_of(TenantId tenant) const { return limits_.shared ? 0 : 1 + tenant; }
  // Of those that are not shared.
  static TenantId tenant_of(PrefixIndex::Owner owner) { return static_cast<TenantId>(owner - 1); }
  void fetched(const FetchPtr& fetch, const Archive::Loaded& loaded);
  void write_next();  // if one is to leave, its copy is there and no other is being written

  StatePool& pool_;
  const int chunk_;
  const PrefixLimits limits_;
  Archive* const archive_;
  StateHeader written_;  // of states on the disk
  bool writing_ = false;
  bool may_leave_ = false;  // there may be something to write
  std::vector<FetchPtr> fetches_;
  ImageMemory images_;
  PrefixIndex index_;
};

}  // namespace recurve
