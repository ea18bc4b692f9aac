#pragma once
#include "kernels/cuda/sm80/linear/lora_sums.cuh"
#include "kernels/cuda/sm90/bulk.cuh"
#include "kernels/cuda/sm90/linear/linear_ahead.cuh"

// What adapters add to a layer of few rows: LinearArgs::lora. While the products are made, shrink
// finds A x of all rows. Behind the products the threads multiply it by B, and leave what is added
// behind the sums. The kernel of sm80/linear/lora.cu does the same for layers of more rows, to the
// same bits.
namespace recurve::cuda::sm90 {

// What a kernel's layers may end with in addition to the rest.
enum class Ends { kPlain, kActivation, kActivationOrAdapters };
template <typename T>
constexpr bool kTakesAdapters = !T::kWide && T::kRows <= kMostJoinedRows;
template <typename T, Ends kEnds>
constexpr bool kAdapts = kTakesAdapters<T> && kEnds == Ends::kActivationOrAdapters;

template <typename T, Ends kEnds>
constexpr int most_registers() {
  if constexpr (kAdapts<T, kEnds>) return T::kAdaptedRegisters;
  return T::kMostRegisters;
}
// How many reads a thread has on their way, and to how many rows of a tile it adds: as there are
// registers.
template <typename T>
constexpr int kLoraReads = T::kAdaptedRegisters > 72 && !kIsForFew<T> ? 4 : 2;
constexpr int kLoraRows = 2;

// The thread that asks whether what kernels before shrink have left may be read, once. No other
// does: the kernels behind, of which one clears the word, start when it has been found set. (Where
// a thread that computes asks, ptxas may let products wait for each other, C7518: not in paced
// blocks.)
template <typename T>
constexpr int kAsks = kPaced<T> ? 0 : T::kComputing;

// Waits until these may be read. asks: the thread kAsks<T> is among those who call it.
template <typename T, bool asks>
__device__ void wait_until_ready(const LinearParams& params, const Shared<T>& shared) {
  if (asks && threadIdx.x == kAsks<T>) {
    uint32_t ready = 0;
    wait_until([&] {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                   : "=r"(ready)
                   : "l"(params.lora.ready)
                   : "memory");
      return ready != 0;
    });
    arrive(&shared.ready);
  }
  wait(&shared.ready, 0);
  if (threadIdx.x == 0 || threadIdx.x == T::kComputing) {  // who ask for copies of the rows
    asm volatile("fence.proxy.async.global;" ::: "memory");
  }
}

// Brings the table that shrink leaves, by one thread.
template <typename T>
__device__ void load_lora(const LinearParams& params, const Shared<T>& shared) {
  wait_for_previous();
  arrive_expecting(&shared.lora_there, params.lora.table_bytes);
  bulk_load(shared.lora, params.lora.table, params.lora.table_bytes, &shared.lora_there);
}

// Leaves what is added to this block's columns of the tile. All computing threads.
template <typename T>
__device__ __forceinline__ void add_lora(const LinearParams& params, const BlockCoord& block,
                                         const Shared<T>& shared) {
  constexpr int kTileRows = sm80::lora::kJoinedTileRows, kRows = kLoraRows;
  constexpr int kShares = kTileRows / kRows;
  using Tile = sm80::Tile<kTileRows>;
  const auto* const parts = reinterpret_cast<const sm80::Part*>(shared.lora);
  const auto* const tiles = reinterpret_cast<const Tile*>(parts + params.lora.parts);
  const auto [first, count] = fours_of(params, block);
  const int fours = params.swiglu ? 2 * count : count;
  for (int item = static_cast<int>(threadIdx.x); item < params.lora.tiles * kShares * fours;
       item += T::kComputing) {
    const int share = item / fours, four = item % fours;
    const Tile& tile = tiles[share / kShares];
    const int first_row = share % kShares * kRows;
    const bool up = four >= count;
    const int m = (first + (up ? four - count : four)) * 4, output = block.W_row + m;
    if (output >= params.outputs || first_row >= tile.rows) continue;
    const int n = output + (up ? params.box_offset : 0);
    // Nothing changes by it, not even the sign of a zero.
    sm80::Fours<kRows> added;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (float& value : added[r]) value = -0.0f;
    }
    const float* A_x[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = tile.row[min(first_row + r, tile.rows - 1)];
      A_x[r] = params.lora.inner + row * params.lora.stride;
    }
    // Never from the L1 cache: they came while the kernel was there.
    const auto inner = [&](int r, int four) {
      return __ldcg(reinterpret_cast<const float4*>(A_x[r]) + four);
    };
    for (int p = tile.first; p < tile.first + tile.parts; ++p) {
      const sm80::Part& part = parts[p];
      const int local = n - part.first;
      if (local >= 0 && local < part.N) {
        sm80::Fours<kRows> sum = {};
        sm80::sum_columns<true, kLoraReads<T>, kRows>(part, sm80::Columns(part, local), 4, inner,
                                                      sum);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int i = 0; i < 4; ++i) added[r][i] = sm80::scaled_sum(part, sum[r][i]);
        }
      }
#pragma unroll
      for (const float*& row : A_x) row += part.fours() * 4;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first_row + r >= tile.rows) break;
      shared.added(params, tile.row[first_row + r], (up ? params.box_rows : 0) + m) =
          make_float4(added[r][0], added[r][1], added[r][2], added[r][3]);
    }
  }
}

// Whether adapters add to a row of the tile.
template <typename T, Ends kEnds>
__device__ bool has_lora(const LinearParams& params, int row) {
  if constexpr (kAdapts<T, kEnds>) {
    return (params.lora.rows >> row & 1) != 0;
  }
  return false;
}

}  // namespace recurve::cuda::sm90
