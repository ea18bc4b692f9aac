#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "server/request/state_error.h"

namespace recurve {

// A state on its way out, as server/state writes it. It stays as it was when it was asked for,
// whatever becomes of its session. One thread at a time.
class StateSource {
 public:
  virtual ~StateSource() = default;
  // All of it; the first call may take as long as reading the state takes.
  virtual uint64_t bytes() = 0;
  // Fills the span with the bytes from the offset on, which are there.
  virtual void read(uint64_t offset, std::span<char> to) = 0;
};

// A state that has come in, checked, to become a session's. The engine knows what is in it.
class ReadyState {
 public:
  virtual ~ReadyState() = default;
};

// Makes a state of the bytes that were written. Throws StateError. Any thread.
using ReadState = std::function<std::shared_ptr<const ReadyState>(std::string_view written)>;
// Throws StateError if what begins so is no state for this server. Any thread.
using CheckFront = std::function<void(std::string_view front)>;

}  // namespace recurve
