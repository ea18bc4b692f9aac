#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "server/request/end_reason.h"

namespace recurve {

// Why a serialized state cannot be used: kForeignState, kOtherModel or kStateLost.
class StateError : public std::runtime_error {
 public:
  StateError(EndReason reason, const std::string& what)
      : std::runtime_error(what), reason_(reason) {}
  EndReason reason() const { return reason_; }

 private:
  EndReason reason_;
};

// The model of a StateSource has ended.
struct StateGone : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A page group (server/state/state_form.h).
struct PageGroupRef {
  uint64_t id = 0;  // 0: none
  uint64_t checksum = 0;
};

// Something serialized, in parts one after the other. They are those of the source, and exist as
// long as it does.
struct WrittenParts {
  std::string front = {}, back = {};
  std::vector<std::string_view> data = {};  // between these

  std::vector<std::string_view> all() const {
    std::vector<std::string_view> all = {front};
    all.insert(all.end(), data.begin(), data.end());
    all.push_back(back);
    return all;
  }
};

// A state in the parts that a store has as separate objects: page groups, which states share, and
// the rest. One thread at a time.
class StateParts {
 public:
  virtual ~StateParts() = default;
  // Pages that do not change any more as the state absorbs tokens; 0: it does not grow.
  virtual int64_t full_pages() const = 0;
  // The full pages from that one on, in a group with that ID. before: the group of those before.
  struct Group {
    WrittenParts parts;
    PageGroupRef ref;
  };
  virtual Group group(int64_t first, const PageGroupRef& before, uint64_t id) = 0;
  // The state without its full pages, the last of which are in the group `last`; none: with them.
  virtual WrittenParts rest(const PageGroupRef& last) = 0;
};

// An exported state, as server/state serializes it. A snapshot: later changes of its session do not
// affect it. One thread at a time.
class StateSource {
 public:
  virtual ~StateSource() = default;
  // Total size. The first call may read the whole state. Both throw StateGone.
  virtual uint64_t bytes() = 0;
  // Fills the span with the bytes from `offset` on, which must exist.
  virtual void read(uint64_t offset, std::span<char> to) = 0;
  // The same state in parts; null: it did not come from an engine.
  virtual StateParts* parts() { return nullptr; }
};

// What identifies an initial state or an adapter.
struct BoundId {
  std::string name = {};    // empty: there is none
  std::string digest = {};  // of its files, 32 hexadecimal digits
  bool operator==(const BoundId&) const = default;
};

// An imported and checked state. Only the engine knows its contents.
class ReadyState {
 public:
  virtual ~ReadyState() = default;
  BoundId adapter = {};  // with which the state was computed
};

// Parses a serialized state. Throws StateError. Any thread.
using ReadState = std::function<std::shared_ptr<const ReadyState>(std::string_view written)>;
// Returns a serialized page group. Throws what it likes.
using ReadGroup = std::function<std::string(const PageGroupRef& group)>;
// Parses a state of which page groups have the full pages; all of these have so many bytes, and no
// more memory is taken for the state. Throws StateError, and what the other function throws. Any
// thread.
using ReadPagedState = std::function<std::shared_ptr<const ReadyState>(
    std::string_view written, uint64_t all_bytes, const ReadGroup& read)>;
// The same as one state with all its pages.
using JoinState = std::function<std::shared_ptr<StateSource>(
    std::string_view written, uint64_t all_bytes, const ReadGroup& read)>;
// Throws StateError if a state with this front is not usable by this server. Any thread.
using CheckFront = std::function<void(std::string_view front)>;

}  // namespace recurve
