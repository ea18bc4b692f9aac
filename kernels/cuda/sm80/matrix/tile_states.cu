// The states of a sequence, tile after tile: kept in fp32 in registers, and left in bf16 before
// each.
#include <algorithm>
#include <cstddef>

#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/sm80/vector.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kWarpColumns = 16;  // of S, a warp

// How a block's columns of S are divided between its warps: a warp has kWarpColumns of them, and of
// these kKeys of the keys, in its registers.
template <int kDKeys, int kWarpsAside>
struct Shape {
  static constexpr int kDK = kDKeys, kAside = kWarpsAside;
  static constexpr int kKeys = kDK < 64 ? kDK : 64, kParts = kDK / kKeys;
  static constexpr int kThreads = kAside * kParts * kWarpSize;
  static constexpr int kColumns = kWarpColumns * kAside;
};

// What a block needs of a tile. It comes twice: for this one and the next.
template <typename S>
struct Stage {
  uint16_t k[kTileRows * S::kDK];
  float v[kTileRows * kValuePitch<S::kColumns>];
  float w[kTileRows];
  float F[4];  // the first alone
};
static_assert(offsetof(TileWeights, F) % 16 == 0 && offsetof(TileWeights, w) % 16 == 0);

// One head of one sequence, and some columns of it.
struct BlockCoord {
  int sequence, head, d0;
};
__device__ int64_t head_of_tile(const TileChunkArgs& a, const BlockCoord& at, int tile) {
  return (static_cast<int64_t>(at.sequence) * a.tiles + tile) * a.H + at.head;
}

// Has a tile on its way.
template <typename S>
__device__ void load_tile(const TileChunkArgs& a, Stage<S>& stage, const BlockCoord& at, int tile,
                          const RowBlock& rows) {
  if (rows.L > 0) {
    const int64_t number = static_cast<int64_t>(at.sequence) * a.tiles + tile;
    const int64_t group = number * a.groups() + at.head / a.q.heads;
    copy_all<sizeof(stage.k), S::kThreads>(stage.k, a.scratch.k + group * kTileRows * S::kDK);
    const TileWeights& weights = a.scratch.weights[number * a.H + at.head];
    copy_all<sizeof(stage.w), S::kThreads>(stage.w, weights.w);
    copy_all<sizeof(stage.F), S::kThreads>(stage.F, &weights.F);
    copy_values<S::kColumns, S::kThreads>(stage.v, a.v, rows,
                                          static_cast<int64_t>(at.head) * a.DV + at.d0);
  }
  commit_copies();
}

// Where a warp stands, and a lane in its tiles.
template <typename S>
struct Lane {
  int x0, d0;  // the warp's first key, and its first column in the block
  int g, q;
  __device__ Lane()
      : x0(static_cast<int>(threadIdx.x) / kWarpSize / S::kAside * S::kKeys),
        d0(static_cast<int>(threadIdx.x) / kWarpSize % S::kAside * kWarpColumns),
        g(threadIdx.x % kWarpSize / 4),
        q(threadIdx.x % 4) {}
};

// A 4 by 4 transpose: four lanes have four values each, and each lane gets its fourth of all of
// them.
__device__ uint4 transpose_in_quad(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  constexpr unsigned kAll = 0xffffffffu;
  const bool odd = threadIdx.x % 2 != 0, upper = threadIdx.x % 4 >= 2;
  const uint32_t ab = __shfl_xor_sync(kAll, odd ? a : b, 1),
                 cd = __shfl_xor_sync(kAll, odd ? c : d, 1);
  const uint32_t a2 = odd ? ab : a, b2 = odd ? b : ab, c2 = odd ? cd : c, d2 = odd ? d : cd;
  const uint32_t first = __shfl_xor_sync(kAll, upper ? a2 : c2, 2);
  const uint32_t second = __shfl_xor_sync(kAll, upper ? b2 : d2, 2);
  return upper ? make_uint4(first, second, c2, d2) : make_uint4(a2, b2, first, second);
}

// A warp's part of S, transposed: 16 columns by 8 keys, as products leave them.
template <typename S>
struct State {
  float at[S::kKeys / 8][4];

  // Calls visit(two values at neighbouring keys, place of the first in the head's state, distance
  // to the second).
  template <typename Visit>
  __device__ void for_each(const TileChunkArgs& a, const BlockCoord& place, const Lane<S>& lane,
                           Visit visit) {
#pragma unroll
    for (int tile = 0; tile < S::kKeys / 8; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t x = lane.x0 + 8 * tile + 2 * lane.q;
        const int64_t d = place.d0 + lane.d0 + lane.g + 8 * half;
        visit(at[tile][2 * half], at[tile][2 * half + 1],
              a.keys_inner ? d * S::kDK + x : x * a.DV + d, a.keys_inner ? 1 : a.DV);
      }
    }
  }

  // to: (DV, DK), swizzled as piece_at() says. Rows 8 further on are swizzled alike.
  __device__ void leave(uint16_t* to, const BlockCoord& place, const Lane<S>& lane) const {
    const int turn = lane.q ^ (S::kDK >= 64 ? lane.g : lane.g / 2);
    uint16_t* row = to + static_cast<int64_t>(place.d0 + lane.d0 + lane.g) * S::kDK + lane.x0;
#pragma unroll
    for (int four = 0; four < S::kKeys / 32; ++four) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&tile)[4] = at[4 * four + i];
          pairs[i] = round_bf16(tile[2 * half], tile[2 * half + 1]);
        }
        const uint4 piece = transpose_in_quad(pairs[0], pairs[1], pairs[2], pairs[3]);
        const int d = place.d0 + lane.d0 + lane.g + 8 * half;
        *reinterpret_cast<uint4*>(to + piece_at(d, lane.x0 / 8 + 4 * four + lane.q, S::kDK)) =
            piece;
      }
    }
  }

  __device__ void advance(const Stage<S>& stage, const Lane<S>& lane) {
    const TileMatrix<S::kDK> K(stage.k);
    const float F = stage.F[0];
#pragma unroll
    for (int tile = 0; tile < S::kKeys / 8; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) at[tile][i] *= F;
    }
#pragma unroll
    for (int j = 0; j < kTileRows; j += 16) {
      uint32_t v[4];
      load_values<S::kColumns>(v, stage.v, j, lane.d0, stage.w);
#pragma unroll
      for (int x = 0; x < S::kKeys; x += 16) {
        uint32_t right[4];
        K.load_right_as_it_lies(right, j, lane.x0 + x);
        multiply_bf16(at[x / 8], v, right[0], right[1]);
        multiply_bf16(at[x / 8 + 1], v, right[2], right[3]);
      }
    }
  }

  template <typename T>
  __device__ void round() {
#pragma unroll
    for (int tile = 0; tile < S::kKeys / 8; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) at[tile][i] = rounded<T>(at[tile][i]);
    }
  }
};

// A thread's values of z, which the first block of a head brings from tile to tile.
template <typename S>
struct Normaliser {
  static constexpr int kEach = (S::kDK + S::kThreads - 1) / S::kThreads;
  float z[kEach];

  // Calls visit(value, key).
  template <typename Visit>
  __device__ void for_each(Visit visit) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int x = static_cast<int>(threadIdx.x) + i * S::kThreads;
      if (x < S::kDK) visit(z[i], x);
    }
  }
};

// A block: some columns of S of one head of one sequence.
template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads) tile_states_kernel(TileChunkArgs a) {
  extern __shared__ float4 states_memory[];
  auto* stages = reinterpret_cast<Stage<S>*>(states_memory);
  let_next_start();
  wait_for_previous();
  const int columns = a.DV / S::kColumns;
  const int head = static_cast<int>(blockIdx.x) / columns;
  const BlockCoord at{head / a.H, head % a.H, static_cast<int>(blockIdx.x) % columns * S::kColumns};
  const int end = a.part_first + a.part_tiles;
  const auto rows_at = [&](int tile) {
    return tile < end ? tile_rows(a.seqs, a.chunk, at.sequence, a.first_tile + tile)
                      : RowBlock{0, 0};
  };
  int tile = a.part_first;
  RowBlock rows = rows_at(tile);
  if (rows.L == 0) return;
  load_tile<S>(a, stages[tile % 2], at, tile, rows);
  const Lane<S> lane;
  const int64_t kept_head = static_cast<int64_t>(a.seqs.slot[at.sequence]) * a.H + at.head;
  T* const kept = values_of<T>(a.S) + kept_head * S::kDK * a.DV;
  State<S> state;
  state.for_each(a, at, lane, [&](float& first, float& second, int64_t place, int64_t step) {
    first = value_of(kept[place]);
    second = value_of(kept[place + step]);
  });
  const bool normalises = a.z != nullptr && at.d0 == 0;
  float* const kept_z = a.z + kept_head * S::kDK;
  Normaliser<S> normaliser;
  if (normalises) normaliser.for_each([&](float& z, int x) { z = kept_z[x]; });

  const int tiles_of_chunk = blocks_of_chunk<kTileRows>(a.chunk);
  for (; rows.L > 0; ++tile) {
    const RowBlock next = rows_at(tile + 1);
    const Stage<S>& stage = stages[tile % 2];
    wait_for_copies();
    __syncthreads();  // and all are done with the other stage
    load_tile<S>(a, stages[(tile + 1) % 2], at, tile + 1, next);
    const int64_t number = head_of_tile(a, at, tile);
    const int64_t in_part = static_cast<int64_t>(at.sequence) * a.part_tiles + tile - a.part_first;
    state.leave(a.scratch.S + (in_part * a.H + at.head) * a.DV * S::kDK, at, lane);
    if (normalises) {
      normaliser.for_each([&](float& z, int x) {
        a.scratch.z[number * S::kDK + x] = z;
        z = fmaf(stage.F[0], z, a.scratch.z_added[number * S::kDK + x]);
      });
    }
    state.advance(stage, lane);
    if ((a.first_tile + tile + 1) % tiles_of_chunk == 0) state.template round<T>();
    rows = next;
  }
  state.for_each(a, at, lane, [&](float first, float second, int64_t place, int64_t step) {
    kept[place] = kept_as<T>(first);
    kept[place + step] = kept_as<T>(second);
  });
  if (!normalises) return;
  normaliser.for_each([&](float z, int x) { kept_z[x] = z; });
  if (a.m == nullptr || threadIdx.x != 0) return;
  a.m[kept_head] = a.scratch.m_after[head_of_tile(a, at, tile - 1)];
}

template <typename T, typename S>
void launch_shape(const TileChunkArgs& args, Stream& stream) {
  const auto kernel = tile_states_kernel<T, S>;
  constexpr size_t kBytes = 2 * sizeof(Stage<S>);
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(kBytes)),
                  "tiles, shared memory");
  const int columns = args.DV / S::kColumns;
  launch_early(stream, "tiles, states", kernel,
               {.grid = static_cast<unsigned>(args.seqs.num_seqs * args.H * columns),
                .threads = S::kThreads,
                .shared = kBytes},
               args);
}

// More columns a block read fewer bytes, fewer columns fill more multiprocessors.
template <typename T, int kDK>
void launch_keys(const TileChunkArgs& args, Stream& stream) {
  using Wide = Shape<kDK, 4>;
  const int enough = static_cast<CudaStream&>(stream).multiprocessors();
  if (args.seqs.num_seqs * args.H * (args.DV / Wide::kColumns) >= enough) {
    return launch_shape<T, Wide>(args, stream);
  }
  launch_shape<T, Shape<kDK, 2>>(args, stream);
}

template <typename T>
void launch(const TileChunkArgs& args, Stream& stream) {
  switch (args.DK) {
    case 32:
      return launch_keys<T, 32>(args, stream);
    case 64:
      return launch_keys<T, 64>(args, stream);
    case 128:
      return launch_keys<T, 128>(args, stream);
    default:
      return launch_keys<T, 256>(args, stream);
  }
}

size_t rounded_up(size_t bytes) { return (bytes + 15) / 16 * 16; }

// Calls take(array, values of it for a tile) for each array of scratch memory but the states.
template <typename Take>
void for_each_array(const TileChunkArgs& a, TileScratch& s, Take take) {
  const auto groups = static_cast<size_t>(a.groups()), heads = static_cast<size_t>(a.H);
  const auto keys = static_cast<size_t>(a.DK);
  take(s.q, groups * kTileRows * keys);
  take(s.k, groups * kTileRows * keys);
  take(s.products, groups * kTileRows * kTileRows);
  take(s.weights, heads);
  if (a.z == nullptr) return;
  take(s.z_added, heads * keys);
  take(s.z, heads * keys);
  take(s.changes, 2 * heads);
  take(s.m_after, heads);
}

// Bytes of a tile, for all heads: of its states here, and of all else below.
size_t state_bytes(const TileChunkArgs& a) {
  return sizeof(uint16_t) * static_cast<size_t>(a.H) * static_cast<size_t>(a.DK) *
         static_cast<size_t>(a.DV);
}
size_t tile_bytes(const TileChunkArgs& a) {
  TileScratch s{};
  size_t bytes = 0;
  for_each_array(a, s,
                 [&]<typename E>(E*&, size_t values) { bytes += rounded_up(values * sizeof(E)); });
  return bytes;
}

// Bytes of the states of a part. More of them leave the L2 cache before outputs are made of them,
// and fewer leave less to do between the beginnings and ends of two kernels.
constexpr size_t kPartBytes = size_t{40} << 20;

}  // namespace

TileWave tile_wave(const TileChunkArgs& a, int sequences, size_t scratch_bytes) {
  const auto of_chunk = static_cast<size_t>(blocks_of_chunk<kTileRows>(a.chunk));
  const auto count = static_cast<size_t>(sequences);
  const auto whole_chunks = [&](size_t bytes, size_t each) {
    return bytes / (each * count) / of_chunk * of_chunk;
  };
  const size_t total = static_cast<size_t>(blocks_of_sequence<kTileRows>(a.seqs.max_len, a.chunk));
  // Each part has about as many.
  const size_t most = std::max(whole_chunks(kPartBytes, state_bytes(a)), of_chunk);
  const size_t parts = ceil_div(total, most);
  const size_t part = ceil_div(total, parts * of_chunk) * of_chunk;
  const size_t states = count * part * state_bytes(a);
  const size_t tiles =
      states < scratch_bytes ? whole_chunks(scratch_bytes - states, tile_bytes(a)) : 0;
  return {static_cast<int>(tiles), static_cast<int>(part)};
}

TileScratch lay_out_tiles(const TileChunkArgs& a, std::span<std::byte> memory) {
  TileScratch s{};
  s.part = a.DK;
  std::byte* at = memory.data();
  const auto sequences = static_cast<size_t>(a.seqs.num_seqs);
  const size_t tiles = sequences * static_cast<size_t>(a.tiles);
  for_each_array(a, s, [&]<typename E>(E*& array, size_t values) {
    array = reinterpret_cast<E*>(at);
    at += rounded_up(tiles * values * sizeof(E));
  });
  s.S = reinterpret_cast<uint16_t*>(at);
  return s;
}

bool tiles_take(const TileChunkArgs& a, Stream& stream) {
  constexpr int kBlockColumns = 64;                    // of the outputs' pass
  constexpr size_t kSharedMemory = size_t{106} << 10;  // of the largest blocks
  const bool keys = a.DK == 32 || a.DK == 64 || a.DK == 128 || a.DK == 256;
  const bool gates = a.gate.data == nullptr || whole_rows(a.gate);
  const bool whole = whole_rows(a.q) && whole_rows(a.k) && whole_rows(a.v) && gates &&
                     reinterpret_cast<uintptr_t>(a.o) % 16 == 0;
  if (!keys || a.DV % kBlockColumns != 0 || a.chunk % kTileRows != 0 || !whole) return false;
  TileChunkArgs longest = a;  // the length of a prompt may not decide
  longest.seqs.max_len = 1 << 20;
  return most_shared_memory("tiles, shared memory") >= kSharedMemory &&
         tile_wave(longest, 1, static_cast<CudaStream&>(stream).scratch().size()).tiles > 0;
}

void tile_states(const TileChunkArgs& args, Stream& stream) {
  with_state_type(args.S.dtype, [&](auto element) { launch<decltype(element)>(args, stream); });
}

}  // namespace recurve::cuda::sm80
