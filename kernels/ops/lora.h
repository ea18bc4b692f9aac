#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/ops/linear.h"
#include "kernels/ops/op.h"
#include "kernels/tensor.h"

namespace recurve {

inline constexpr int64_t kMostLoraRank = 256;
inline constexpr int64_t kLoraPanel = 64;  // outputs

// A product of low rank that an adapter adds to some outputs of a linear layer. B lies in panels of
// kLoraPanel outputs, the last of which may have fewer: each is (r, outputs) row-major, and they
// follow each other. So it is read from its begin to its end.
struct LoraPart {
  int64_t r = 0;      // rank, at most kMostLoraRank
  int64_t first = 0;  // of the layer's outputs, which it adds to
  int64_t N = 0;      // outputs that it adds to
  float scale = 1;
  DType dtype = DType::kF32;  // of A and B: F32 or BF16
  const void* A = nullptr;    // (r, K) row-major
  const void* B = nullptr;    // (r, N), in panels

  // Where B has the output n of its row j.
  int64_t at(int64_t j, int64_t n) const {
    const int64_t first_of_panel = n / kLoraPanel * kLoraPanel;
    const int64_t width = N - first_of_panel < kLoraPanel ? N - first_of_panel : kLoraPanel;
    return first_of_panel * r + j * width + n - first_of_panel;
  }
};

// Rows of a step that have one adapter.
struct LoraRows {
  std::span<const std::span<const LoraPart>> layers;  // by Matrix::layer: the adapter's parts there
  std::span<const int32_t> rows;                      // ascending
};

// For each row of a group, and each part that the group's adapter has in the layer:
//   y[first + n] += scale * sum_j B[j, n] (sum_k A[j, k] x[k])
// Sums are in fp32. No output is in two parts, and no row in two groups. What is added to a row
// depends on its x and its adapter alone: not on other rows.
// Source: Hu et al. 2021, eq. 3.
struct LoraArgs {
  int32_t layer = -1;
  int64_t K = 0, N = 0;  // of the layer
  std::span<const LoraRows> groups = {};
  const float* x = nullptr;  // (rows, K); does not overlap y
  float* y = nullptr;        // (rows, N)
  // Where LoraOp::shrink is there: the layer itself. Then x is what it reads (x and norm, x_bf16 or
  // deferred), y is what its product, bias and residual are, and the op also does for all rows what
  // the layer does behind that: swiglu, y_bf16 and next.
  std::optional<LinearArgs> linear = std::nullopt;
  float* inner = nullptr;  // (rows, inner_floats()): what shrink leaves
  // The layer's kernel does the rest itself: see LoraOp::joined_floats. Shrink leaves more then.
  bool joined = false;
  // Of such layers: a word that shrink clears, and sets once what kernels before have left may be
  // read. The layers' kernels that wait for it need not wait for shrink until they end.
  uint32_t* ready = nullptr;

  std::span<const LoraPart> parts_of(const LoraRows& group) const {
    return group.layers[static_cast<size_t>(layer)];
  }
  // A x of a row: of each part as many floats as its rank, rounded up.
  static constexpr int64_t kInnerStep = 4;
  static int64_t floats_of(std::span<const LoraPart> parts) {
    int64_t floats = 0;
    for (const LoraPart& part : parts) {
      floats += (part.r + kInnerStep - 1) / kInnerStep * kInnerStep;
    }
    return floats;
  }
  int64_t inner_floats() const {
    int64_t most = 0;
    for (const LoraRows& group : groups) most = std::max(most, floats_of(parts_of(group)));
    return most;
  }
};

struct LoraOp : Op<LoraArgs> {
  // Computes A x of a layer that args.linear has, before there is y: run() does the rest. null: the
  // layer is made of separate ops, and args.linear is not set. Of several layers at once, which are
  // joined and of which none reads what another writes.
  static constexpr size_t kMostLayers = 8;
  void (*shrink)(std::span<const LoraArgs> layers, Stream&) = nullptr;
  // Of how many floats `inner` is if the op linear does the rest, as LinearArgs::lora asks it to;
  // 0: it does not. The bits are those of run(). null: it never does.
  int64_t (*joined_floats)(const LoraArgs&) = nullptr;
};

struct LoraKernel {
  static constexpr const char* kName = "lora";
  LoraOp lora;
  static constexpr auto kOp = &LoraKernel::lora;
};

}  // namespace recurve
