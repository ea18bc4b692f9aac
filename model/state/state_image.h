#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "model/state/state_layout.h"

namespace recurve {

// A part of a state in host memory that is copied, shared and written as one.
struct StatePiece {
  std::string name;                       // as the layout has it
  std::shared_ptr<const std::byte> data;  // (bytes)
  size_t bytes = 0;
};

// A state outside its slot, in the layout's pieces and their order; null: none. Each piece is
// filled once, by the creator of the image, and never changed then: copies share all of it, and one
// image may share what is equal with another. An owner of the image keeps its pieces alive.
using StateImage = std::shared_ptr<const std::vector<StatePiece>>;

using StateRooms = std::vector<std::span<std::byte>>;

// An image that is being made, and where its pieces are to be filled, in their order; a piece that
// it shares with another image has an empty span. It may be handed on meanwhile, to the threads
// that wait for it.
struct NewImage {
  StateImage image = {};
  StateRooms rooms = {};  // as long as the image is there
};

// Where each array of the slot lies, by its number, in memory that is divided as the layout is;
// divided: the layout's pieces. Those of pages have empty spans.
template <typename Byte>
std::vector<std::span<Byte>> spans_of_arrays(const StateLayout& layout,
                                             const std::vector<StatePieceLayout>& divided,
                                             const std::vector<std::span<Byte>>& pieces) {
  CHECK(pieces.size() == divided.size());
  std::vector<std::span<Byte>> arrays(layout.arrays.size());
  for (size_t p = 0; p < divided.size(); ++p) {
    if (divided[p].page || pieces[p].empty()) continue;
    CHECK(pieces[p].size() == divided[p].bytes);
    size_t at = 0;
    for (const size_t a : divided[p].arrays) {
      arrays[a] = pieces[p].subspan(at, layout.arrays[a].bytes());
      at += arrays[a].size();
    }
  }
  return arrays;
}
template <typename Byte>
std::vector<std::span<Byte>> spans_of_arrays(const StateLayout& layout,
                                             const std::vector<std::span<Byte>>& pieces) {
  return spans_of_arrays(layout, layout.pieces(), pieces);
}

// The memory of an image's pieces, in their order.
inline std::vector<std::span<const std::byte>> spans_of(const StateImage& image) {
  std::vector<std::span<const std::byte>> spans;
  spans.reserve(image->size());
  for (const StatePiece& piece : *image) spans.emplace_back(piece.data.get(), piece.bytes);
  return spans;
}

// An image of a state that has absorbed so many tokens, on the heap.
inline NewImage make_image(const StateLayout& layout, int64_t tokens = 0) {
  std::vector<StatePiece> pieces;
  NewImage made;
  for (StatePieceLayout& piece : layout.pieces(tokens)) {
    const std::shared_ptr<std::byte[]> memory(new std::byte[piece.bytes]);
    pieces.push_back({std::move(piece.name), {memory, memory.get()}, piece.bytes});
    made.rooms.emplace_back(memory.get(), piece.bytes);
  }
  made.image = std::make_shared<const std::vector<StatePiece>>(std::move(pieces));
  return made;
}

}  // namespace recurve
