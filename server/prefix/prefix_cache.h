#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/state/state_pool.h"
#include "server/identity/identity.h"
#include "server/prefix/prefix_index.h"
#include "server/request/prefix_use.h"
#include "server/session/image_memory.h"

namespace recurve {

struct PrefixLimits {
  int64_t bytes = 0;    // of host memory; 0: nothing is kept
  bool shared = false;  // one tenant's prompts may begin with the states of another's
};

// States that prompts have left on their way, in host memory, for prompts that begin alike: those
// begin there, and give the same tokens, to the bit, as if all of it had been absorbed, for a
// prompt is cut on the grid of chunks anyway. A tenant has what its own prompts have left, unless
// they are shared: how long a prompt takes tells whether another one has begun so. Belongs to the
// engine's thread.
class PrefixCache {
 public:
  // chunk: the grid of the model's prompts, in tokens. Backend and pool outlive the cache.
  PrefixCache(Backend& backend, StatePool& pool, int chunk, const PrefixLimits& limits);
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

  PrefixIndex::Counts counts() const { return index_.counts(); }
  // What a state takes, with the nodes of so many tokens.
  static int64_t bytes_each(const StateLayout& layout, int chunk, int64_t tokens);

 private:
  PrefixIndex::Owner owner_of(TenantId tenant) const { return limits_.shared ? 0 : 1 + tenant; }

  StatePool& pool_;
  const int chunk_;
  const PrefixLimits limits_;
  ImageMemory images_;
  PrefixIndex index_;
};

}  // namespace recurve
