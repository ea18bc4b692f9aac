// y = x W^T with bf16 weights, on Hopper's tensor cores, at the speed of memory for few rows.
//
// A tile is 128 rows of W and up to 256 rows of x. W is the wide side of the products (64 of its
// rows each) and the rows of x are their columns, so 8 rows of x cost no more than one does. Boxes
// of both pass through a ring of stages in shared memory, filled by one warp.
//
// A row's result has the same bits whatever the rows beside it: a column of a product is summed
// alone, in the order of K; into how many pieces K is cut follows from the shape of W alone, and
// the pieces, one to each block of a cluster, are added from the first to the last.
#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/linear_bf16.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm90/async.cuh"
#include "kernels/cuda/sm90/ops.h"
#include "kernels/cuda/sm90/tensor_map.h"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace recurve::cuda::sm90 {
namespace {

constexpr int kBoxK = 64;           // of K, a stage
constexpr int kGroupM = 64;         // rows of W, a warpgroup
constexpr int kGroupThreads = 128;  // of a warpgroup

// How a launch cuts the work: tiles of 64 Groups rows of W by Rows rows of x. Blocks: on one
// multiprocessor.
template <int Groups, int Rows, int Stages, int Blocks>
struct Tiling {
  static constexpr int kGroups = Groups, kRows = Rows, kStages = Stages, kBlocks = Blocks;
  static constexpr int kTileM = kGroups * kGroupM;
  static constexpr int kBoxM = kTileM / 2;  // rows of W, a box
  static constexpr int kComputing = kGroups * kGroupThreads;
  // Three groups that compute need more registers than an even share: a fourth, of which one thread
  // has work, gives up its own.
  static constexpr bool kUneven = Groups == 3;
  static constexpr int kThreads = kComputing + (kUneven ? kGroupThreads : kWarpSize);
};

// What a launch knows beside the tensor maps.
struct Task {
  int rows;
  int outputs;
  int tile_step;        // rows of W from the first box of a tile to that of the next tile
  int box_offset;       // and from a tile's first box to its second
  int boxes;            // of K
  int pieces;           // of K, = blocks of a cluster
  bool swiglu, vector;  // vector: rows of y, bias and residual begin at multiples of 16 bytes
  float soft_cap;
  const float* bias;
  const float* residual;
  float* y;
  uint16_t* y_bf16;  // instead of y, or null
};

template <typename T>
struct Shared {
  struct Stage {
    uint16_t W[T::kTileM][kBoxK];
    uint16_t x[T::kRows][kBoxK];
  };
  // The sums of a piece of K, when all stages have been used up.
  using Sums = float[T::kRows][T::kTileM + 4];
  union {
    Stage stages[T::kStages];
    Sums sums;
  };
  Barrier full[T::kStages], empty[T::kStages];
};

// Which boxes of K this block has, and which rows.
struct Place {
  int first_box, boxes;  // of K
  int W_row;             // of the tile's first box
  int x_row;
};
__device__ Place place_of(const Task& task, int rows_of_tile) {
  const int piece = blockIdx.x % task.pieces, tile = blockIdx.x / task.pieces;
  const int each = (task.boxes + task.pieces - 1) / task.pieces;
  return {piece * each, max(0, min(each, task.boxes - piece * each)), tile * task.tile_step,
          static_cast<int>(blockIdx.y) * rows_of_tile};
}

// One thread. The weights do not wait for the kernel before this one.
template <typename T>
__device__ void load(Shared<T>& shared, const CUtensorMap& W, const CUtensorMap& x,
                     const Task& task, const Place& place) {
  // With several tiles of rows each reads the weights.
  const Keep keep = gridDim.y == 1 ? Keep::kFirstOut : Keep::kNormal;
  const auto load_weights = [&](int i) {
    auto& stage = shared.stages[i % T::kStages];
    Barrier* full = &shared.full[i % T::kStages];
    const int k = (place.first_box + i) * kBoxK;
    arrive_expecting(full, sizeof(stage));
    load_box(stage.W[0], W, k, place.W_row, full, keep);
    load_box(stage.W[T::kBoxM], W, k, place.W_row + task.box_offset, full, keep);
  };
  const auto load_rows = [&](int i) {
    load_box(shared.stages[i % T::kStages].x[0], x, (place.first_box + i) * kBoxK, place.x_row,
             &shared.full[i % T::kStages], Keep::kNormal);
  };
  const int ahead = min(T::kStages, place.boxes);
  for (int i = 0; i < ahead; ++i) load_weights(i);
  wait_for_previous();
  for (int i = 0; i < ahead; ++i) load_rows(i);
  for (int i = T::kStages; i < place.boxes; ++i) {
    wait(&shared.empty[i % T::kStages], (i / T::kStages - 1) % 2);
    load_weights(i);
    load_rows(i);
  }
}

// The sums of one warpgroup: 64 rows of W by kRows rows of x. One product has at most 128 columns.
template <int kRows>
struct Accumulator {
  static constexpr int kColumns = kRows < 128 ? kRows : 128;
  float parts[kRows / kColumns][kColumns / 2];

  // first: of the sums; what was in them before does not count.
  __device__ void add(const uint16_t* W, const uint16_t* x, bool first) {
    const uint64_t a = operand(shared_address(W)), b = operand(shared_address(x));
#pragma unroll
    for (int step = 0; step < kBoxK / 16; ++step) {
#pragma unroll
      for (int part = 0; part < kRows / kColumns; ++part) {
        multiply(parts[part], a + 2 * step, b + 2 * step + part * (kColumns * kBoxK * 2 >> 4),
                 !first || step > 0);
      }
    }
  }

  // The layout of d: PTX ISA, wgmma.mma_async.m64nNk16.
  template <typename Sums>
  __device__ void store(Sums& sums, int group) const {
    const int warp = threadIdx.x % kGroupThreads / kWarpSize, lane = threadIdx.x % kWarpSize;
    const int m = group * kGroupM + warp * 16 + lane / 4, n = lane % 4 * 2;
#pragma unroll
    for (int part = 0; part < kRows / kColumns; ++part) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) {
        sums[part * kColumns + i / 4 * 8 + n + i % 2][m + i % 4 / 2 * 8] = parts[part][i];
      }
    }
  }
};

template <typename T>
__device__ void sync_computing() {
  asm volatile("bar.sync 1, %0;" ::"n"(T::kComputing) : "memory");
}

// A warpgroup.
template <typename T>
__device__ void compute(Shared<T>& shared, const Place& place, int group) {
  const bool arrives = threadIdx.x % kWarpSize == 0;
  Accumulator<T::kRows> sums;
  for (int i = 0; i < place.boxes; ++i) {
    auto& stage = shared.stages[i % T::kStages];
    wait(&shared.full[i % T::kStages], i / T::kStages % 2);
    begin_products();
    sums.add(stage.W[group * kGroupM], stage.x[0], i == 0);
    commit_products();
    wait_for_products<1>();  // the stage before this one is free
    if (i > 0 && arrives) arrive(&shared.empty[(i - 1) % T::kStages]);
  }
  wait_for_products<0>();
  // All groups are done with the stages, whose place the sums take.
  sync_computing<T>();
  sums.store(shared.sums, group);
}

__device__ float4 operator+(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Four values of the tile, of all pieces of K.
__device__ float4 sum_of_pieces(const float* mine, int pieces) {
  if (pieces == 1) return *reinterpret_cast<const float4*>(mine);
  float4 sum = load_shared(mine, 0);
  for (int piece = 1; piece < pieces; ++piece) sum = sum + load_shared(mine, piece);
  return sum;
}

__device__ float4 load4(const float* from, int count, bool vector) {
  if (vector) return *reinterpret_cast<const float4*>(from);
  return make_float4(from[0], count > 1 ? from[1] : 0, count > 2 ? from[2] : 0,
                     count > 3 ? from[3] : 0);
}
__device__ void store4(float* to, const float4& value, int count, bool vector) {
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
__device__ void store4_bf16(uint16_t* to, const float4& value, int count, bool vector) {
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

__device__ float swish(float gate, float up) { return gate * sigmoid(gate) * up; }
__device__ float cap(float x, float soft_cap) {
  return soft_cap > 0 ? cuda::soft_cap(x, soft_cap) : x;
}

// This block's share of the tile's outputs. All computing threads.
template <typename T>
__device__ void finish(const Task& task, const Place& place, const typename Shared<T>::Sums& sums) {
  const int piece = blockIdx.x % task.pieces;
  const int width = (task.swiglu ? T::kBoxM : T::kTileM) / task.pieces, quads = width / 4;
  const int rows = min(task.rows - place.x_row, T::kRows);
  for (int i = threadIdx.x; i < rows * quads; i += T::kComputing) {
    const int row = i / quads, m = piece * width + i % quads * 4;
    const int output = place.W_row + m, count = min(4, task.outputs - output);
    if (count <= 0) continue;
    const auto sum_at = [&](int at, int W_row) {
      const float4 sum = sum_of_pieces(&sums[row][at], task.pieces);
      return task.bias == nullptr ? sum : sum + load4(task.bias + W_row, count, task.vector);
    };
    float4 y = sum_at(m, output);
    if (task.swiglu) {
      const float4 up = sum_at(m + T::kBoxM, output + task.box_offset);
      y = make_float4(swish(y.x, up.x), swish(y.y, up.y), swish(y.z, up.z), swish(y.w, up.w));
    }
    y = make_float4(cap(y.x, task.soft_cap), cap(y.y, task.soft_cap), cap(y.z, task.soft_cap),
                    cap(y.w, task.soft_cap));
    const int64_t at = static_cast<int64_t>(place.x_row + row) * task.outputs + output;
    if (task.residual != nullptr) y = y + load4(task.residual + at, count, task.vector);
    if (task.y_bf16 != nullptr) {
      store4_bf16(task.y_bf16 + at, y, count, task.vector);
    } else {
      store4(task.y + at, y, count, task.vector);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks)
    linear_kernel(const __grid_constant__ CUtensorMap W, const __grid_constant__ CUtensorMap x,
                  const Task task) {
  extern __shared__ std::byte memory[];
  auto& shared =
      *reinterpret_cast<Shared<T>*>((reinterpret_cast<uintptr_t>(memory) + 1023) / 1024 * 1024);
  let_next_start();
  if (threadIdx.x == T::kComputing) {
    prefetch_map(W);
    prefetch_map(x);
    for (int s = 0; s < T::kStages; ++s) {
      init_barrier(&shared.full[s], 1);
      init_barrier(&shared.empty[s], T::kComputing / kWarpSize);
    }
    publish_barriers();
  }
  __syncthreads();

  const Place place = place_of(task, T::kRows);
  // The same for a whole warp, which the compiler has to see.
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kGroupThreads, 0);
  if (group < T::kGroups) {
    if constexpr (T::kUneven) asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
    compute(shared, place, group);
    if (task.pieces > 1) {
      sync_cluster();
    } else {
      sync_computing<T>();
    }
    wait_for_previous();
    finish<T>(task, place, shared.sums);
    if (task.pieces > 1) sync_cluster();  // no block goes while others read its sums
  } else {
    if constexpr (T::kUneven) asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
    if (threadIdx.x == T::kComputing) load(shared, W, x, task, place);
    __syncwarp();
    if (task.pieces > 1) {
      sync_cluster();
      sync_cluster();
    }
  }
}

// One block a row of x: y = norm(x), or x as it is, in bf16. K % 4 == 0.
constexpr int kRoundThreads = 512;
constexpr int kHeld = 4;  // fours of a row that a thread keeps between the norm's two passes
__global__ void __launch_bounds__(kRoundThreads)
    round_kernel(const float* x, const float* norm, float eps, int K, uint16_t* y) {
  let_next_start();
  const int fours = K / 4;
  const auto* from = reinterpret_cast<const float4*>(x + static_cast<int64_t>(blockIdx.x) * K);
  auto* to = reinterpret_cast<uint2*>(y + static_cast<int64_t>(blockIdx.x) * K);
  float4 held[kHeld], weights[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {  // no kernel writes these
    const int i = threadIdx.x + j * kRoundThreads;
    if (norm != nullptr && i < fours) weights[j] = reinterpret_cast<const float4*>(norm)[i];
  }
  wait_for_previous();
  float sum = 0;
  const auto add = [&](const float4& v) {
    sum = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum))));
  };
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = threadIdx.x + j * kRoundThreads;
    held[j] = i < fours ? from[i] : make_float4(0, 0, 0, 0);
  }
#pragma unroll
  for (int j = 0; j < kHeld; ++j) add(held[j]);
  for (int i = threadIdx.x + kHeld * kRoundThreads; i < fours; i += kRoundThreads) add(from[i]);
  float scale = 1;
  if (norm != nullptr) {
    sum = block_sum<kRoundThreads>(sum);
    scale = 1.0f / sqrtf(sum / static_cast<float>(K) + eps);
  }
  const auto put = [&](int i, float4 v, const float4& w) {
    if (norm != nullptr) {
      v = make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
    }
    to[i] = make_uint2(round_bf16(v.x, v.y), round_bf16(v.z, v.w));
  };
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = threadIdx.x + j * kRoundThreads;
    if (i < fours) put(i, held[j], weights[j]);
  }
  for (int i = threadIdx.x + kHeld * kRoundThreads; i < fours; i += kRoundThreads) {
    put(i, from[i], norm == nullptr ? float4{} : reinterpret_cast<const float4*>(norm)[i]);
  }
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

int ceil_div(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

// Into how many pieces K is cut: so many that all multiprocessors have some, and each piece is of
// eight boxes or so; at least of one.
int pieces_of(const Matrix& W) {
  constexpr int kWantedBlocks = 120, kTileM = 128;
  int pieces = 1;
  while (pieces < 8 && ceil_div(W.N, kTileM) * pieces < kWantedBlocks &&
         W.K / (2 * pieces) >= 8 * kBoxK) {
    pieces *= 2;
  }
  return pieces;
}

// Rows of W from one tile to the next.
template <typename T>
int tile_step(const LinearArgs& args) {
  return args.swiglu ? T::kBoxM : T::kTileM;
}

// x: bf16, (args.rows, K).
template <typename T>
void launch_linear(const LinearArgs& args, const uint16_t* x, Stream& stream) {
  const auto kernel = linear_kernel<T>;
  const size_t bytes = sizeof(Shared<T>) + 1024;
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(bytes)),
                  "linear, shared memory");
  const int step = tile_step<T>(args), N = static_cast<int>(args.W.N);
  const Task task{.rows = args.rows,
                  .outputs = static_cast<int>(args.outputs()),
                  .tile_step = step,
                  .box_offset = args.swiglu ? N / 2 : T::kBoxM,
                  .boxes = ceil_div(args.W.K, kBoxK),
                  .pieces = pieces_of(args.W),
                  .swiglu = args.swiglu,
                  .vector = args.outputs() % 4 == 0 && aligned(args.y) && aligned(args.y_bf16) &&
                            aligned(args.bias) && aligned(args.residual),
                  .soft_cap = args.soft_cap,
                  .bias = args.bias,
                  .residual = args.residual,
                  .y = args.y,
                  .y_bf16 = args.y_bf16};
  const auto pieces = static_cast<unsigned>(task.pieces);
  const Matrix rows{.dtype = DType::kBF16, .N = args.rows, .K = args.W.K, .data = x};
  launch_early(stream, "linear", kernel,
               {.grid = {static_cast<unsigned>(ceil_div(args.outputs(), step)) * pieces,
                         static_cast<unsigned>(ceil_div(args.rows, T::kRows))},
                .threads = T::kThreads,
                .shared = bytes,
                .cluster = pieces},
               tensor_map(args.W, T::kBoxM), tensor_map(rows, T::kRows), task);
}

// What a tile of all rows takes. Where it is few, most multiprocessors would be idle: then tiles
// are of fewer rows, or for the fewest of fewer outputs.
constexpr int kFewBlocks = 60, kEnoughBlocks = 100;
int blocks_of_rows(const Matrix& W) {
  constexpr int kTileM = 128;
  return ceil_div(W.N, kTileM) * pieces_of(W);
}
int rows_of_tile(const LinearArgs& args) {
  constexpr int kFewest = 8;
  int rows = std::min(args.rows, 256);
  while (rows > kFewest && blocks_of_rows(args.W) * ceil_div(args.rows, rows) < kEnoughBlocks) {
    rows = std::max(rows / 2, kFewest);
  }
  return rows;
}

// Few rows: their tiles leave half of a multiprocessor to the next kernel, whose weights then come
// while this one ends.
void linear_rows(const LinearArgs& args, const uint16_t* x, Stream& stream) {
  const int rows = rows_of_tile(args);
  if (args.rows <= 8 && blocks_of_rows(args.W) < kFewBlocks) {
    return launch_linear<Tiling<1, 8, 10, 2>>(args, x, stream);
  }
  if (rows <= 8) return launch_linear<Tiling<2, 8, 6, 2>>(args, x, stream);
  if (rows <= 16) return launch_linear<Tiling<2, 16, 5, 2>>(args, x, stream);
  if (rows <= 32) return launch_linear<Tiling<2, 32, 5, 2>>(args, x, stream);
  if (rows <= 64) return launch_linear<Tiling<2, 64, 4, 2>>(args, x, stream);
  if (rows <= 128) return launch_linear<Tiling<2, 128, 3, 2>>(args, x, stream);
  launch_linear<Tiling<3, 256, 4, 1>>(args, x, stream);
}

void round_rows(const LinearArgs& args, uint16_t* rounded, Stream& stream) {
  launch_early(stream, "linear, rounding", round_kernel,
               {.grid = static_cast<unsigned>(args.rows), .threads = kRoundThreads}, args.x,
               args.norm, args.norm_eps, static_cast<int>(args.W.K), rounded);
}

// Some of the rows.
LinearArgs rows_of(const LinearArgs& args, int first, int rows) {
  LinearArgs part = args;
  part.rows = rows;
  part.x = args.x + first * args.W.K;
  const int64_t at = first * args.outputs();
  if (args.y != nullptr) part.y = args.y + at;
  if (args.y_bf16 != nullptr) part.y_bf16 = args.y_bf16 + at;
  if (args.residual != nullptr) part.residual = args.residual + at;
  return part;
}

// Small matrices are left to the kernel that rounds no activation: they cost little either way, and
// the models they make are the ones that rounding would show in.
bool takes(const Matrix& W) {
  constexpr int64_t kSmall = 1 << 19;
  return sm80::linear_bf16_takes(W) && W.N * W.K >= kSmall;
}

}  // namespace

// Which kernel takes a matrix depends on the matrix alone, never on the rows.
bool linear_rounds(const Matrix& W) { return takes(W); }

void linear(const LinearArgs& args, Stream& stream) {
  if (args.rows == 0 || args.W.N == 0) return;
  if (!takes(args.W)) {
    CHECK(args.x_bf16 == nullptr && args.y_bf16 == nullptr);
    return sm80::linear(args, stream);
  }
  if (args.x_bf16 != nullptr) {
    CHECK(aligned(args.x_bf16) && args.norm == nullptr);
    return linear_rows(args, args.x_bf16, stream);
  }
  const int64_t K = args.W.K;
  const std::span<std::byte> scratch = static_cast<CudaStream&>(stream).scratch();
  auto* rounded = reinterpret_cast<uint16_t*>(scratch.data());
  const int most = static_cast<int>(scratch.size() / (sizeof(uint16_t) * K));
  CHECK(most > 0 && aligned(args.x));
  for (int row = 0; row < args.rows; row += most) {
    const LinearArgs part = rows_of(args, row, std::min(most, args.rows - row));
    round_rows(part, rounded, stream);
    linear_rows(part, rounded, stream);
  }
}

}  // namespace recurve::cuda::sm90
