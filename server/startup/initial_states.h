#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "model/state/state_layout.h"
#include "server/request/binding.h"
#include "server/startup/options.h"
#include "server/state/state_form.h"

namespace recurve {

// Initial states of a model (--initial-state), each in one of two kinds of files:
//
// - A session that was exported (server/state/state_form.h), of the same model, weights and types.
// - Safetensors, as `python -m weights_tools convert` writes a tuned state of RWKV-7: the tensor
//   layers.N.NAME is the array NAME of the state in layer N, in F32, BF16 or F16 and of its shape;
//   arrays that the file lacks are zero. Such a state counts as one token, and as no text: a prompt
//   behind it is read like the first of a session. Models whose states grow, or count their tokens,
//   have none.
//
// All functions throw std::runtime_error with the flag and what is wrong with the file.

// Bytes of host memory of all of them. Checks the sizes of the files, and reads no state.
size_t plan_initial_states(const std::vector<NamedPath>& files, const StateLayout& layout,
                           int32_t vocab);

// identity: what the states must be of.
std::vector<InitialStatePtr> load_initial_states(const std::vector<NamedPath>& files,
                                                 const StateHeader& identity);

}  // namespace recurve
