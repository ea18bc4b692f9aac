#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/object_store/object_store.h"

namespace recurve {

// Removes what no session needs. Servers may use the store meanwhile.
//
// Blobs that no head names: a server that is killed between the writes of a blob and of its head
// leaves one, and one that is killed after the write of a head leaves those of the head before it.
// A blob is removed only if it is older than the grace period, which is much longer than
// kLongestCommit, and no head that was read after the blob was listed names it.
//
// Heads of sessions that were closed longer ago than the grace period, on the condition that they
// are still what was read: a server may create a session of that name meanwhile. With a store that
// does not apply conditions to a DELETE they stay.
//
// States of prompts (prefix_key.h) that were written longer ago than kLongestPrefix: one that is of
// use is written again, and those of builds that do not run any more are of no use.
//
// What no server can have written stays. Calls block.
class StoreCollector {
 public:
  struct Options {
    std::chrono::seconds grace = std::chrono::hours(24);  // at least two hours
    bool removes = true;                                  // false: it is only said what would go
    // Called for each object that is removed, or would be.
    std::function<void(const ObjectStore::Listed& object)> on_removed = {};
    // Called for each object that cannot be read or that no server has written, with why; both
    // are printable.
    std::function<void(const std::string& key, const std::string& why)> on_strange = {};
  };
  static constexpr std::chrono::hours kLongestPrefix{7 * 24};
  struct Collected {
    int64_t heads = 0, blobs = 0, prefixes = 0;  // that there are
    int64_t removed = 0, removed_bytes = 0;      // or would be
    int64_t recent = 0;                          // blobs without a head, and not old enough
    int64_t closed = 0;                          // heads of closed sessions that stay
    bool without_conditions = false;             // because the store has no conditions of a DELETE
  };

  // now: seconds since 1970.
  StoreCollector(ObjectStore& store, Options options, int64_t now)
      : store_(store), options_(std::move(options)), now_(now) {}

  // Throws std::runtime_error with a sentence if the store fails; then some may be removed.
  Collected collect();

 private:
  using Listed = ObjectStore::Listed;
  void for_each(const std::string& begins, const std::function<void(const Listed&)>& visit);
  bool is_old(const Listed& object, std::chrono::seconds age) const;
  void sort(const Listed& blob);
  void read_head(const Listed& listed);
  void sort_prefix(const Listed& prefix);
  void remove(const Listed& object);
  void remove_blobs();
  void remove_heads();
  void count_removed(const Listed& object);
  void report(const std::string& key, const std::string& why) const;

  ObjectStore& store_;
  const Options options_;
  const int64_t now_;
  Collected collected_;
  std::vector<Listed> old_, young_;  // blobs
  std::vector<Listed> old_prefixes_;
  std::vector<Listed> closed_;                   // heads that may go
  std::set<std::string, std::less<>> named_;     // blobs, by heads
  std::set<std::string, std::less<>> retained_;  // tenants' folders of which no blob goes
};

}  // namespace recurve
