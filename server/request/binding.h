#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "model/adapters/adapter.h"
#include "server/request/state_transfer.h"

namespace recurve {

// A state that the server reads at its start, by name: requests and sessions that choose it start
// from it. Constant, in host memory.
struct InitialState {
  BoundId id;
  int64_t position = 0;  // tokens that it counts as absorbed, at least 1
  int64_t bytes = 0;     // of the state
  // Null: this server does not have it, and a session is bound to it.
  std::shared_ptr<const ReadyState> state = {};
};
using InitialStatePtr = std::shared_ptr<const InitialState>;

// A LoRA adapter that the server reads at its start, by name: the tokens of requests and sessions
// that choose it are computed with the model's weights and the adapter's. Constant.
struct BoundAdapter {
  BoundId id;
  // Null: this server does not have it, and a session is bound to it.
  AdapterPtr weights = {};
};
using BoundAdapterPtr = std::shared_ptr<const BoundAdapter>;

// What a request or session has in addition to the model; null: none. A session is bound to both
// when it is created.
struct Binding {
  InitialStatePtr initial_state = {};
  BoundAdapterPtr adapter = {};
};

// The same by names, as clients send it; empty: none.
struct BindingNames {
  std::string initial_state = {}, adapter = {};
};

}  // namespace recurve
