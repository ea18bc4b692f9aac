#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"

namespace recurve {

// What changes as a whole with every token, and has one size: the matrices and vectors of a
// recurrence, the inputs that a convolution or a shift of tokens goes back to, a position.
inline constexpr std::string_view kRecurrentPiece = "recurrent";

// What the numbers of an array may be. A state that comes from outside a slot's own steps is
// checked for it before it is used (server/state/state_values.h): what kernels use as an index or a
// size needs a value here.
enum class StateValues {
  kFinite,    // neither NaN nor infinite; of integers, any
  kPosition,  // I32: the tokens that the state has absorbed
};

// One array of a sequence's state, by the name and logical shape that snapshots carry.
struct StateArray {
  std::string name;  // "C", "n", "m", "conv", ...
  int layer = 0;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;                        // of one slot
  std::string piece = std::string(kRecurrentPiece);  // of the state, that it lies in
  StateValues values = StateValues::kFinite;

  size_t elements() const {
    size_t count = 1;
    for (int64_t extent : shape) count *= static_cast<size_t>(extent);
    return count;
  }
  size_t bytes() const { return elements() * size_of(dtype); }
};

// Arrays that lie one after the other where a state is outside its slot, and are kept as one there:
// what changes together is in one piece.
struct StatePieceLayout {
  std::string name;
  size_t bytes = 0;
  std::vector<size_t> arrays;  // their numbers in the layout, ascending
};

// All a sequence must remember: a fixed set of arrays, whatever its length. All zero is the state
// of a sequence that has seen nothing.
struct StateLayout {
  std::vector<StateArray> arrays;

  // The most tokens that a state can have absorbed, and still take part in a step: what counts them
  // holds that many and those of many steps more.
  int64_t most_tokens() const {
    constexpr int64_t kOfSteps = int64_t{1} << 24, kMostExact = int64_t{1} << 53;  // in JSON
    const bool counts = std::ranges::any_of(
        arrays, [](const StateArray& array) { return array.values == StateValues::kPosition; });
    return counts ? std::numeric_limits<int32_t>::max() - kOfSteps : kMostExact;
  }

  size_t bytes() const {
    size_t sum = 0;
    for (const StateArray& array : arrays) sum += array.bytes();
    return sum;
  }
  // In the order of their first arrays.
  std::vector<StatePieceLayout> pieces() const {
    std::vector<StatePieceLayout> pieces;
    for (size_t a = 0; a < arrays.size(); ++a) {
      auto at = std::ranges::find(pieces, arrays[a].piece, &StatePieceLayout::name);
      if (at == pieces.end()) at = pieces.insert(at, {.name = arrays[a].piece});
      at->bytes += arrays[a].bytes();
      at->arrays.push_back(a);
    }
    return pieces;
  }
};

}  // namespace recurve
