#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops/paged_attention.h"
#include "kernels/tensor.h"

namespace recurve {

// What changes as a whole with every token, and has one size: the matrices and vectors of a
// recurrence, the inputs that a convolution or a shift of tokens goes back to, a position.
inline constexpr std::string_view kRecurrentPiece = "recurrent";

// How an array grows with the tokens that its state absorbs.
enum class StateGrowth {
  kFixed,     // not at all
  kRing,      // not at all: rows of the last tokens, each in place of an older one
  kPerToken,  // by what a token adds, in pages of kPageTokens, each a piece
};

// What the numbers of an array may be. A state that comes from outside a slot's own steps is
// checked for it before it is used (server/state/state_values.h): what kernels use as an index or a
// size needs a value here.
enum class StateValues {
  kFinite,    // neither NaN nor infinite; of integers, any
  kPosition,  // I32: the tokens that the state has absorbed
  kHeldRows,  // I32: rows that lie next to the state, fewer than StateArray::written_every
};

// One array of a sequence's state, by the name and logical shape that snapshots carry.
struct StateArray {
  std::string name;  // "C", "n", "m", "conv", ...
  int layer = 0;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;                        // of one slot, or of one token: see growth
  std::string piece = std::string(kRecurrentPiece);  // of the state, that it lies in
  StateValues values = StateValues::kFinite;
  StateGrowth growth = StateGrowth::kFixed;
  int written_every = 1;  // rows from one writing of it to the next: kernels/ops/held_rows.h

  bool per_token() const { return growth == StateGrowth::kPerToken; }
  size_t elements() const {
    size_t count = 1;
    for (int64_t extent : shape) count *= static_cast<size_t>(extent);
    return count;
  }
  size_t bytes() const { return elements() * size_of(dtype); }
};

// Arrays that lie one after the other where a state is outside its slot, and are stored as one
// there: what changes together is in one piece. A page has kPageTokens rows of each of its arrays.
struct StatePieceLayout {
  std::string name;
  size_t bytes = 0;
  std::vector<size_t> arrays;  // their numbers in the layout, ascending
  bool page = false;
};

inline std::string page_name(int64_t page) { return "page " + std::to_string(page); }

// All a sequence must remember: a slot of one size, and pages where arrays grow. All zero is the
// state of a sequence that has seen nothing.
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

  // Tokens from one writing of the states that are matrices to the next.
  int written_every() const {
    int most = 1;
    for (const StateArray& array : arrays) most = std::max(most, array.written_every);
    return most;
  }
  bool grows() const { return std::ranges::any_of(arrays, &StateArray::per_token); }
  static int64_t pages(int64_t tokens) {
    return tokens / kPageTokens + (tokens % kPageTokens > 0 ? 1 : 0);
  }
  size_t page_bytes() const {
    size_t row = 0;
    for (const StateArray& array : arrays) row += array.per_token() ? array.bytes() : 0;
    return row * kPageTokens;
  }
  // Of the slot, and of the pages of so many tokens.
  size_t bytes(int64_t tokens = 0) const {
    size_t sum = grows() ? static_cast<size_t>(pages(tokens)) * page_bytes() : 0;
    for (const StateArray& array : arrays) sum += array.per_token() ? 0 : array.bytes();
    return sum;
  }
  // Those of the slot in the order of their first arrays, then "page 0", "page 1" ..., or from that
  // page on.
  std::vector<StatePieceLayout> pieces(int64_t tokens = 0, int64_t first_page = 0) const {
    std::vector<StatePieceLayout> pieces;
    StatePieceLayout page{.bytes = page_bytes(), .page = true};
    for (size_t a = 0; a < arrays.size(); ++a) {
      if (arrays[a].per_token()) {
        page.arrays.push_back(a);
        continue;
      }
      auto at = std::ranges::find(pieces, arrays[a].piece, &StatePieceLayout::name);
      if (at == pieces.end()) at = pieces.insert(at, {.name = arrays[a].piece});
      at->bytes += arrays[a].bytes();
      at->arrays.push_back(a);
    }
    for (int64_t p = first_page; !page.arrays.empty() && p < pages(tokens); ++p) {
      page.name = page_name(p);
      pieces.push_back(page);
    }
    return pieces;
  }
};

}  // namespace recurve
