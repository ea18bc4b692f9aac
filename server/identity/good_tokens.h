#pragma once
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>

#include "server/identity/identity.h"
#include "server/identity/key_file.h"

namespace recurve {

// Tokens whose signature was verified, by their hashes, so that each costs that once. Thread-safe.
class GoodTokens {
 public:
  static constexpr size_t kMost = 4096;  // should there be more, all begin anew

  // Whose it is; nothing where it is not known, or of no use any more.
  std::optional<Identity> find(const KeyHash& hash, double now) const {
    std::lock_guard lock(mutex_);
    const auto found = good_.find(hash);
    if (found == good_.end() || now >= found->second.until) return std::nullopt;
    return found->second.whose;
  }
  // until, and now: seconds of the system's clock.
  void add(const KeyHash& hash, const Identity& whose, double until) {
    std::lock_guard lock(mutex_);
    if (good_.size() >= kMost) good_.clear();
    good_.insert_or_assign(hash, Good{whose, until});
  }

 private:
  struct Good {
    Identity whose;
    double until;
  };

  mutable std::mutex mutex_;
  std::map<KeyHash, Good> good_;
};

}  // namespace recurve
