#pragma once
#include <algorithm>

#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/causal_conv1d.cuh"
#include "kernels/cuda/sm90/async.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

// y = x W^T with bf16 weights, on Hopper's tensor cores, at the speed of memory for few rows.
//
// A tile is some rows of W and up to 256 rows of x. Boxes of both pass through a ring of stages in
// shared memory, filled by one warp. A product has 64 rows of one side and up to 256 columns, which
// are rows of the other. Up to 128 rows of x are the columns, so 8 of them cost no more than one
// does; beyond that the rows of W are, in wide tiles.
//
// A row's result has the same bits whatever the rows beside it and however high the tiles are: an
// element of a product is summed alone, in the order of K; into how many pieces K is cut follows
// from the shape of W alone, and the pieces are added by pairs, then the pairs and so on.
namespace recurve::cuda::sm90 {

constexpr int kBoxK = 64;             // of K, a stage
constexpr int kBoxBytes = 2 * kBoxK;  // of a row, in a box
constexpr int kGroupM = 64;           // rows of a product: of W or, in wide tilings, of x
constexpr int kGroupThreads = 128;    // of a warpgroup

// What a kernel is made for: tiles of up to 64 Groups rows of W by up to Rows rows of x, Blocks of
// them on one multiprocessor. A block makes up to kMostTurns pieces of K in turn, where there are
// registers for as many sums: they need not go from block to block.
template <int Groups, int Rows, int Blocks>
struct Tiling {
  static constexpr int kGroups = Groups, kRows = Rows, kBlocks = Blocks;
  static constexpr int kTileM = kGroups * kGroupM;
  static constexpr int kComputing = kGroups * kGroupThreads;
  static constexpr int kThreads = kComputing + kWarpSize;
  static constexpr bool kWide = false;
  static constexpr int kMostTurns = Groups <= 2 && Blocks == 1 && Rows > 32 ? 2 : 1;
};

// For many rows: tiles of up to TileM rows of W by up to Rows rows of x. The rows of W are the
// columns of the products, so tiles can have the height that divides a layer best among all
// multiprocessors.
template <int TileM, int Rows>
struct WideTiling {
  static constexpr int kGroups = 2, kRows = Rows, kBlocks = 1;
  static constexpr int kTileM = TileM;
  static constexpr int kComputing = kGroups * kGroupThreads;
  static constexpr bool kWide = true;
  static constexpr int kMostTurns = Rows > 128 ? 1 : TileM > 128 ? 2 : 4;
  // The sums need more registers than an even share: a third group, of which one thread has work,
  // gives up its own.
  static constexpr int kThreads = kComputing + kGroupThreads;
  static constexpr int kRegisters = 240, kLoadRegisters = 24;
};

// What a launch knows beside the tensor maps. A tile has two boxes of rows of W.
struct Task {
  int rows;
  int outputs;
  int stages;           // of the ring
  int box_rows;         // of W; a multiple of 4
  int second;           // where the second box begins in the tile's memory: row, a multiple of 8
  int tile_step;        // rows of W from the first box of a tile to that of the next tile
  int box_offset;       // and from a tile's first box to its second
  int x_rows;           // of a tile; a multiple of 8
  int boxes;            // of K
  int piece_boxes;      // of them, in a piece of K
  int turns;            // pieces that a block makes
  int parts;            // of K, each made by a block: those of one tile are side by side
  int sharers;          // tiles of a cluster, with the same rows of W: 1, or in wide tilings 2
  bool swiglu, vector;  // vector: rows of y, bias and residual begin at multiples of 16 bytes
  float soft_cap;
  const float* bias;
  const float* residual;
  float* y;
  uint16_t* y_bf16;  // instead of y, or null
  // Of the outputs from conv_first on, in place of them; no state: none. Each row is a sequence.
  CausalConv1dArgs conv;
  int conv_first;

  // Of a stage.
  __host__ __device__ int W_bytes() const { return 2 * second * kBoxBytes; }
  __host__ __device__ int x_bytes() const { return x_rows * kBoxBytes; }

  __host__ __device__ int cluster() const { return parts * sharers; }  // blocks
};

constexpr int kMostStages = 16;
struct Barriers {
  Barrier full[kMostStages], empty[kMostStages];
};

// A block's memory: the barriers, then a ring of stages, each with W and x. At its end the sums
// take the ring's place.
template <typename T>
struct Shared {
  // The stores of a warp meet no bank twice.
  using Sums = float[T::kRows][T::kTileM + (T::kWide ? 8 : 4)];
  Barriers& barriers;
  std::byte* ring;
  int stage_bytes, W_bytes;

  __device__ Shared(std::byte* memory, const Task& task)
      : barriers(*reinterpret_cast<Barriers*>(memory)),
        ring(memory + kRing),
        stage_bytes(task.W_bytes() + task.x_bytes()),
        W_bytes(task.W_bytes()) {}
  __device__ std::byte* W(int stage) const { return ring + stage * stage_bytes; }
  __device__ std::byte* x(int stage) const { return W(stage) + W_bytes; }
  __device__ Sums& sums() const { return *reinterpret_cast<Sums*>(ring); }

  static constexpr int kRing = 1024;  // where the ring begins
  static_assert(sizeof(Barriers) <= kRing);
};

// The stages in turn: which one, and how often modulo 2 the ring has been gone through.
struct Turn {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next(int stages) {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

// Which boxes of K this block has, and which rows.
struct Place {
  int first_box, boxes;  // of K
  int W_row;             // of the tile's first box
  int x_row;
  int part;        // of K
  int first_rank;  // in the cluster: of the block with the tile's first part
};
template <typename T>
__device__ Place place_of(const Task& task) {
  const int cluster = T::kWide ? task.cluster() : task.parts;
  const int rank = blockIdx.x % cluster, tile = blockIdx.x / cluster;
  const int part = rank % task.parts, sharer = T::kWide ? rank / task.parts : 0;
  const int each = task.piece_boxes * task.turns;
  return {.first_box = part * each,
          .boxes = max(0, min(each, task.boxes - part * each)),
          .W_row = tile * task.tile_step,
          .x_row = static_cast<int>(blockIdx.y * task.sharers + sharer) * task.x_rows,
          .part = part,
          .first_rank = sharer * task.parts};
}

// One thread. The weights do not wait for the kernel before this one. Two blocks that share them
// load a box each, for both.
template <typename T>
__device__ void load(const Shared<T>& shared, const CUtensorMap& W, const CUtensorMap& x,
                     const Task& task, const Place& place) {
  // With several tiles of rows each reads the weights.
  const Keep keep = gridDim.y == 1 ? Keep::kFirstOut : Keep::kNormal;
  const uint32_t bytes = 2 * task.box_rows * kBoxBytes + task.x_bytes();
  const auto load_weights = [&](int i, int stage) {
    Barrier* full = &shared.barriers.full[stage];
    const int k = (place.first_box + i) * kBoxK;
    arrive_expecting(full, bytes);
    if (T::kWide && task.sharers == 2) {
      const bool second = place.first_rank > 0;
      load_box(shared.W(stage) + (second ? task.second * kBoxBytes : 0), W, k,
               place.W_row + (second ? task.box_offset : 0), full, keep,
               static_cast<uint16_t>((1 | 1 << task.parts) << place.part));
      return;
    }
    load_box(shared.W(stage), W, k, place.W_row, full, keep);
    load_box(shared.W(stage) + task.second * kBoxBytes, W, k, place.W_row + task.box_offset, full,
             keep);
  };
  const auto load_rows = [&](int i, int stage) {
    load_box(shared.x(stage), x, (place.first_box + i) * kBoxK, place.x_row,
             &shared.barriers.full[stage], Keep::kNormal);
  };
  const int ahead = min(task.stages, place.boxes);
  for (int i = 0; i < ahead; ++i) load_weights(i, i);
  wait_for_previous();
  for (int i = 0; i < ahead; ++i) load_rows(i, i);
  Turn turn;
  for (int i = task.stages; i < place.boxes; ++i, turn.next(task.stages)) {
    wait(&shared.barriers.empty[turn.stage], turn.parity);
    load_weights(i, turn.stage);
    load_rows(i, turn.stage);
  }
}

// The sums of one warpgroup: 64 rows of W by kRows rows of x or, in wide tilings, its share of the
// rows of x by kTileM rows of W.
template <typename T>
struct Accumulator {
  static constexpr int kColumns = T::kWide ? T::kTileM : T::kRows;
  static constexpr int kParts = T::kWide ? T::kRows / (T::kGroups * kGroupM) : 1;
  float parts[kParts][kColumns / 2];

  // first: of the sums; what was in them before does not count.
  __device__ void add(const std::byte* W, const std::byte* x, int group, bool first) {
    const std::byte* wide = (T::kWide ? x : W) + group * kParts * kGroupM * kBoxBytes;
    const uint64_t a = operand(shared_address(wide));
    const uint64_t b = operand(shared_address(T::kWide ? W : x));
#pragma unroll
    for (int step = 0; step < kBoxK / 16; ++step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        multiply(parts[part], a + 2 * step + part * (kGroupM * kBoxBytes >> 4), b + 2 * step,
                 !first || step > 0);
      }
    }
  }

  __device__ void operator+=(const Accumulator& other) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) parts[part][i] += other.parts[part][i];
    }
  }

  // The layout of d: PTX ISA, wgmma.mma_async.m64nNk16.
  template <typename Sums>
  __device__ void store(Sums& sums, int group) const {
    const int warp = threadIdx.x % kGroupThreads / kWarpSize, lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int row = (group * kParts + part) * kGroupM + warp * 16 + lane / 4;
      const int column = lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < kColumns / 2; i += 2) {
        const int m = row + i % 4 / 2 * 8, n = column + i / 4 * 8;
        const float* two = &parts[part][i];
        if constexpr (T::kWide) {
          *reinterpret_cast<float2*>(&sums[m][n]) = make_float2(two[0], two[1]);
        } else {
          sums[n][m] = two[0];
          sums[n + 1][m] = two[1];
        }
      }
    }
  }
};

template <typename T>
__device__ void sync_computing() {
  asm volatile("bar.sync 1, %0;" ::"n"(T::kComputing) : "memory");
}

// A warpgroup. Of rows that the tile does not have it sums up whatever lies there.
template <typename T>
__device__ void compute(const Shared<T>& shared, const Task& task, const Place& place, int group) {
  const int lane = threadIdx.x % kWarpSize;
  const int sharer = (place.first_rank + task.parts) % task.cluster() + place.part;
  Turn turn, done;
  const auto release = [&] {
    Barrier* empty = &shared.barriers.empty[done.stage];
    if (lane == 0) arrive(empty);
    if (T::kWide && task.sharers == 2 && lane == 1) arrive(empty, sharer);
    done.next(task.stages);
  };
  int i = 0;  // of the boxes
  const auto add_piece = [&]<int kBehind>(Accumulator<T>& sums) {
    const int begin = i;
    const int end = T::kMostTurns == 1 ? place.boxes : min(i + task.piece_boxes, place.boxes);
    for (; i < end; ++i, turn.next(task.stages)) {
      wait(&shared.barriers.full[turn.stage], turn.parity);
      begin_products();
      sums.add(shared.W(turn.stage), shared.x(turn.stage), group, i == begin);
      commit_products();
      wait_for_products<kBehind>();
      if (i - begin >= kBehind) release();
    }
    wait_for_products<0>();
    if constexpr (T::kMostTurns > 1) release();
  };
  Accumulator<T> sums;
  // Products of few rows are waited for longer than they take. Where K is long, the room of their
  // stages is worth more.
  constexpr int kFar = 3;
  if (T::kRows <= 16 && task.stages > kFar && place.boxes <= 2 * task.stages) {
    add_piece.template operator()<kFar>(sums);
  } else {
    add_piece.template operator()<1>(sums);
  }
  const auto add_next = [&](Accumulator<T>& to) {
    Accumulator<T> piece;
    add_piece.template operator()<1>(piece);
    to += piece;
  };
  if constexpr (T::kMostTurns > 1) {
    if (task.turns > 1) add_next(sums);
  }
  if constexpr (T::kMostTurns > 2) {
    if (task.turns > 2) {
      Accumulator<T> second;
      add_piece.template operator()<1>(second);
      add_next(second);
      sums += second;
    }
  }
  // All groups are done with the stages, whose place the sums take.
  sync_computing<T>();
  sums.store(shared.sums(), group);
}

__device__ inline float4 operator+(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Four values of the tile, of all parts of K.
template <int kParts>
__device__ inline float4 sum_of_parts(const float* mine, int first_rank) {
  float4 parts[kParts];
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    parts[part] =
        kParts == 1 ? *reinterpret_cast<const float4*>(mine) : load_shared(mine, first_rank + part);
  }
#pragma unroll
  for (int step = 1; step < kParts; step *= 2) {
#pragma unroll
    for (int part = 0; part < kParts; part += 2 * step) {
      parts[part] = parts[part] + parts[part + step];
    }
  }
  return parts[0];
}

__device__ inline float4 load4(const float* from, int count, bool vector) {
  if (vector) return *reinterpret_cast<const float4*>(from);
  return make_float4(from[0], count > 1 ? from[1] : 0, count > 2 ? from[2] : 0,
                     count > 3 ? from[3] : 0);
}
__device__ inline void store4(float* to, const float4& value, int count, bool vector) {
  if (vector) {
    *reinterpret_cast<float4*>(to) = value;
    return;
  }
  to[0] = value.x;
  if (count > 1) to[1] = value.y;
  if (count > 2) to[2] = value.z;
  if (count > 3) to[3] = value.w;
}

// As store4, in bf16; vector: to multiples of 8 bytes.
__device__ inline void store4_bf16(uint16_t* to, const float4& value, int count, bool vector) {
  const uint2 bits = make_uint2(round_bf16(value.x, value.y), round_bf16(value.z, value.w));
  if (vector) {
    *reinterpret_cast<uint2*>(to) = bits;
    return;
  }
  to[0] = static_cast<uint16_t>(bits.x);
  if (count > 1) to[1] = static_cast<uint16_t>(bits.x >> 16);
  if (count > 2) to[2] = static_cast<uint16_t>(bits.y);
  if (count > 3) to[3] = static_cast<uint16_t>(bits.y >> 16);
}

__device__ inline float swish(float gate, float up) { return gate * sigmoid(gate) * up; }

// Where a thread's share of the tile's outputs is: four columns of some rows.
struct Share {
  int m;       // of the columns, in the outputs of this tile
  int output;  // of the first column
  int count;   // of columns that there are; 0: nothing
  int begin, step, rows;
};
template <typename T>
__device__ Share share_of(const Task& task, const Place& place) {
  const int thread = threadIdx.x;
  const int all = (task.swiglu ? 1 : 2) * task.box_rows / 4;  // fours of columns
  const int first = all * place.part / task.parts;
  const int fours = all * (place.part + 1) / task.parts - first;
  if (fours == 0) return {};
  const int step = T::kComputing / fours;  // rows
  const int m = (first + thread % fours) * 4, output = place.W_row + m;
  if (thread >= step * fours || output >= task.outputs) return {};
  return {m,
          output,
          min(4, task.outputs - output),
          thread / fours,
          step,
          min(task.rows - place.x_row, task.x_rows)};
}

__device__ inline bool convolved(const Task& task, int output) {
  return task.conv.state != nullptr && output >= task.conv_first &&
         output < task.conv_first + task.conv.D;
}

// The state of four channels, from d on, of the sequence that a row is.
__device__ inline float* conv_state(const CausalConv1dArgs& a, int row, int d) {
  return a.state + (static_cast<int64_t>(a.seqs.slot[row]) * a.D + d) * sm80::FourChannels::kPast;
}

// Whether a tiling is for so few rows that the convolution may be done too.
constexpr int kMostConvolved = 16;
template <typename T>
constexpr bool kConvolves = T::kRows <= kMostConvolved;

// What the convolution reads beside its input is on its way to the L2 cache while the products are
// made.
template <typename T>
__device__ void prefetch_conv(const Task& task, const Place& place) {
  if (!kConvolves<T> || task.conv.state == nullptr) return;
  const Share share = share_of<T>(task, place);
  if (share.count == 0 || !convolved(task, share.output)) return;
  const int d = share.output - task.conv_first;
  sm80::prefetch_to_l2(task.conv.w + int64_t{d} * sm80::FourChannels::kWidth);
  for (int row = share.begin; row < share.rows; row += share.step) {
    sm80::prefetch_to_l2(conv_state(task.conv, place.x_row + row, d));
  }
}

// Rows whose reads a thread has on their way at once: as many as there are registers for.
template <typename T>
constexpr int kReads = T::kWide          ? 8
                       : T::kBlocks == 3 ? 2
                                         : 4;
template <typename T, int kParts>
constexpr int kAtOnce = std::max(1, kReads<T> / kParts);

// Instead of finish, of columns that go through the convolution.
template <typename T, int kParts>
__device__ void convolve(const Task& task, const Place& place, const Share& share,
                         const typename Shared<T>::Sums& sums, int in_tile, const float4& bias) {
  using sm80::FourChannels;
  constexpr int kPast = FourChannels::kPast;
  const int d = share.output - task.conv_first;
  FourChannels channels;
  channels.load_weights(task.conv, d);
  for (int row = share.begin; row < share.rows; row += share.step) {
    float* state = conv_state(task.conv, place.x_row + row, d);
    float4 past[kPast];
#pragma unroll
    for (int i = 0; i < kPast; ++i) past[i] = sm80::load4<true>(state + 4 * i, 4);
    const float4 x = sum_of_parts<kParts>(&sums[row][in_tile], 0) + bias;
    channels.take_past(past);
    sm80::put_four(task.conv, place.x_row + row, d, channels.advance(x, task.conv.silu));
    channels.give_past(past);
#pragma unroll
    for (int i = 0; i < kPast; ++i) sm80::store4<true>(state + 4 * i, past[i], 4);
  }
}

// This block's share of the tile's outputs. All computing threads. A thread reads several of its
// rows before it writes one, as the residual may stand where they go.
template <typename T, int kParts>
__device__ void finish(const Task& task, const Place& place, const typename Shared<T>::Sums& sums) {
  const Share share = share_of<T>(task, place);
  if (share.count == 0) return;
  const int m = share.m, output = share.output, count = share.count, step = share.step;
  const int in_tile = m < task.box_rows ? m : m - task.box_rows + task.second;
  const int64_t start = static_cast<int64_t>(place.x_row) * task.outputs + output;
  float4 bias = make_float4(0, 0, 0, 0), up_bias = bias;
  if (task.bias != nullptr) {
    bias = load4(task.bias + output, count, task.vector);
    if (task.swiglu) up_bias = load4(task.bias + output + task.box_offset, count, task.vector);
  }
  if (kConvolves<T> && convolved(task, output)) {
    return convolve<T, kParts>(task, place, share, sums, in_tile, bias);
  }
  constexpr int kRows = kAtOnce<T, kParts>;
  for (int begin = share.begin; begin < share.rows; begin += kRows * step) {
    float4 y[kRows], up[kRows], residual[kRows];
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int row = begin + j * step;
      if (row >= share.rows) break;
      if (task.residual != nullptr) {
        const float* from = task.residual + start + static_cast<int64_t>(row) * task.outputs;
        residual[j] = load4(from, count, task.vector);
      }
      y[j] = sum_of_parts<kParts>(&sums[row][in_tile], place.first_rank);
      if (task.swiglu) up[j] = sum_of_parts<kParts>(&sums[row][task.second + m], place.first_rank);
    }
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int row = begin + j * step;
      if (row >= share.rows) break;
      float4 out = y[j] + bias;
      if (task.swiglu) {
        const float4 u = up[j] + up_bias;
        out =
            make_float4(swish(out.x, u.x), swish(out.y, u.y), swish(out.z, u.z), swish(out.w, u.w));
      }
      if (task.soft_cap > 0) {
        out = make_float4(soft_cap(out.x, task.soft_cap), soft_cap(out.y, task.soft_cap),
                          soft_cap(out.z, task.soft_cap), soft_cap(out.w, task.soft_cap));
      }
      if (task.residual != nullptr) out = out + residual[j];
      const int64_t at = start + static_cast<int64_t>(row) * task.outputs;
      if (task.y_bf16 != nullptr) {
        store4_bf16(task.y_bf16 + at, out, count, task.vector);
      } else {
        store4(task.y + at, out, count, task.vector);
      }
    }
  }
}

template <typename T>
__device__ void finish(const Task& task, const Place& place, const typename Shared<T>::Sums& sums) {
  if (task.parts == 1) return finish<T, 1>(task, place, sums);
  if (T::kWide || task.parts == 2) return finish<T, 2>(task, place, sums);
  if constexpr (!T::kWide) {  // a power of two, at most 8
    if (task.parts == 4) return finish<T, 4>(task, place, sums);
    finish<T, 8>(task, place, sums);
  }
}

template <typename T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks)
    linear_kernel(const __grid_constant__ CUtensorMap W, const __grid_constant__ CUtensorMap x,
                  const Task task) {
  extern __shared__ std::byte memory[];
  const Shared<T> shared(
      reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory) + 1023) / 1024 * 1024),
      task);
  let_next_start();
  if (threadIdx.x == T::kComputing) {
    prefetch_map(W);
    prefetch_map(x);
    for (int s = 0; s < task.stages; ++s) {
      init_barrier(&shared.barriers.full[s], 1);
      init_barrier(&shared.barriers.empty[s], task.sharers * T::kComputing / kWarpSize);
    }
    publish_barriers();
  }
  __syncthreads();
  if (T::kWide && task.sharers > 1) sync_cluster();  // its barriers are there

  const Place place = place_of<T>(task);
  // The same for a whole warp, which the compiler has to see.
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kGroupThreads, 0);
  if (group < T::kGroups) {
    if constexpr (T::kWide) {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(T::kRegisters));
    }
    prefetch_conv<T>(task, place);
    compute(shared, task, place, group);
    if (task.parts > 1) {
      sync_cluster();
    } else {
      sync_computing<T>();
    }
    wait_for_previous();
    finish<T>(task, place, shared.sums());
  } else {
    if constexpr (T::kWide) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(T::kLoadRegisters));
    }
    if (threadIdx.x == T::kComputing) load(shared, W, x, task, place);
    __syncwarp();
    if (task.parts > 1) sync_cluster();
  }
  // No block goes while others read its sums, or load what they share and say that it is used.
  if (task.cluster() > 1) leave_cluster();
}

}  // namespace recurve::cuda::sm90
