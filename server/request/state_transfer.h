#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

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

// An exported state, as server/state serializes it. A snapshot: later changes of its session do not
// affect it. One thread at a time.
class StateSource {
 public:
  virtual ~StateSource() = default;
  // Total size. The first call may read the whole state.
  virtual uint64_t bytes() = 0;
  // Fills the span with the bytes from `offset` on, which must exist.
  virtual void read(uint64_t offset, std::span<char> to) = 0;
};

// An imported and checked state. Only the engine knows its contents.
class ReadyState {
 public:
  virtual ~ReadyState() = default;
};

// Parses a serialized state. Throws StateError. Any thread.
using ReadState = std::function<std::shared_ptr<const ReadyState>(std::string_view written)>;
// Throws StateError if a state with this front is not usable by this server. Any thread.
using CheckFront = std::function<void(std::string_view front)>;

}  // namespace recurve
