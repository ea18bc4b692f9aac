#include "kernels/cuda/sm80/linear/lora.cuh"
#include "kernels/cuda/sm80/linear/lora.h"

namespace recurve::cuda::sm80 {
namespace {

__device__ float4 rounded(const float4& v) {
  const uint32_t low = round_bf16(v.x, v.y), high = round_bf16(v.z, v.w);
  return make_float4(__uint_as_float(low << 16), __uint_as_float(low & 0xffff0000u),
                     __uint_as_float(high << 16), __uint_as_float(high & 0xffff0000u));
}

__device__ float dot4(const float4& a, const float4& b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

constexpr int kWarps = 8, kThreads = kWarps * kWarpSize;
constexpr int kRun = kWarpSize * kFour;  // of K, of a warp
constexpr int kStep = kWarps * kRun;

// How rows are read.
enum class Reads { kFloats, kNormed, kBf16 };
struct Input {
  int64_t K = 0;
  const float* x = nullptr;        // (rows, K)
  const uint16_t* bf16 = nullptr;  // the same of Reads::kBf16
  const float* norm = nullptr;     // (K), of Reads::kNormed
  const float* squares = nullptr;  // of a deferred norm: (rows, K / 8), or null
  float eps = 0;
  bool scaled = false, rounds = false;
  float* inner = nullptr;  // (rows, stride)
  int64_t stride = 0;
};

// The values from k on of a row, times the norm's weights. All lanes of the warp. squares: the
// lane's sum of those of the row so far, of eight values in each even lane.
template <Reads kReads, bool kVector>
__device__ float4 read_row(const Input& in, int64_t row, int64_t k, float& squares) {
  const int64_t rest = in.K - k;
  const bool even = threadIdx.x % 2 == 0;
  if constexpr (kReads == Reads::kBf16) {
    if (in.squares != nullptr && even && rest > 0) {
      squares += in.squares[(row * in.K + k) / DeferredRmsNorm::kSquares];
    }
    return load4<kVector>(in.bf16 + row * in.K + k, rest);
  } else {
    float4 v = load4<kVector>(in.x + row * in.K + k, rest);
    if constexpr (kReads == Reads::kNormed) {
      const float mine = squares_of(v);
      const float other = __shfl_xor_sync(0xffffffffu, mine, 1);
      if (even) squares += mine + other;
      const float4 w = load4<kVector>(in.norm + k, rest);
      v = make_float4(__fmul_rn(v.x, w.x), __fmul_rn(v.y, w.y), __fmul_rn(v.z, w.z),
                      __fmul_rn(v.w, w.w));
    }
    return in.rounds ? rounded(v) : v;
  }
}

// The sums of a warp: of each row and each row of A.
template <int kRows>
struct WarpSums {
  float product[kRows * kFour] = {};
  float squares[kRows] = {};
};

// The sums of values over the warp's lanes, of which each lane gets one: lane i that of value
// i * kCount / 32. Each is added in the order of warp_sum().
template <int kCount>
__device__ float sum_each(float (&values)[kCount]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
  for (int offset = kWarpSize / 2, count = kCount; offset > 0; offset /= 2, count /= 2) {
    if (count == 1) {
      values[0] += __shfl_xor_sync(0xffffffffu, values[0], offset);
      continue;
    }
    const bool upper = (lane & offset) != 0;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if (i >= count / 2) break;
      const float mine = upper ? values[i + count / 2] : values[i];
      const float other = upper ? values[i] : values[i + count / 2];
      values[i] = mine + __shfl_xor_sync(0xffffffffu, other, offset);
    }
  }
  return values[0];
}

// A: from the block's first row of A on, of which it has so many.
template <Reads kReads, bool kVector, int kRows, typename T>
__device__ void add_products(const Tile<kRows>& tile, const Input& in, const T* A, int ranks,
                             WarpSums<kRows>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t first = static_cast<int64_t>(threadIdx.x / kWarpSize) * kRun;
  for (int64_t k = first + lane * kFour; k < in.K; k += kStep) {
    for (int j = 0; j < ranks; ++j) fetch(A + j * in.K + k);
  }
  wait_for_previous();
#pragma unroll 4
  for (int64_t begin = first; begin < in.K; begin += kStep) {
    const int64_t k = begin + lane * kFour;
    float4 w[kFour];
#pragma unroll
    for (int j = 0; j < kFour; ++j) {
      w[j] = load4<kVector>(A + j * in.K + k, j < ranks ? in.K - k : 0);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= tile.rows) break;
      const float4 v = read_row<kReads, kVector>(in, tile.row[r], k, sums.squares[r]);
#pragma unroll
      for (int j = 0; j < kFour; ++j)
        sums.product[r * kFour + j] = dot4(w[j], v, sums.product[r * kFour + j]);
    }
  }
}

template <Reads kReads, bool kVector, typename AnyTable>
__global__ void __launch_bounds__(kThreads)
    shrink_kernel(const __grid_constant__ AnyTable table, const __grid_constant__ Input in) {
  constexpr int kRows = AnyTable::kRows;
  __shared__ float shared[kWarps][kRows][kFour + 1];
  let_next_start();
  const Tile<kRows>& tile = table.tile[blockIdx.y];
  int p = tile.first, four = static_cast<int>(blockIdx.x);
  const int end = tile.first + tile.parts;
  while (p < end && four >= table.part[p].fours()) four -= table.part[p++].fours();
  if (p == end) return wait_for_previous();
  const Part& part = table.part[p];
  const int ranks = min(kFour, part.r - four * kFour);
  const int64_t at = int64_t{four} * kFour * in.K;
  WarpSums<kRows> sums;
  if (part.bf16) {
    add_products<kReads, kVector>(tile, in, static_cast<const uint16_t*>(part.A) + at, ranks, sums);
  } else {
    add_products<kReads, kVector>(tile, in, static_cast<const float*>(part.A) + at, ranks, sums);
  }
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize;
  constexpr int kLanes = kWarpSize / (kRows * kFour);  // that have the sum of one product
  const int lane = thread % kWarpSize, value = lane / kLanes;
  const float product = sum_each(sums.product);
  if (lane % kLanes == 0) shared[warp][value / kFour][value % kFour] = product;
  if (in.scaled) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float squares = warp_sum(sums.squares[r]);
      if (lane == 0) shared[warp][r][kFour] = squares;
    }
  }
  __syncthreads();
  const int r = thread / kFour, j = thread % kFour;
  if (r >= tile.rows) return;
  float sum = 0, squares = 0;
  for (int w = 0; w < kWarps; ++w) {
    sum += shared[w][r][j];
    if (in.scaled) squares += shared[w][r][kFour];
  }
  if (in.scaled) sum = __fmul_rn(sum, norm_scale(squares, static_cast<int>(in.K), in.eps));
  in.inner[tile.row[r] * in.stride + static_cast<int64_t>(blockIdx.x) * kFour + j] = sum;
}

Input input_of(const LoraArgs& args, bool rounds) {
  Input in;
  in.K = args.K;
  in.x = args.x;
  in.rounds = rounds;
  in.inner = args.inner;
  in.stride = args.inner_floats();
  if (!args.linear) return in;
  const LinearArgs& linear = *args.linear;
  in.x = linear.x;
  in.norm = linear.norm;
  in.eps = linear.norm_eps;
  in.scaled = linear.norm != nullptr;
  in.bf16 = linear.deferred.x != nullptr ? linear.deferred.x : linear.x_bf16;
  in.squares = linear.deferred.squares;
  return in;
}

}  // namespace

void lora_shrink(const LoraArgs& args, bool rounds, Stream& stream) {
  const Input in = input_of(args, rounds);
  const bool vector = in.K % kFour == 0 && aligned(in.x) && aligned(in.bf16) && aligned(in.norm) &&
                      parts_aligned(args, &LoraPart::A);
  const Reads reads = in.bf16 != nullptr   ? Reads::kBf16
                      : in.norm != nullptr ? Reads::kNormed
                                           : Reads::kFloats;
  with_form(vector, args, {}, [&]<bool kVector, typename AnyTable>() {
    const auto launch = [&](auto kernel, const AnyTable& table, int tiles) {
      const dim3 grid(static_cast<unsigned>(lora::most_fours(table, tiles)),
                      static_cast<unsigned>(tiles));
      launch_early(stream, "lora", kernel, {.grid = grid, .threads = kThreads}, table, in);
    };
    lora::for_tables<AnyTable>(args, {}, [&](const AnyTable& table, int tiles) {
      switch (reads) {
        case Reads::kFloats:
          return launch(shrink_kernel<Reads::kFloats, kVector, AnyTable>, table, tiles);
        case Reads::kNormed:
          return launch(shrink_kernel<Reads::kNormed, kVector, AnyTable>, table, tiles);
        case Reads::kBf16:
          return launch(shrink_kernel<Reads::kBf16, kVector, AnyTable>, table, tiles);
      }
    });
  });
}

}  // namespace recurve::cuda::sm80
