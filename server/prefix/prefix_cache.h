#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/state/state_pool.h"
#include "server/identity/identity.h"
#include "server/prefix/prefix_index.h"
#include "server/prefix/prefix_scope.h"
#include "server/prefix/shared_prefixes.h"
#include "server/prefix/stored_prefixes.h"
#include "server/request/clock.h"
#include "server/request/prefix_use.h"
#include "server/session/state_cache.h"
#include "server/storage/archive.h"

namespace recurve {

struct PrefixLimits {
  int64_t bytes = 0;    // of host memory, as far as sessions do not reserve it; 0: no cache
  bool shared = false;  // one tenant's prompts may begin with the states of another's
  // Of a disk's time, what writing states may take that need not make room yet, in (0, 1].
  double disk_time = 0.1;
  // Called on the engine's thread where a state on the disk or in the store cannot be read; may
  // only post.
  std::function<void(const std::string& why)> on_unreadable = {};
  // Where other servers that compute the same bits find the states too; null: nowhere. Outlives the
  // cache.
  SharedPrefixes* store = nullptr;
  // Of the store's time, what writing states may take, in (0, 1].
  double store_time = 0.1;
  // Called for each prompt that the store might be of use for.
  std::function<void(SharedPrefixUse use)> on_store_use = {};
};

// Where states are written, so that they may make room and outlive the server; of `identity` in
// model, weights and chunk, and of `made_by` in all else that decides over their bits: program,
// device and kernels.
struct PrefixDisk {
  Archive* archive = nullptr;  // null: nowhere. Outlives the cache.
  StateHeader identity = {};
  std::string made_by = {};
};

// States that prompts have left on their way, in host memory and on a disk, for prompts that begin
// alike: those begin there, and give the same tokens,
// to the bit, as if all of it had been absorbed, for a prompt is cut on the grid of chunks anyway.
// A tenant has what its own prompts have left, unless they are shared: how long a prompt takes
// tells whether another one has begun so. Belongs to the engine's thread.
//
// What is worth it is written to the disk while there is nothing else to write, and at once where
// it is to make room in memory. There it outlives the server, however that ends, for those that
// compute the same bits; it makes room for sessions. What cannot be read there is as if it had
// never been there, and a prompt that began so says so.
class PrefixCache {
 public:
  // chunk: the grid of the model's prompts, in tokens. States and pool outlive this.
  PrefixCache(StateCache& states, StatePool& pool, int chunk, const PrefixLimits& limits,
              PrefixDisk disk = {});
  ~PrefixCache();

  struct Start {
    PrefixUse use = {};
    StateImage image = {};             // of the first use.tokens of the prompt; null: none
    std::vector<int64_t> points = {};  // tokens after which keep() is to be called
  };
  // A prompt begins in a state that has absorbed nothing, or in an initial one. What prompts leave
  // behind an initial state stays in memory. Those with different adapters share nothing.
  Start start(const PrefixScope& scope, std::span<const int32_t> ids, PrefixMode mode,
              const PrefixPoints& places = {});
  // The slot has absorbed these ids, from where the scope begins; steps on the pool's stream
  // included that have been launched. Where there is no memory for it, nothing is kept.
  void store(const PrefixScope& scope, std::span<const int32_t> ids, const StateSlot& slot);

  // Sends for what is on the disk or in the store alone of a prompt, where that is quicker than to
  // absorb it: done() is called once start() would find it, or it cannot be had; of what is in the
  // store, also once absorbing would have taken as long. prompt_rate: tokens that are absorbed a
  // second; 0: not known yet. False: there is nothing to wait for.
  bool fetch(const PrefixScope& scope, std::span<const int32_t> ids, PrefixMode mode,
             double prompt_rate, std::function<void()> done);
  // Takes what has come from the store, and sends there what is to be written next. True: some
  // done() was called. To be called between steps.
  bool advance(Clock::time_point now);
  // When advance() will have something to do even if nothing comes; empty: never.
  std::optional<Clock::time_point> next_advance() const;
  // Has at most so many bytes of states on the disk from now on, and writes what is to be written
  // next. To be called between steps, before what the room is for is written.
  void use_disk(int64_t most_bytes);
  // When there will be something to write that may not be written yet; empty: never.
  std::optional<Clock::time_point> next_write() const;

  struct Counts : PrefixIndex::Counts {
    int64_t limit = 0;                        // of bytes, now
    int64_t disk_states = 0, disk_bytes = 0;  // of states, some of which are in memory too
  };
  Counts counts() const;
  // Tokens that a state must spare to be read from a disk, or written anywhere.
  static int64_t least_gain_from_disk(int64_t state_bytes, int chunk);
  // What a state takes, with the nodes of so many tokens.
  static int64_t bytes_each(const StateLayout& layout, int chunk, int64_t tokens);

 private:
  // A state on its way from the disk, and who waits for it.
  struct Fetch {
    PrefixIndex::Owner owner = 0;
    StoredPrefixes::Key key = {};
    StoredPtr state = {};
    std::vector<int32_t> ids = {};
    BoundId adapter = {};  // with which it was computed; empty: none
    std::vector<std::function<void()>> done = {};
    Clock::time_point until = Clock::time_point::max();  // they wait no longer
    bool of_store = false;
  };
  using FetchPtr = std::shared_ptr<Fetch>;
  // Whose states are written, and with which adapter they are computed.
  struct WrittenOwner {
    std::string_view tenant = {};
    BoundId adapter = {};
  };

  PrefixIndex::Owner owner_of(const Identity& caller) const {
    return limits_.shared ? 0 : PrefixIndex::Owner{1} + caller.tenant;
  }
  PrefixIndex::Owner owner_within(const PrefixScope& scope);
  std::string_view name_of(const Identity& caller) const;  // as long as what it asks
  std::string_view lasting_name_of(const Identity& caller) const;
  void restore();
  // The hashes of a prompt's beginnings.
  std::vector<PrefixHash> hashes_of(const PrefixScope& scope, std::span<const int32_t> ids) const;
  void look_at_disk(const PrefixScope& scope, std::span<const int32_t> ids, Start* start);
  void look_at_store(const PrefixScope& scope, std::span<const int32_t> ids, const Start& start);
  bool joins_fetch(PrefixIndex::Owner owner, std::span<const int32_t> head,
                   std::function<void()>* done);
  FetchPtr new_fetch(const PrefixScope& scope, std::span<const int32_t> head,
                     const PrefixHash& hash, std::function<void()> done);
  bool fetch_from_store(const PrefixScope& scope, std::span<const int32_t> ids,
                        std::span<const PrefixHash> hashes, int64_t here, double prompt_rate,
                        std::function<void()> done);
  void came(const FetchPtr& fetch, const SharedPrefixes::Read& read, const StateImage& image);
  void count_store(SharedPrefixUse use) const;
  bool may_share() const;  // an offer, as no other is being written, and its copy is there
  void share_next(Clock::time_point now);
  void fetched(const FetchPtr& fetch, const Archive::Loaded& loaded, const StateImage& image);
  int64_t most_stored() const;  // on the disk, for what is known of them takes memory
  bool may_write() const;       // an offer, as no other is being written, and its copy is there
  void write_next();
  StoredPrefixes::Key key_of(const PrefixIndex::Offer& offer) const;
  StateHeader written_header(const PrefixIndex::Offer& offer) const;
  static Clock::time_point next_after(Clock::time_point began, double share);
  void write(const StoredPrefixes::Key& key, PrefixIndex::Offer offer);
  void trim(int64_t most_states, int64_t most_bytes);  // what is on the disk
  std::vector<Archive::Write> take_removals();

  StateCache& states_;
  StatePool& pool_;
  const int chunk_;
  const PrefixLimits limits_;
  Archive* const archive_;
  StateHeader written_;         // of states on the disk
  const std::string identity_;  // of that, and what made it
  StoredPrefixes stored_;
  std::unordered_map<PrefixIndex::Owner, WrittenOwner> written_owners_;
  // By the tenant's owner and PrefixScope's digest. They are numbered down from the highest, where
  // no tenant is.
  std::map<std::pair<PrefixIndex::Owner, std::string>, PrefixIndex::Owner> owners_;
  int64_t most_disk_bytes_ = 0;
  std::vector<std::string> removed_;  // keys of records that are to go
  bool writing_ = false;
  bool may_offer_ = false;  // there may be something to write
  Clock::time_point next_write_ = {};
  bool sharing_ = false, may_share_ = false;  // the same of the store
  Clock::time_point next_share_ = {};
  std::vector<FetchPtr> fetches_;
  PrefixIndex index_;
};

}  // namespace recurve
