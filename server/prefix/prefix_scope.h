#pragma once
#include <cstdint>
#include <string>
#include <utility>

#include "model/state/state_image.h"
#include "server/identity/identity.h"
#include "server/request/binding.h"

namespace recurve {

// The prompts among which one finds its prefix: those of a tenant that began in the same state and
// have the same adapter. What it points to outlives the call that takes it.
struct PrefixScope {
  PrefixScope(const Identity& caller_) : caller(caller_) {}
  PrefixScope(const Identity& caller_, const InitialState* begin_, const BoundAdapter* adapter_,
              StateImage image_ = {})
      : caller(caller_), begin(begin_), adapter(adapter_), image(std::move(image_)) {}

  const Identity& caller;
  const InitialState* begin = nullptr;    // null: prompts that begin in an empty state
  const BoundAdapter* adapter = nullptr;  // null: none
  StateImage image = {};                  // of `begin`

  int64_t position() const { return begin != nullptr ? begin->position : 0; }
  // States behind an initial state are in memory alone.
  bool may_be_written() const { return begin == nullptr; }
  BoundId adapter_id() const { return adapter != nullptr ? adapter->id : BoundId(); }
  // Of both. Different for all that may not share a state; empty if there is neither.
  std::string digest() const {
    if (begin == nullptr && adapter == nullptr) return {};
    return (begin != nullptr ? begin->id.digest : "") + "/" + adapter_id().digest;
  }
};

}  // namespace recurve
