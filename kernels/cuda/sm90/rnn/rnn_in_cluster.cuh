#pragma once
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/sm80/rnn/rnn.cuh"
#include "kernels/cuda/sm80/rnn/rnn_products.cuh"
#include "kernels/cuda/sm90/async.cuh"
#include "kernels/cuda/sm90/rnn/rnn_plan.h"

// All rows of recurrent cells in one launch. The blocks of a cluster keep the matrix of a head in
// registers and shared memory; each has some channels and all of h, and sends what its channels
// become to the others, whose barriers count the bytes.
//
// Sums are those of sm80/rnn/rnn_by_tiles.cu to the bit: a warp has its range of h, a slab after
// the other, and the ranges are added from the first to the last. The two parts of h stand in
// columns next to each other, so that one mma serves kRnnSeqs sequences.
namespace recurve::cuda::sm90 {

static_assert(kRnnWarps == sm80::kRnnRanges && kRnnSlab == sm80::kSlab);
static_assert(kRnnSeqs * sm80::kRnnParts == sm80::kTileRows);
static_assert(kRnnSeqs * kRnnUnit == kWarpSize, "a warp ends the channels of a unit");

constexpr int kRnnTiles = 2;  // of a unit
constexpr int kRnnTileChannels = kRnnUnit / kRnnTiles;

struct RnnParams {
  int cluster, units;  // blocks; units of a block
  int seqs;            // that a cluster has at once
  int clusters;        // of a head
  int weight_bytes;    // rnn_weight_bytes()
};

// The block's part of the head, and who a thread is in it.
struct RnnBlockCoord {
  int head, rank, gates;
  int d0, units;  // the block's first channel; units that there are of its
  int warp, lane, group, quad;

  __device__ RnnBlockCoord(const RnnArgs& a, const RnnParams& params)
      : head(cluster_number() % a.H),
        rank(rank_in_cluster()),
        gates(sm80::gates_at(a)),
        d0(rank * params.units * kRnnUnit),
        units(max(0, min(params.units, (a.DH - d0) / kRnnUnit))),
        warp(static_cast<int>(threadIdx.x) / kWarpSize),
        lane(static_cast<int>(threadIdx.x) % kWarpSize),
        group(lane / 4),
        quad(lane % 4) {}
};

// The memory of a block, in this order.
template <int kSlabs>
struct RnnMemory {
  static constexpr int kSumsPitch = rnn_sums_pitch(kSlabs);
  static constexpr int kPieces = rnn_pieces(kSlabs);  // of a buffer of h
  uint4* weights;  // (tile, slab, 2, thread), of the units that are not in registers
  uint4* h;        // (2 buffers, DH / 8, sequence, part) of 8 values in bf16, zeros behind DH
  float* sums;     // (warp, sequence, channel, gate), rows of kSumsPitch

  __device__ RnnMemory(uint4* memory, const RnnParams& params)
      : weights(memory),
        h(memory + params.weight_bytes / sizeof(uint4)),
        sums(reinterpret_cast<float*>(h + 2 * kPieces)) {}

  // k: a multiple of 8. row: of sequence and part.
  __device__ uint4* piece(int buffer, int k, int row) const {
    return h + buffer * kPieces + k / 8 * sm80::kTileRows + row;
  }
  __device__ float* sum(int warp, int sequence) const {
    return sums + (warp * kRnnSeqs + sequence) * kSumsPitch;
  }
};

// The weights of a warp's range: output r of a tile is gate r % kMostGates of its channel
// r / kMostGates.
template <int kSlabs>
struct RnnWeights {
  static constexpr int kUnits = rnn_register_units(kSlabs), kTiles = kRnnTiles * kUnits;
  uint4 in_registers[kTiles][kSlabs][2];

  __device__ RnnWeights(const RnnArgs& a, const RnnBlockCoord& at, const RnnParams& params,
                        uint4* memory) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int slab = 0; slab < kSlabs; ++slab) {
        load(a, at, tile, slab, in_registers[tile][slab]);
      }
    }
    if (!in_memory(params)) return;
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int slab = 0; slab < kSlabs; ++slab) {
        uint4 w[2];
        load(a, at, kTiles + tile, slab, w);
        memory[place_of(tile, slab, 0)] = w[0];
        memory[place_of(tile, slab, 1)] = w[1];
      }
    }
  }
  // Whether some are in memory.
  __device__ static bool in_memory(const RnnParams& params) {
    return kUnits < kRnnMostUnits && params.weight_bytes > 0;
  }
  // tile: of those in memory.
  __device__ static int place_of(int tile, int slab, int half) {
    return ((tile * kSlabs + slab) * 2 + half) * kRnnThreads + static_cast<int>(threadIdx.x);
  }

 private:
  __device__ static void load(const RnnArgs& a, const RnnBlockCoord& at, int tile, int slab,
                              uint4 (&w)[2]) {
    const int k = (at.warp * kSlabs + slab) * kRnnSlab + 8 * at.quad;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int output = half * 8 + at.group, gate = output % sm80::kMostGates;
      const int d = at.d0 + tile * kRnnTileChannels + output / sm80::kMostGates;
      const int64_t row = (static_cast<int64_t>(at.head) * at.gates + gate) * a.DH + d;
      const bool there = gate < at.gates && tile < kRnnTiles * at.units && k < a.DH;
      w[half] = there ? sm80::load_weights(static_cast<const uint16_t*>(a.R.data) + row * a.DH + k)
                      : make_uint4(0, 0, 0, 0);
    }
  }
};

// Weights on their way from memory: those of two steps, a unit's slab each.
template <int kSlabs>
struct RnnComing {
  static constexpr int kSteps = rnn_register_units(kSlabs) * kSlabs;
  uint4 weights[2][kRnnTiles][2];

  __device__ void load(const RnnMemory<kSlabs>& memory, int step) {
    using Weights = RnnWeights<kSlabs>;
#pragma unroll
    for (int t = 0; t < kRnnTiles; ++t) {
      const int tile = step / kSlabs * kRnnTiles + t, slab = step % kSlabs;
      weights[step % 2][t][0] = memory.weights[Weights::place_of(tile, slab, 0)];
      weights[step % 2][t][1] = memory.weights[Weights::place_of(tile, slab, 1)];
    }
  }
};

// A warp's products of a row: its range of h with all units of the block.
template <int kSlabs>
struct RnnProducts {
  using Memory = RnnMemory<kSlabs>;
  using Weights = RnnWeights<kSlabs>;
  uint4 h[kSlabs];

  __device__ RnnProducts(const RnnBlockCoord& at, const Memory& memory, int buffer) {
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      const int k = (at.warp * kSlabs + slab) * kRnnSlab + 8 * at.quad;
      h[slab] = *memory.piece(buffer, k, at.group);
    }
  }

  // All weights are in registers: two units together, so that the tensor cores need not wait.
  __device__ void put_sums(const RnnBlockCoord& at, const Memory& memory,
                           const Weights& weights) const {
    constexpr int kTogether = (Weights::kUnits % 2 == 0 ? 2 : 1) * kRnnTiles;
#pragma unroll
    for (int tile = 0; tile < Weights::kTiles; tile += kTogether) {
      if (tile >= kRnnTiles * at.units) break;
      float sums[kTogether][4] = {};
#pragma unroll
      for (int i = 0; i < 2 * kSlabs; ++i) {
#pragma unroll
        for (int t = 0; t < kTogether; ++t) {
          const uint4(&w)[2] = weights.in_registers[tile + t][i / 2];
          sm80::add_rnn_half(sums[t], w[0], w[1], h[i / 2], i % 2);
        }
      }
#pragma unroll
      for (int t = 0; t < kTogether; ++t) put_tile(at, memory, tile + t, sums[t]);
    }
  }

  // Takes a unit of memory with each unit of registers. coming: has the weights of the first two
  // steps.
  __device__ void put_all_sums(const RnnBlockCoord& at, const Memory& memory,
                               const Weights& weights, RnnComing<kSlabs>& coming) const {
#pragma unroll
    for (int unit = 0; unit < Weights::kUnits; ++unit) {
      float sums[2][kRnnTiles][4] = {};
#pragma unroll
      for (int slab = 0; slab < kSlabs; ++slab) {
        const int step = unit * kSlabs + slab;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int t = 0; t < kRnnTiles; ++t) {
            const uint4(&w)[2] = weights.in_registers[unit * kRnnTiles + t][slab];
            sm80::add_rnn_half(sums[0][t], w[0], w[1], h[slab], half);
          }
#pragma unroll
          for (int t = 0; t < kRnnTiles; ++t) {
            const uint4(&w)[2] = coming.weights[step % 2][t];
            sm80::add_rnn_half(sums[1][t], w[0], w[1], h[slab], half);
          }
        }
        if (step + 2 < RnnComing<kSlabs>::kSteps) coming.load(memory, step + 2);
      }
#pragma unroll
      for (int t = 0; t < kRnnTiles; ++t) {
        put_tile(at, memory, unit * kRnnTiles + t, sums[0][t]);
        put_tile(at, memory, Weights::kTiles + unit * kRnnTiles + t, sums[1][t]);
      }
    }
  }

 private:
  // A lane has both parts of a sequence, of outputs lane / 4 and 8 behind it.
  __device__ static void put_tile(const RnnBlockCoord& at, const Memory& memory, int tile,
                                  const float (&sums)[4]) {
    float* to = memory.sum(at.warp, at.quad) + tile * sm80::kTileN + at.group;
    to[0] = sums[0] + sums[1];
    to[8] = sums[2] + sums[3];
  }
};

// The channel of a sequence that a thread ends in each row: warp w has unit w of the block.
struct RnnItem {
  bool there = false;  // there is such a sequence and channel
  int length = 0;
  int64_t state = 0, D = 0;  // where it is; channels of all heads
  const float* x = nullptr;  // of the next row, of the first gate
  float* y = nullptr;        // of the next row
  float bias[sm80::kMostGates] = {}, next_x[sm80::kMostGates] = {};
  float h = 0;
  sm80::RnnChannel rest = {};

  // The sequences [first, first + members).
  __device__ RnnItem(const RnnArgs& a, const RnnBlockCoord& at, int first, int members) {
    const int b = first + sequence_of(at), d = at.d0 + channel_of(at);
    there = at.warp < at.units && sequence_of(at) < members;
    if (!there) return;
    const int64_t begin = a.seqs.begin[b], channel = static_cast<int64_t>(at.head) * a.DH + d;
    length = a.seqs.begin[b + 1] - a.seqs.begin[b];
    D = static_cast<int64_t>(a.H) * a.DH;
    state = a.seqs.slot[b] * D + channel;
    x = a.x + begin * a.x_stride + channel;
    y = a.y + begin * D + channel;
    h = a.h[state];
    rest = sm80::channel_at(a, state);
    for (int gate = 0; gate < sm80::kMostGates; ++gate) {
      if (gate < at.gates && a.b != nullptr) bias[gate] = a.b[gate * D + channel];
    }
    load_x(a, at, 0);
  }
  __device__ static int sequence_of(const RnnBlockCoord& at) { return at.lane / kRnnUnit; }
  __device__ static int channel_of(const RnnBlockCoord& at) {  // of the block
    return at.warp * kRnnUnit + at.lane % kRnnUnit;
  }
  // Loads x of row t, while there is one.
  __device__ void load_x(const RnnArgs& a, const RnnBlockCoord& at, int t) {
    if (t >= length) return;
#pragma unroll
    for (int gate = 0; gate < sm80::kMostGates; ++gate) {
      if (gate < at.gates) next_x[gate] = x[gate * D];
    }
    x += a.x_stride;
  }
  template <int kSlabs>
  __device__ void advance(const RnnArgs& a, const RnnBlockCoord& at,
                          const RnnMemory<kSlabs>& memory) {
    const float* from = memory.sum(0, sequence_of(at)) + channel_of(at) * sm80::kMostGates;
    float4 sum = *reinterpret_cast<const float4*>(from);
#pragma unroll
    for (int warp = 1; warp < kRnnWarps; ++warp) {
      const float4 more =
          *reinterpret_cast<const float4*>(from + warp * kRnnSeqs * RnnMemory<kSlabs>::kSumsPitch);
      sum.x += more.x;
      sum.y += more.y;
      sum.z += more.z;
      sum.w += more.w;
    }
    const float s[] = {sum.x + bias[0], sum.y + bias[1], sum.z + bias[2], sum.w + bias[3]};
    h = sm80::next_h(a, next_x, s, h, rest);
  }
  __device__ void put_y() {
    *y = h;
    y += D;
  }
};

// Blocks hand h to each other in pieces of 16 bytes: a unit, a sequence and a part each.
struct RnnExchange {
  uint4 pieces[kRnnWarps][sm80::kTileRows];
  Barrier full[2];  // of the buffers of h
};

// 16 bytes into the shared memory of a block of the cluster, counted by its barrier.
__device__ inline void send(uint32_t to, const uint4& v, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(barrier)
      : "memory");
}

// Cuts a value of h in its parts and sends the pieces of the warp to all blocks, into the buffer.
// A lane has one piece, so that the adjacent ones of a unit leave together. Whole warps.
template <int kSlabs>
__device__ void send_h(const RnnBlockCoord& at, const RnnParams& params, float value, int members,
                       int buffer, const RnnMemory<kSlabs>& memory, RnnExchange& exchange) {
  if (at.warp >= at.units) return;
  uint32_t part[sm80::kRnnParts];
  sm80::split_rnn_pair(value, 0, part[0], part[1]);
  auto* const own = reinterpret_cast<uint16_t*>(exchange.pieces[at.warp]) +
                    RnnItem::sequence_of(at) * sm80::kRnnParts * kRnnUnit + at.lane % kRnnUnit;
#pragma unroll
  for (int p = 0; p < sm80::kRnnParts; ++p) own[p * kRnnUnit] = static_cast<uint16_t>(part[p]);
  __syncwarp();
  const int row = at.lane % sm80::kTileRows;
  if (row >= sm80::kRnnParts * members) return;
  const uint4 piece = exchange.pieces[at.warp][row];
  const uint4* const to = memory.piece(buffer, at.d0 + at.warp * kRnnUnit, row);
#pragma unroll
  for (int i = 0; i < kRnnMostBlocks * sm80::kTileRows / kWarpSize; ++i) {
    const int block = at.lane / sm80::kTileRows + i * (kWarpSize / sm80::kTileRows);
    if (block >= params.cluster) break;
    send(shared_address(to, static_cast<uint32_t>(block)), piece,
         shared_address(&exchange.full[buffer], static_cast<uint32_t>(block)));
  }
}

// h of the group's sequences as it was, into the first buffer.
template <int kSlabs>
__device__ void load_first_h(const RnnArgs& a, const RnnBlockCoord& at, int first, int members,
                             const RnnMemory<kSlabs>& memory) {
  const int eights = a.DH / 8;
  for (int i = static_cast<int>(threadIdx.x); i < members * eights; i += kRnnThreads) {
    const int sequence = i / eights, k = i % eights * 8;
    const int64_t slot = a.seqs.slot[first + sequence];
    const auto* from = reinterpret_cast<const float4*>(a.h + (slot * a.H + at.head) * a.DH + k);
    const sm80::RnnSplit h = sm80::split_rnn(from[0], from[1]);
#pragma unroll
    for (int part = 0; part < sm80::kRnnParts; ++part) {
      const int row = sequence * sm80::kRnnParts + part;
      *memory.piece(0, k, row) = h.part[part];
    }
  }
}

}  // namespace recurve::cuda::sm90
