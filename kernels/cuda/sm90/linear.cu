#include <array>
#include <atomic>

#include "kernels/check.h"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/causal_conv1d.h"
#include "kernels/cuda/sm80/linear_bf16.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm90/linear_kernel.cuh"
#include "kernels/cuda/sm90/ops.h"
#include "kernels/cuda/sm90/tensor_map.h"

namespace recurve::cuda::sm90 {
namespace {

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
int round_up(int a, int b) { return ceil_div(a, b) * b; }

// Into how many pieces K is cut: so many that all multiprocessors have some where there are many
// rows of x, and each piece is of eight boxes or so; at least of one. Around two thousand outputs
// more than four cost more than they bring (measured at 1 to 64 rows).
constexpr int kMostPieces = 8;
int pieces_of(const Matrix& W) {
  constexpr int kWantedBlocks = 120, kTileM = 128;
  const int most = W.N > 1024 && W.N <= 2048 ? kMostPieces / 2 : kMostPieces;
  int pieces = 1;
  while (pieces < most && ceil_div(W.N, kTileM) * pieces < kWantedBlocks &&
         W.K / (2 * pieces) >= 8 * kBoxK) {
    pieces *= 2;
  }
  return pieces;
}

// The memory of each of so many blocks on one multiprocessor, which takes 1 KB of each for itself.
template <typename T>
constexpr int kMemory = (228 << 10) / T::kBlocks - (1 << 10);

template <typename T>
void allow_memory() {
  abort_if_failed(cudaFuncSetAttribute(linear_kernel<T>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, kMemory<T>),
                  "linear, shared memory");
}

// How many clusters of so many blocks the GPU has room for at once: fewer than the blocks would
// say, as a cluster stays in one of the GPU's parts.
template <typename T>
int clusters_at_once(int blocks) {
  static std::array<std::atomic<int>, kMostPieces + 1> known;  // 0: not yet
  if (known[blocks] > 0) return known[blocks];
  allow_memory<T>();
  keep_carveout(reinterpret_cast<const void*>(linear_kernel<T>), "linear");
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(T::kThreads);
  config.dynamicSmemBytes = kMemory<T>;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  abort_if_failed(cudaOccupancyMaxActiveClusters(&clusters, linear_kernel<T>, &config),
                  "linear, room for clusters");
  CHECK(clusters > 0);
  return known[blocks] = clusters;
}

// Of a tile, which has two boxes of so many rows of W.
int outputs_of_tile(const LinearArgs& args, int box_rows) {
  return args.swiglu ? box_rows : 2 * box_rows;
}

// The blocks of a cluster: parts of K, times tiles with the same rows of W.
struct Cluster {
  int parts, sharers;
  int blocks() const { return parts * sharers; }
};
// Wide tiles leave to two blocks the halves of K, if these are not one piece each, and share W as
// long as there are clusters of four for it all at once.
template <typename T>
Cluster cluster_of(const LinearArgs& args) {
  const int pieces = pieces_of(args.W), tiles = ceil_div(args.rows, T::kRows);
  if (!T::kWide) return {pieces, 1};
  const int parts = pieces > 2 ? 2 : 1;
  return {parts, tiles == 2 || (tiles % 2 == 0 && parts == 1) ? 2 : 1};
}

// Blocks, of all tiles and parts.
template <typename T>
dim3 grid_of(const LinearArgs& args, int box_rows) {
  const Cluster cluster = cluster_of<T>(args);
  const int tiles = ceil_div(args.outputs(), outputs_of_tile(args, box_rows));
  return {static_cast<unsigned>(tiles * cluster.blocks()),
          static_cast<unsigned>(ceil_div(args.rows, T::kRows) / cluster.sharers)};
}

// Rows of a box of W, two of which are a tile: so many that the clusters, one a tile, fill the room
// that there is for them, once or as often as it takes with tiles of at most kTileM rows.
template <typename T>
int box_rows_of(const LinearArgs& args) {
  const int clusters = clusters_at_once<T>(pieces_of(args.W));
  for (int waves = 1;; ++waves) {
    const int64_t boxes = int64_t{clusters} * waves * outputs_of_tile(args, 1);
    const int rows = round_up(ceil_div(args.outputs(), boxes), 4);
    if (2 * round_up(rows, 8) <= T::kTileM) return std::max(rows, 8);
  }
}

// x: bf16, (args.rows, K).
template <typename T>
void launch_linear(const LinearArgs& args, const uint16_t* x, int box_rows, Stream& stream) {
  const int boxes = ceil_div(args.W.K, kBoxK), pieces = pieces_of(args.W);
  const Cluster cluster = cluster_of<T>(args);
  Task task{.rows = args.rows,
            .outputs = static_cast<int>(args.outputs()),
            .stages = 0,
            .box_rows = box_rows,
            .second = round_up(box_rows, 8),
            .tile_step = outputs_of_tile(args, box_rows),
            .box_offset = args.swiglu ? static_cast<int>(args.W.N / 2) : box_rows,
            .x_rows = round_up(ceil_div(args.rows, ceil_div(args.rows, T::kRows)), 8),
            .boxes = boxes,
            .piece_boxes = ceil_div(boxes, pieces),
            .turns = pieces / cluster.parts,
            .parts = cluster.parts,
            .sharers = cluster.sharers,
            .swiglu = args.swiglu,
            .vector = args.outputs() % 4 == 0 && aligned(args.y) && aligned(args.y_bf16) &&
                      aligned(args.bias) && aligned(args.residual),
            .soft_cap = args.soft_cap,
            .bias = args.bias,
            .residual = args.residual,
            .y = args.y,
            .y_bf16 = args.y_bf16,
            .conv = args.conv.value_or(CausalConv1dArgs{}),
            .conv_first = args.conv ? static_cast<int>(args.conv->x - args.y) : 0};
  const int stage = task.W_bytes() + task.x_bytes();
  // What aligns the memory, the barriers, and what the products of the last stage read behind it.
  const int behind =
      std::max({0, T::kTileM * kBoxBytes - stage, T::kRows * kBoxBytes - task.x_bytes()});
  const int beside = 1024 + Shared<T>::kRing + behind;
  task.stages =
      std::min({(kMemory<T> - beside) / stage, kMostStages, ceil_div(boxes, cluster.parts) + 1});
  const int ring = std::max<int>(task.stages * stage, sizeof(typename Shared<T>::Sums));
  if constexpr (T::kWide) CHECK(task.turns == 1 || T::kInTurn);
  CHECK(task.stages > 1 && beside + ring <= kMemory<T> && 2 * task.second <= T::kTileM);
  allow_memory<T>();
  const Matrix rows{.dtype = DType::kBF16, .N = args.rows, .K = args.W.K, .data = x};
  launch_early(stream, "linear", linear_kernel<T>,
               {.grid = grid_of<T>(args, box_rows),
                .threads = T::kThreads,
                .shared = static_cast<size_t>(beside + ring),
                .cluster = static_cast<unsigned>(cluster.blocks())},
               tensor_map(args.W, box_rows), tensor_map(rows, task.x_rows), task);
}

// Tiles of the height that fills the GPU, which weights read from memory want.
template <int kRows, int kBlocks>
void launch_filling(const LinearArgs& args, const uint16_t* x, Stream& stream) {
  const int box_rows = box_rows_of<Tiling<2, kRows, kBlocks>>(args);
  if (2 * round_up(box_rows, 8) <= kGroupM) {
    return launch_linear<Tiling<1, kRows, kBlocks>>(args, x, box_rows, stream);
  }
  launch_linear<Tiling<2, kRows, kBlocks>>(args, x, box_rows, stream);
}

// Wide tiles of the height that takes least time: as many waves as there is not room for all of
// them at once, each of which takes what its height takes and some time to begin and to end.
template <int kRows, int... kTileM>
void launch_widest(const LinearArgs& args, const uint16_t* x, Stream& stream) {
  constexpr int kBeginAndEnd = 32;  // as rows of W
  int best = 0, least = 0;
  const auto look_at = [&]<typename T>(T) {
    const dim3 grid = grid_of<T>(args, T::kTileM / 2);
    const int blocks = cluster_of<T>(args).blocks();
    const int waves = ceil_div(int64_t{grid.x} * grid.y, blocks * clusters_at_once<T>(blocks));
    const int time = waves * (T::kTileM + kBeginAndEnd);
    if (best != 0 && time >= least) return;
    best = T::kTileM;
    least = time;
  };
  (look_at(WideTiling<kTileM, kRows>{}), ...);
  const auto launch_if_best = [&]<typename T>(T) {
    if (best == T::kTileM) launch_linear<T>(args, x, T::kTileM / 2, stream);
  };
  (launch_if_best(WideTiling<kTileM, kRows>{}), ...);
}

void launch_wide(const LinearArgs& args, const uint16_t* x, Stream& stream) {
  if (pieces_of(args.W) == 1) return launch_widest<256, 64, 128, 176, 192>(args, x, stream);
  launch_widest<128, 64, 80, 96, 128, 144, 160, 176, 192>(args, x, stream);
}

// With few rows a multiprocessor has several blocks: while one ends, another's weights come, or
// those of the next kernel. With many, x weighs as much as W or more, and high or wide tiles are
// best, where there are enough of them.
void linear_rows(const LinearArgs& args, const uint16_t* x, Stream& stream) {
  if (args.rows <= 8) return launch_filling<8, 3>(args, x, stream);
  if (args.rows <= 16) return launch_filling<16, 3>(args, x, stream);
  if (args.rows <= 32) return launch_filling<32, 3>(args, x, stream);
  if (args.rows <= 64) return launch_filling<64, 3>(args, x, stream);
  const dim3 wide = grid_of<WideTiling<64, 128>>(args, 64 / 2);
  const unsigned blocks = wide.x * wide.y;
  if (args.rows <= 128) {
    // A longer K takes longer than it does to add up its pieces in other blocks.
    constexpr int kLongK = 4096;
    const bool in_turn = pieces_of(args.W) > 1 && args.W.K <= kLongK;
    if (in_turn && blocks >= 60) return launch_wide(args, x, stream);
    using High = Tiling<3, 128, 1>;
    const int box_rows = box_rows_of<High>(args);
    if (box_rows > kGroupM) return launch_linear<High>(args, x, box_rows, stream);
  } else if (blocks >= 24) {
    return launch_wide(args, x, stream);
  }
  launch_filling<128, 2>(args, x, stream);
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

// Of more rows the states keep the end of the layer longer than a kernel of their own takes.
bool linear_convolves(const LinearArgs& args, const CausalConv1dArgs& conv) {
  return takes(args.W) && conv.seqs.max_len == 1 && args.rows <= kMostConvolved &&
         args.W.N % 4 == 0 && (conv.x - args.y) % 4 == 0 && aligned(args.y) && aligned(args.bias) &&
         sm80::takes_four_channels(conv);
}

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
  // Whole tiles.
  const int most = static_cast<int>(scratch.size() / (sizeof(uint16_t) * K) / 256) * 256;
  CHECK(most > 0 && aligned(args.x));
  for (int row = 0; row < args.rows; row += most) {
    const LinearArgs part = rows_of(args, row, std::min(most, args.rows - row));
    round_rows(part, rounded, stream);
    linear_rows(part, rounded, stream);
  }
}

}  // namespace recurve::cuda::sm90
