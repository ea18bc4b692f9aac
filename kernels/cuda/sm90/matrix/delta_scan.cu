// The tiles of a sequence, one after another. A warpgroup has kColumns columns of the state of a
// head in its registers, as S^T, the columns down and the keys across. So all products of a tile
// have their left side in registers and leave their result in the order in which the next one takes
// it: no thread waits for another but where the tensor cores do. Heads of 256 keys have a second
// warpgroup for the other half of the keys: both find U, and each the outputs of half the rows, for
// which they exchange what their keys add to products with the state. Another warp has what the
// tiles need copied ahead.
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/matrix/delta_tiles.h"
#include "kernels/cuda/sm90/matrix/tile_scan.cuh"

namespace recurve::cuda::sm90 {
namespace {

using sm80::RowBlock;
using tile_scan::kColumns;
using tile_scan::kGroupThreads;
using tile_scan::kHalf;
using tile_scan::Lane;
using tile_scan::settle;
using tile_scan::wait_among_products;

// Registers of a thread where two warpgroups have a state.
constexpr int kStateRegisters = 240, kOtherRegisters = 24;

// How a block is divided for heads of so many keys.
template <int kDK>
struct Shape {
  static constexpr int kGroups = kDK > 128 ? 2 : 1, kKeys = kDK / kGroups;
  static constexpr int kStateThreads = kGroups * kGroupThreads;
  // What is left of the registers by one warp that copies is enough for one warpgroup of states.
  static constexpr int kThreads = kStateThreads + (kGroups == 1 ? kWarpSize : kGroupThreads);
  static constexpr int kStages = kGroups == 1 ? 3 : 2;  // tiles in shared memory
  static constexpr int kRows = kDeltaRows / kGroups;    // of outputs, of a warpgroup
};

// What a tile needs. Values lie as the copy engine writes them: boxes of kFloatBox columns.
template <int kDK>
struct alignas(1024) Stage {
  uint16_t k[kDeltaRows * kDK], q[kDeltaRows * kDK];
  DeltaTile tile;
  alignas(1024) float v[kDeltaRows * kColumns];
};
// What each warpgroup has for the other: kCount floats of each thread.
template <int kCount>
using Exchange = float4[2][kCount / 4][kGroupThreads];
template <int kDK>
struct Shared {
  static constexpr int kStages = Shape<kDK>::kStages;
  Stage<kDK> stages[kStages];
  std::conditional_t<Shape<kDK>::kGroups == 2, Exchange<32>, char> held;
  Barrier full[kStages], empty[kStages];
};

// Some columns of a head of a sequence.
struct Coord {
  int sequence, head, d0;
  __device__ explicit Coord(const DeltaRuleArgs& a) {
    const int columns = a.DV / kColumns, number = static_cast<int>(blockIdx.x) / columns;
    sequence = number / a.H;
    head = number % a.H;
    d0 = static_cast<int>(blockIdx.x) % columns * kColumns;
  }
  // Tile n of those of this call; L is 0 behind the last one.
  __device__ RowBlock rows(const DeltaTileArgs& a, int n) const {
    if (n >= a.tiles) return {0, 0};
    return sm80::tile_rows(a.rule.seqs, a.rule.chunk, sequence, a.first_tile + n);
  }
  __device__ int64_t column(const DeltaRuleArgs& a) const {
    return static_cast<int64_t>(head) * a.DV + d0;
  }
};

// What the thread that copies does.
template <int kDK>
__device__ void load_tiles(const DeltaTileArgs& a, const CUtensorMap& v, Shared<kDK>& s) {
  const Coord block(a.rule);
  const int key_head = block.head / (a.rule.H / a.rule.HK);
  const auto column = static_cast<int>(block.column(a.rule));
  for (int n = 0;; ++n) {
    const RowBlock rows = block.rows(a, n);
    if (rows.L == 0) return;
    const tile_scan::RingStage<Shape<kDK>::kStages> ring(n);
    Stage<kDK>& stage = s.stages[ring.index];
    Barrier* const full = &s.full[ring.index];
    if (n >= Shape<kDK>::kStages) wait(&s.empty[ring.index], ring.parity ^ 1);
    const int64_t number = static_cast<int64_t>(block.sequence) * a.tiles + n;
    constexpr uint32_t kKeyBytes = 2 * sizeof(stage.k);
    arrive_expecting(full, kKeyBytes + sizeof(stage.tile) + sizeof(stage.v));
    bulk_load(stage.k, a.keys + (number * a.rule.HK + key_head) * 2 * kDeltaRows * kDK, kKeyBytes,
              full);
    bulk_load(&stage.tile, a.weights + number * a.rule.H + block.head, sizeof(stage.tile), full);
#pragma unroll
    for (int d = 0; d < kColumns; d += kFloatBox) {
      load_box(stage.v + d * kDeltaRows, v, column + d, rows.first, full, Keep::kNormal);
    }
  }
}

// What products leave is (64 columns, 64 rows) or (64 columns, keys): register i of a thread is of
// the column lane.row() + i / 2 % 2 * 8 and the row, or key, at(i).
__device__ inline int at(const Lane& lane, int i) { return i / 4 * 8 + 2 * lane.q + i % 2; }

// The registers in bf16, as the next product has them on its left.
template <int kCount>
using Left = uint32_t[kCount / 8][4];
template <int kCount>
__device__ inline void round_left(const float (&x)[kCount], Left<kCount>& left) {
#pragma unroll
  for (int i = 0; i < kCount; i += 2) left[i / 8][i % 8 / 2] = round_bf16(x[i], x[i + 1]);
}

// d = or += left b^T: b (2 kOut rows, 2 kCount values) swizzled.
template <int kCount, int kOut>
__device__ inline void multiply_rows(float (&d)[kOut], const Left<kCount>& left, const uint16_t* b,
                                     bool adds) {
  const uint64_t right = operand(shared_address(b));
#pragma unroll
  for (int step = 0; step < kCount / 8; ++step) {
    const int x = 16 * step;
    const int there = (x / 64 * kHalf + x % 64) * static_cast<int>(sizeof(uint16_t)) >> 4;
    multiply_held(d, left[step], right + there, adds || step > 0);
  }
}

// Leaves values to the other warpgroup, waits for it, and adds what it has left.
template <int kCount>
__device__ inline void add_of_other(Exchange<kCount>& between, int group, const float* to_other,
                                    float (&sums)[kCount]) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    between[group][i / 4][thread] =
        make_float4(to_other[i], to_other[i + 1], to_other[i + 2], to_other[i + 3]);
  }
  tile_scan::sync_group<2 * kGroupThreads>(0);
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 four = between[group ^ 1][i / 4][thread];
    sums[i] += four.x;
    sums[i + 1] += four.y;
    sums[i + 2] += four.z;
    sums[i + 3] += four.w;
  }
}

// Whether any of a warp's values is no number, or infinite.
__device__ inline bool any_spoilt(const Left<32>& left) {
  uint32_t zeros[4] = {};
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(zeros[i]) : "r"(left[step][i]), "r"(0));
    }
  }
  // Zeros of either sign, unless one was met.
  const uint32_t all = (zeros[0] | zeros[1] | zeros[2] | zeros[3]) & 0x7fff7fffu;
  return __any_sync(0xffffffffu, all != 0);
}

// The first rows of a thread's columns with what is no number, or infinite in bf16. That of a later
// row must not meet the zeros that M and P have for it.
struct Spoilt {
  int first[2] = {kDeltaRows, kDeltaRows};

  // Of the warp's values, which share columns among four lanes.
  __device__ void find(const Lane& lane, const float (&x)[32]) {
    constexpr float kMost = 0x1.ffp127f;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      int& row = first[i / 2 % 2];
      if (!(fabsf(x[i]) < kMost)) row = min(row, at(lane, i));
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      first[half] = min(first[half], __shfl_xor_sync(0xffffffffu, first[half], 1));
      first[half] = min(first[half], __shfl_xor_sync(0xffffffffu, first[half], 2));
    }
  }
  // begin: the row of the first value.
  template <int kCount>
  __device__ void put(const Lane& lane, float value, float (&x)[kCount], int begin = 0) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (begin + at(lane, i) >= first[i / 2 % 2]) x[i] = value;
    }
  }
};

// What is missing of the rows' values: x = v - e k S.
__device__ inline void load_values(const float* values, const Lane& lane, float (&v)[32]) {
  using Values = tile_scan::Stage<64>;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    v[i] = values[Values::value_at(at(lane, i), lane.row() + i / 2 % 2 * 8)];
  }
}
__device__ inline void find_missing(const DeltaTile& tile, const RowBlock& rows, const Lane& lane,
                                    const float (&v)[32], float (&x)[32]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) x[i] = fmaf(-tile.e[at(lane, i)], x[i], v[i]);
  if (rows.L == kDeltaRows) return;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    if (at(lane, i) >= rows.L) x[i] = 0;  // what was loaded is another sequence's
  }
}

// Of rows of a tile from `begin` on.
template <int kCount>
__device__ inline void put_outputs(const DeltaRuleArgs& a, const RowBlock& rows, int begin,
                                   int64_t column, const Lane& lane, const float (&o)[kCount]) {
  const int64_t stride = static_cast<int64_t>(a.H) * a.DV;
  float* const to = a.o + (rows.first + begin) * stride + column + lane.row();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int t = at(lane, i);
    if (begin + t < rows.L) to[t * stride + i / 2 % 2 * 8] = o[i];
  }
}

template <typename T, int kDK>
__device__ void bring_state(const DeltaTileArgs& a, Shared<kDK>& s, int group) {
  using S = Shape<kDK>;
  constexpr int kCount = S::kKeys / 2, kOut = S::kRows / 2;  // registers of the state, of outputs
  const Coord block(a.rule);
  const Lane lane;
  RowBlock rows = block.rows(a, 0);
  if (rows.L == 0) return;
  const int64_t first_key =
      (int64_t{a.rule.seqs.slot[block.sequence]} * a.rule.H + block.head) * kDK + group * S::kKeys;
  T* const kept = sm80::values_of<T>(a.rule.S) + first_key * a.rule.DV + block.d0 + lane.row();
  const int64_t column = block.column(a.rule);
  const int of_chunk = a.rule.chunk / kDeltaRows, first_row = group * S::kRows;
  const int keys_at = group * (S::kKeys / 64) * kHalf;
  float state[kCount], u[32];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    state[i] = sm80::value_of(kept[int64_t{at(lane, i)} * a.rule.DV + i / 2 % 2 * 8]);
  }
  Left<kCount> rounded;
  round_left(state, rounded);
  wait(&s.full[0], 0);
  begin_products();
  multiply_rows<kCount>(u, rounded, s.stages[0].k + keys_at, false);
  commit_products();
  for (int n = 0; rows.L > 0; ++n) {
    const tile_scan::RingStage<S::kStages> ring(n), following(n + 1);
    Stage<kDK>& stage = s.stages[ring.index];
    float v[32], read[32], o[kOut];
    load_values(stage.v, lane, v);
    wait_for_products<0>();
    settle(u);
    if constexpr (S::kGroups == 2) add_of_other<32>(s.held, group, u, u);
    find_missing(stage.tile, rows, lane, v, u);
    Left<32> left;
    round_left(u, left);
    Spoilt spoilt;
    bool any = any_spoilt(left);
    if (any) {
      spoilt.find(lane, u);
      spoilt.put(lane, 0, u);
      round_left(u, left);
    }
    begin_products();
    multiply_rows<32>(u, left, stage.tile.M, false);
    commit_products();
    multiply_rows<kCount>(read, rounded, stage.q + keys_at, false);
    commit_products();
    const float F = stage.tile.F;
#pragma unroll
    for (float& value : state) value *= F;
    wait_for_products<1>();
    settle(u);
    if (any) spoilt.put(lane, NAN, u);
    Left<32> weighted;
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      const float2 w = *reinterpret_cast<const float2*>(&stage.tile.w[at(lane, i)]);
      weighted[i / 8][i % 8 / 2] = round_bf16(w.x * u[i], w.y * u[i + 1]);
    }
    begin_products();
    const uint64_t across =
        operand_across(shared_address(stage.k + keys_at), kHalf * sizeof(uint16_t));
#pragma unroll
    for (int step = 0; step < kDeltaRows / 16; ++step) {
      multiply(state, weighted[step], across + step * (2048 >> 4), 1);
    }
    commit_products();
    round_left(u, left);
    if (any_spoilt(left)) {
      any = true;
      spoilt.find(lane, u);
      spoilt.put(lane, 0, u);
      round_left(u, left);
    }
    wait_for_products<1>();
    settle(read);
    if constexpr (S::kGroups == 2) {
      float other[kOut];
#pragma unroll
      for (int i = 0; i < kOut; ++i) {
        o[i] = group == 0 ? read[i] : read[kOut + i];
        other[i] = group == 0 ? read[kOut + i] : read[i];
      }
      // Both have loaded the values that lie there.
      add_of_other<kOut>(reinterpret_cast<Exchange<kOut>&>(stage.v), group, other, o);
      show_to_copies();
    } else {
#pragma unroll
      for (int i = 0; i < kOut; ++i) o[i] = read[i];
    }
#pragma unroll
    for (int i = 0; i < kOut; ++i) o[i] *= stage.tile.read[first_row + at(lane, i)];
    begin_products();
    multiply_rows<32>(o, left, stage.tile.P + first_row * kDeltaRows, true);
    commit_products();
    wait_for_products<1>();
    settle(state);
    if (!std::is_same_v<T, float> && (a.first_tile + n + 1) % of_chunk == 0) {
#pragma unroll
      for (float& value : state) value = sm80::rounded<T>(value);
    }
    round_left(state, rounded);
    const RowBlock these = rows;
    rows = block.rows(a, n + 1);
    // Behind the last tile the product is of what lies there, and nothing reads it.
    if (rows.L > 0) wait_among_products(&s.full[following.index], following.parity);
    begin_products();
    multiply_rows<kCount>(u, rounded, s.stages[following.index].k + keys_at, false);
    commit_products();
    wait_for_products<1>();
    settle(o);
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) arrive(&s.empty[ring.index]);
    if (any) spoilt.put(lane, NAN, o, first_row);
    put_outputs(a.rule, these, first_row, column, lane, o);
  }
  wait_for_products<0>();
  settle(u);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    kept[int64_t{at(lane, i)} * a.rule.DV + i / 2 % 2 * 8] = sm80::kept_as<T>(state[i]);
  }
}

template <typename T, int kDK>
__global__ void __launch_bounds__(Shape<kDK>::kThreads, 1)
    scan_kernel(const __grid_constant__ CUtensorMap v, const __grid_constant__ DeltaTileArgs a) {
  using S = Shape<kDK>;
  extern __shared__ __align__(1024) std::byte scan_memory[];
  Shared<kDK>& s = *reinterpret_cast<Shared<kDK>*>(scan_memory);
  // This is the same for a whole warp, which the compiler has to see.
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
  if (threadIdx.x == S::kStateThreads) {
    prefetch_map(v);
    for (int i = 0; i < S::kStages; ++i) {
      init_barrier(&s.full[i], 1);
      init_barrier(&s.empty[i], S::kStateThreads / kWarpSize);
    }
    publish_barriers();
  }
  __syncthreads();
  wait_for_previous();
  // Now, and not before: see weights_kernel().
  let_next_start();
  if (warp < S::kStateThreads / kWarpSize) {
    if constexpr (S::kGroups == 2) {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kStateRegisters));
    }
    bring_state<T>(a, s, S::kGroups == 1 ? 0 : warp / (kGroupThreads / kWarpSize));
  } else {
    if constexpr (S::kGroups == 2) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kOtherRegisters));
    }
    if (threadIdx.x == S::kStateThreads) load_tiles(a, v, s);
  }
}

template <typename T, int kDK>
void launch(const DeltaTileArgs& args, Stream& stream) {
  const auto kernel = scan_kernel<T, kDK>;
  const DeltaRuleArgs& a = args.rule;
  use(stream);
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(sizeof(Shared<kDK>))),
                  "delta_rule, tiles");
  const CUtensorMap v = tensor_map(a.v, a.seqs.rows, a.H * a.DV, a.v_stride, kDeltaRows);
  launch_early(stream, "delta_rule, tiles", kernel,
               {.grid = static_cast<unsigned>(a.seqs.num_seqs * a.H * (a.DV / kColumns)),
                .threads = Shape<kDK>::kThreads,
                .shared = sizeof(Shared<kDK>)},
               v, args);
}

}  // namespace

void scan_delta_tiles(const DeltaTileArgs& args, Stream& stream) {
  sm80::with_state_type(args.rule.S.dtype, [&](auto element) {
    using T = decltype(element);
    if (args.rule.DK == 64) return launch<T, 64>(args, stream);
    if (args.rule.DK == 128) return launch<T, 128>(args, stream);
    launch<T, 256>(args, stream);
  });
}

}  // namespace recurve::cuda::sm90
