#pragma once
#include <cstdint>
#include <span>

#include "kernels/kernels.h"
#include "kernels/stream.h"

namespace recurve {

// Which rows of a step have which adapter: see Stream::set_adapters(). For backends that have the
// op lora. There a layer with an adapter is
//   z = W norm(x) + bias + residual;  z += scale * B A norm(x);  y = gate(z)
// in which a row without an adapter has the bits that it has in a step without adapters. Where
// there is no LoraOp::shrink, linear layers are the ops rms_norm, linear and glu one after the
// other, to the bit. Where there is, the layer's kernel adds B A norm(x), if LoraOp::joined_floats
// says so, or another behind it.
class StepAdapters {
 public:
  // kernels, groups, between: outlive it. rows: of the step. between: memory for `rows` rows of
  // floats_of_row() floats, from a multiple of 64 bytes on.
  StepAdapters(const Kernels& kernels, int rows, std::span<const LoraRows> groups, float* between)
      : kernels_(kernels), rows_(rows), groups_(groups), between_(between) {}

  // Of layers with at most so many inputs and outputs together and so many parts of an adapter.
  static int64_t floats_of_row(const Kernels& kernels, int64_t width, int64_t parts) {
    return width + (kernels.lora.shrink == nullptr ? 0 : parts * kMostLoraRank + kReadyFloats);
  }

  bool changes(int32_t layer) const;  // of some row; -1: none
  // A layer that changes() something. bare: the op linear of the backend's table.
  void run(const MatrixOp<LinearArgs>& bare, const LinearArgs& args, Stream& stream) const;
  // Layers of a group, of which it changes() some.
  void run_group(const LinearOp& op, std::span<const LinearArgs> layers, Stream& stream) const;

 private:
  static constexpr int64_t kReadyFloats = 4;  // LoraArgs::ready, and what aligns the rest

  void run_ops(const MatrixOp<LinearArgs>& bare, const LinearArgs& args, Stream& stream) const;
  void run_around(const MatrixOp<LinearArgs>& bare, const LinearArgs& args, Stream& stream) const;
  LoraArgs of_layer(const LinearArgs& args) const;
  int64_t joined_floats(const LoraArgs& lora) const;
  static LinearArgs joined(const LoraArgs& lora);

  const Kernels& kernels_;
  const int rows_;
  const std::span<const LoraRows> groups_;
  float* const between_;
};

}  // namespace recurve
