// Adapters of rank r in two kernels: lora_shrink.cu computes A x, and expand adds B (A x). There a
// thread has four outputs of up to kRows rows of one group, and adds the rows of B in order. It
// also ends the layer where that is not the product alone. An element is summed in this one order,
// whatever the other rows are.
//
// The groups come as arguments of the launches. What a block reads of A and B it fetches to the L2
// cache before the kernel ahead has ended.
#include <algorithm>
#include <vector>

#include "kernels/ceil_div.h"
#include "kernels/check.h"
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/common/swish.cuh"
#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/cuda/sm80/linear/lora.cuh"
#include "kernels/cuda/sm80/linear/lora.h"
#include "kernels/cuda/sm80/linear/lora_sums.cuh"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/rows/activate.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kExpandThreads = 128;

struct Output {
  const float* inner = nullptr;  // (rows, stride)
  int64_t stride = 0;
  float* z = nullptr;  // (rows, N)
  int64_t N = 0;
  int64_t outputs = 0;  // of the layer: N / 2 with swiglu
  float* y = nullptr;   // (rows, outputs), which is z where only z is added to
  uint16_t* y_bf16 = nullptr;
  const float* next_norm = nullptr;
  DeferredRmsNorm next = {};
  bool swiglu = false, rounds = false;
};

// Whether four outputs are in the part, and its B is read by fours.
template <bool kVector>
__device__ bool has_fours(const Part& part, int n) {
  return kVector && part.N % kFour == 0 && n >= 0 && n % kFour == 0 && n < part.N;
}

// Whether a part adds to some of so many outputs from n on.
__device__ bool adds_to(const Part& part, int64_t n, int64_t outputs) {
  return n < part.first + part.N && n + outputs > part.first;
}

// Adds what a part adds to the four outputs of z from n on.
template <bool kVector, int kRows, typename Inner>
__device__ void add_part(const Part& part, const Inner& inner, int64_t n, Fours<kRows>& z) {
  const int local = static_cast<int>(n) - part.first;
  if (has_fours<kVector>(part, local)) {
    Fours<kRows> sum = {};
    sum_columns<true, 16 / kRows, kRows>(part, Columns(part, local), kFour, inner, sum);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kFour; ++i) z[r][i] += scaled_sum(part, sum[r][i]);
    }
  } else if (local > -kFour && local < part.N) {
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      if (local + i < 0 || local + i >= part.N) continue;
      Fours<kRows> sum = {};
      sum_columns<false, 16 / kRows, kRows>(part, Columns(part, local + i), 1, inner, sum);
#pragma unroll
      for (int r = 0; r < kRows; ++r) z[r][i] += scaled_sum(part, sum[r][0]);
    }
  }
}

template <bool kVector, int kRows, bool kSmall>
__device__ void fetch_parts(const Table<kRows, kSmall>& table, const Tile<kRows>& tile, int64_t n) {
  for (int p = tile.first; p < tile.first + tile.parts; ++p) {
    const Part& part = table.part[p];
    const int local = static_cast<int>(n) - part.first;
    if (!has_fours<kVector>(part, local)) continue;
    const Columns columns(part, local);
    const int size = part.bf16 ? sizeof(uint16_t) : sizeof(float);
    const auto* B = static_cast<const char*>(part.B) + columns.at * size;
    for (int j = 0; j < part.r; ++j) fetch(B + static_cast<int64_t>(j) * columns.width * size);
  }
}

template <bool kVector, int kRows>
__device__ void load_rows(const Tile<kRows>& tile, const Output& out, int64_t n, int64_t count,
                          Fours<kRows>& z) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= tile.rows) break;
    const float4 v = load4<kVector>(out.z + tile.row[r] * out.N + n, count);
    z[r][0] = v.x;
    z[r][1] = v.y;
    z[r][2] = v.z;
    z[r][3] = v.w;
  }
}

template <bool kVector>
__device__ void store4(float* to, const float4& v, int64_t count) {
  if (kVector) {
    *reinterpret_cast<float4*>(to) = v;
    return;
  }
  to[0] = v.x;
  if (count > 1) to[1] = v.y;
  if (count > 2) to[2] = v.z;
  if (count > 3) to[3] = v.w;
}
template <bool kVector>
__device__ void store4(uint16_t* to, const float4& v, int64_t count) {
  const uint2 bits = make_uint2(round_bf16(v.x, v.y), round_bf16(v.z, v.w));
  if (kVector) {
    *reinterpret_cast<uint2*>(to) = bits;
    return;
  }
  to[0] = static_cast<uint16_t>(bits.x);
  if (count > 1) to[1] = static_cast<uint16_t>(bits.x >> 16);
  if (count > 2) to[2] = static_cast<uint16_t>(bits.y);
  if (count > 3) to[3] = static_cast<uint16_t>(bits.y >> 16);
}

// What the layer leaves for the norm behind it. Rows begin at multiples of 16 bytes, and the thread
// with the next four of eight outputs calls it too.
__device__ void defer_norm(const Output& out, int64_t row, int64_t n, const float4& y) {
  const int64_t at = row * out.outputs + n;
  const float4 w = *reinterpret_cast<const float4*>(out.next_norm + n);
  store4<true>(out.next.x + at,
               make_float4(__fmul_rn(y.x, w.x), __fmul_rn(y.y, w.y), __fmul_rn(y.z, w.z),
                           __fmul_rn(y.w, w.w)),
               kFour);
  const float squares = sum_of_eight(squares_of(y));
  if (n % DeferredRmsNorm::kSquares == 0)
    out.next.squares[at / DeferredRmsNorm::kSquares] = squares;
  if (n == 0) out.next.scales[row] = 0;
}

// kGates: z has a second half, by which the first is multiplied behind its gate.
template <bool kVector, bool kGates, typename AnyTable>
__global__ void __launch_bounds__(kExpandThreads)
    expand_kernel(const __grid_constant__ AnyTable table, const __grid_constant__ Output out) {
  constexpr int kRows = AnyTable::kRows;
  let_next_start();
  const Tile<kRows>& tile = table.tile[blockIdx.y];
  const int64_t n = (int64_t{blockIdx.x} * kExpandThreads + threadIdx.x) * kFour;
  const int64_t count = out.outputs - n;
  if (count > 0) {
    fetch_parts<kVector>(table, tile, n);
    if (kGates) fetch_parts<kVector>(table, tile, out.outputs + n);
  }
  wait_for_previous();
  Fours<kRows> z = {}, up = {};
  if (count > 0) {
    load_rows<kVector>(tile, out, n, count, z);
    if (kGates) load_rows<kVector>(tile, out, out.outputs + n, count, up);
  }
  // A x of a part, while the block adds its B.
  __shared__ __align__(16) float inner[kRows][kMostLoraRank];
  constexpr int64_t kOutputs = int64_t{kExpandThreads} * kFour;
  const int64_t first = int64_t{blockIdx.x} * kOutputs;
  int before = 0;  // fours of ranks, of the parts before
  for (int p = tile.first; p < tile.first + tile.parts; ++p) {
    const Part& part = table.part[p];
    if (adds_to(part, first, kOutputs) ||
        (kGates && adds_to(part, out.outputs + first, kOutputs))) {
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < kRows * part.fours(); i += kExpandThreads) {
        const int r = i / part.fours(), four = i % part.fours();
        const float* const from = out.inner + tile.row[r] * out.stride;
        const float4 value = load4<true>(from + (before + four) * kFour, r < tile.rows ? kFour : 0);
        *reinterpret_cast<float4*>(&inner[r][four * kFour]) = value;
      }
      __syncthreads();
      const auto of_part = [&](int r, int four) {
        return *reinterpret_cast<const float4*>(&inner[r][four * kFour]);
      };
      if (count > 0) {
        add_part<kVector, kRows>(part, of_part, n, z);
        if (kGates) add_part<kVector, kRows>(part, of_part, out.outputs + n, up);
      }
    }
    before += part.fours();
  }
  if (count <= 0) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= tile.rows) break;
    const int64_t row = tile.row[r], at = row * out.outputs + n;
    if (kGates) {
#pragma unroll
      for (int i = 0; i < kFour; ++i) {
        z[r][i] = out.rounds ? swish(z[r][i], up[r][i]) : silu(z[r][i]) * up[r][i];
      }
    }
    const float4 y = make_float4(z[r][0], z[r][1], z[r][2], z[r][3]);
    if (out.y_bf16 != nullptr) {
      store4<kVector>(out.y_bf16 + at, y, count);
    } else {
      store4<kVector>(out.y + at, y, count);
    }
    if (out.next.x != nullptr) defer_norm(out, row, n, y);
  }
}

Output output_of(const LoraArgs& args, bool rounds) {
  Output out;
  out.inner = args.inner;
  out.stride = args.inner_floats();
  out.z = args.y;
  out.N = args.N;
  out.outputs = args.N;
  out.y = args.y;
  out.rounds = rounds;
  if (!args.linear) return out;
  const LinearArgs& linear = *args.linear;
  out.outputs = linear.outputs();
  out.swiglu = linear.swiglu;
  if (linear.swiglu) out.y = linear.y;
  out.y_bf16 = linear.y_bf16;
  out.next_norm = linear.next_norm;
  out.next = linear.next;
  return out;
}

}  // namespace

void lora_expand(const LoraArgs& args, bool rounds, Stream& stream) {
  const Output out = output_of(args, rounds);
  const bool vector = out.outputs % kFour == 0 && aligned(out.z) && aligned(out.y) &&
                      aligned(out.y_bf16) && parts_aligned(args, &LoraPart::B);
  CHECK(aligned(out.inner) && (out.next.x == nullptr || (vector && !out.swiglu)));
  const bool ends = out.swiglu || out.y_bf16 != nullptr || out.next.x != nullptr;
  const std::vector<int32_t> others = ends ? lora::other_rows(args) : std::vector<int32_t>();
  with_form(vector, args, others, [&]<bool kVector, typename AnyTable>() {
    lora::for_tables<AnyTable>(args, others, [&](const AnyTable& table, int, int tiles) {
      const dim3 grid(static_cast<unsigned>(ceil_div(out.outputs, kExpandThreads * kFour)),
                      static_cast<unsigned>(tiles));
      launch_early(stream, "lora",
                   out.swiglu ? expand_kernel<kVector, true, AnyTable>
                              : expand_kernel<kVector, false, AnyTable>,
                   {.grid = grid, .threads = kExpandThreads}, table, out);
    });
  });
}

void shrink(std::span<const LoraArgs> layers, Stream& stream) {
  const bool rounds[LoraOp::kMostLayers] = {};
  lora_shrink(layers, std::span(rounds).first(layers.size()), false, stream);
}

void run(const LoraArgs& args, Stream& stream) {
  if (args.linear) return lora_expand(args, false, stream);
  const std::span<std::byte> scratch = static_cast<CudaStream&>(stream).scratch();
  int64_t rows = 0;
  for (const LoraRows& group : args.groups) {
    if (!group.rows.empty()) rows = std::max<int64_t>(rows, group.rows.back() + 1);
  }
  LoraArgs both = args;
  both.inner = reinterpret_cast<float*>(scratch.data());
  CHECK(static_cast<size_t>(rows * args.inner_floats()) <= scratch.size() / sizeof(float));
  shrink({&both, 1}, stream);
  lora_expand(both, false, stream);
}

}  // namespace recurve::cuda::sm80
