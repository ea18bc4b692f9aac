#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "server/object_store/object_store.h"

namespace recurve {

// Removes blobs that no head names: a server that is killed between the writes of a blob and of its
// head leaves one, and one that is killed after the write of a head leaves those of the head before
// it. Servers may use the store meanwhile: a blob is removed only if it is older than the grace
// period, which is much longer than kLongestCommit, and no head that was read after the blob was
// listed names it. Calls block.
class StoreCollector {
 public:
  struct Options {
    std::chrono::seconds grace = std::chrono::hours(24);  // at least two hours
    bool removes = true;                                  // false: it is only said what would go
    // Called for each blob that is removed, or would be.
    std::function<void(const ObjectStore::Listed& blob)> on_blob = {};
    // Called for each head that cannot be read: nothing of its tenant is removed.
    std::function<void(const std::string& key, const std::string& why)> on_damaged = {};
  };
  struct Collected {
    int64_t heads = 0, blobs = 0;            // that there are
    int64_t removed = 0, removed_bytes = 0;  // or would be
    int64_t recent = 0;                      // without a head, and not old enough
  };

  // now: seconds since 1970.
  StoreCollector(ObjectStore& store, Options options, int64_t now)
      : store_(store), options_(std::move(options)), now_(now) {}

  // Throws std::runtime_error with a sentence if the store fails; then some may be removed.
  Collected collect();

 private:
  void for_each(const std::string& begins,
                const std::function<void(const ObjectStore::Listed&)>& visit);
  void read_head(const std::string& key);
  void remove(const ObjectStore::Listed& blob);

  ObjectStore& store_;
  const Options options_;
  const int64_t now_;
  Collected collected_;
  std::vector<ObjectStore::Listed> old_;         // blobs that may go
  std::set<std::string, std::less<>> named_;     // by heads
  std::set<std::string, std::less<>> retained_;  // tenants' folders of which nothing goes
};

}  // namespace recurve
