#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace recurve {

class Stream;
struct Matrix;
struct WeightFormat;

// Memory that an implementation allocates at the first call of a size and then keeps, in bytes.
struct ScratchBytes {
  size_t call = 0;    // of the thread that calls
  size_t thread = 0;  // of each thread that computes, the one that calls among them
  // The same of memory that grows by itself. Each keeps the most that it was asked for, and what
  // was the most of both together may have been asked for by different calls.
  size_t other_call = 0, other_thread = 0;
};

// One op of a backend: the function, and the name of the implementation behind it for the start-up
// table ("reference", "cpu/avx3").
//
// The header of an op has its arguments, with the formula above them, and below them the op's place
// in a table: its name and the Op of these arguments. kernels/kernels.h lists the places.
template <typename ArgsType>
struct Op {
  using Args = ArgsType;

  void (*run)(const Args&, Stream&) = nullptr;
  const char* implementation = "none";
  bool bf16_state = false;  // reads and writes StateData of BF16
  bool holds_rows = false;  // takes HeldRows::every of more than 1 (kernels/ops/held_rows.h)
  // The chunk form of heads that fill tiles of 64 rows rounds queries, keys, values and, as it
  // multiplies with it, the state to bf16.
  bool rounds_in_tiles = false;
  // What of arguments of these sizes and types it cannot take: "2048 keys a head, but 1536 at
  // most". Empty: nothing. Pointers are not followed, and of a batch nothing needs to be known yet.
  // Not set: it takes all that its header allows. Families ask before they load anything, so that a
  // kernel never meets what does not fit.
  std::function<std::string(const Args&)> cannot = {};
  // The most that arguments of these sizes need, read like those of `cannot`. Null: nothing.
  ScratchBytes (*scratch)(const Args&) = nullptr;
  void operator()(const Args& args, Stream& stream) const { run(args, stream); }
};

// An op that multiplies with a weight matrix, args.W, of any format: `run` is for F32 and BF16;
// `packed` has the functions for other formats, one each.
template <typename ArgsType>
struct MatrixOp : Op<ArgsType> {
  struct Packed {
    const WeightFormat* format;
    void (*run)(const ArgsType&, Stream&);
    const char* implementation;
    ScratchBytes (*scratch)(const ArgsType&) = nullptr;
  };
  std::vector<Packed> packed;
  // Whether x is rounded to bf16 with this matrix: then who makes x may do so. null: never.
  bool (*rounds)(const Matrix& W) = nullptr;
  bool takes_bf16(const Matrix& W) const { return rounds != nullptr && rounds(W); }

  void operator()(const ArgsType& args, Stream& stream) const {
    if (args.W.format == nullptr) return this->run(args, stream);
    find(args.W.format)->run(args, stream);
  }
  // Of that format: null if the backend has none, which loading asks before there is a matrix.
  const Packed* find(const WeightFormat* format) const {
    for (const Packed& one : packed) {
      if (one.format == format) return &one;
    }
    return nullptr;
  }
  // Adds it, or writes over what the table has for the format.
  void put(const Packed& one) {
    for (Packed& there : packed) {
      if (there.format == one.format) {
        there = one;
        return;
      }
    }
    packed.push_back(one);
  }
};

}  // namespace recurve
