#include <array>
#include <atomic>

#include "kernels/check.h"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/causal_conv1d.h"
#include "kernels/cuda/sm80/linear_bf16.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm90/linear_kernel.cuh"
#include "kernels/cuda/sm90/linear_persistent.h"
#include "kernels/cuda/sm90/ops.h"
#include "kernels/cuda/sm90/tensor_map.h"

namespace recurve::cuda::sm90 {
namespace {

// One block a row of x: y = x, or x times the norm's weights, in bf16, and the norm's scale. K is a
// multiple of 8. shared: (K / 8) floats where there is a norm. Of few rows a block has many
// threads, as it is their latency that counts; of many, blocks of few make better use of memory.
constexpr int kHeld = 4;  // fours of a row that a thread has on their way
template <int kRoundThreads>
__global__ void __launch_bounds__(kRoundThreads)
    round_kernel(const float* x, const float* norm, float eps, int K, uint16_t* y, float* scales) {
  extern __shared__ float squares[];
  let_next_start();
  const int fours = K / 4;
  const auto* from = reinterpret_cast<const float4*>(x + static_cast<int64_t>(blockIdx.x) * K);
  auto* to = reinterpret_cast<uint2*>(y + static_cast<int64_t>(blockIdx.x) * K);
  for (int first = 0; first < fours; first += kHeld * kRoundThreads) {
    float4 held[kHeld], weights[kHeld];
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {  // no kernel writes these
      const int i = first + j * kRoundThreads + static_cast<int>(threadIdx.x);
      const bool weighted = norm != nullptr && i < fours;
      weights[j] = weighted ? reinterpret_cast<const float4*>(norm)[i] : make_float4(1, 1, 1, 1);
    }
    wait_for_previous();
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = first + j * kRoundThreads + static_cast<int>(threadIdx.x);
      if (i < fours) held[j] = from[i];
    }
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = first + j * kRoundThreads + static_cast<int>(threadIdx.x);
      if (i >= fours) break;  // as the thread beside it, which has the other half of eight
      const float4 v = held[j] * weights[j];
      to[i] = make_uint2(round_bf16(v.x, v.y), round_bf16(v.z, v.w));
      if (norm == nullptr) continue;
      const float sum = sum_of_eight(squares_of(held[j]));
      if (i % 2 == 0) squares[i / 2] = sum;
    }
  }
  if (norm == nullptr) return;
  __syncthreads();
  if (threadIdx.x >= kWarpSize) return;
  RowSquares<8> sums;
  sums.load(squares, K);
  const float scale = sums.scale(squares, K, eps);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
}

int round_up(int a, int b) { return ceil_div(a, b) * b; }

// The memory of each of so many blocks on one multiprocessor, which takes 1 KB of each for itself.
constexpr int kMemoryOfAll = 228 << 10;
template <typename T>
constexpr int kMemory = kMemoryOfAll / T::kBlocks - (1 << 10);
// What a block takes of it: of few rows it leaves room for one of the three blocks of the next
// layer, whose weights then come while this one ends.
template <typename T>
constexpr int kTaken = kMemory<T> - (T::kBlocks == 1 && kPaced<T> ? kMemoryOfAll / 3 : 0);

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

// Of the pieces of K, how many a block of a tiling that is not wide makes in turn: two where these
// are short and W is too high for one tile on a multiprocessor if each block has but one.
template <typename T>
int turns_of(const Matrix& W) {
  constexpr int kShort = 12 * kBoxK, kHigh = 2048;
  const int pieces = pieces_of(W);
  return pieces > 2 && W.K <= pieces * kShort && W.N > kHigh ? T::kMostTurns : 1;
}

// How a layer is cut into blocks.
template <typename T>
struct Cut {
  int box_rows;  // of W; two boxes are a tile
  int tiles, tiles_of_rows;
  int turns, parts;  // of K: parts of as many pieces as a block makes in turn
  int sharers;       // tiles side by side with the same rows of W

  Cut(const LinearArgs& args, int box_rows, int turns, int sharers = 1)
      : box_rows(box_rows),
        tiles(ceil_div(args.outputs(), outputs_of_tile(args, box_rows))),
        tiles_of_rows(ceil_div(args.rows, T::kRows)),
        turns(turns),
        parts(pieces_of(args.W) / turns),
        sharers(sharers) {}

  static int outputs_of_tile(const LinearArgs& args, int box_rows) {
    return args.swiglu ? box_rows : 2 * box_rows;
  }
  int cluster() const { return parts * sharers; }
  int clusters() const { return tiles * tiles_of_rows / sharers; }
  int blocks() const { return clusters() * cluster(); }
  dim3 grid() const {
    return {static_cast<unsigned>(tiles * cluster()),
            static_cast<unsigned>(tiles_of_rows / sharers)};
  }
  // How often the GPU is filled.
  int waves() const { return ceil_div(clusters(), clusters_at_once<T>(cluster())); }
};

// Tiles so high that their clusters fill the room that there is for them, once or as often as it
// takes with tiles of at most kTileM rows.
template <typename T>
Cut<T> filling(const LinearArgs& args) {
  const int turns = turns_of<T>(args.W);
  const Cut<T> any(args, kGroupM, turns);
  const int room = std::max(1, clusters_at_once<T>(any.parts) / any.tiles_of_rows);
  for (int waves = 1;; ++waves) {
    const int64_t boxes = int64_t{room} * waves * any.outputs_of_tile(args, 1);
    const int box_rows = round_up(ceil_div(args.outputs(), boxes), 4);
    if (2 * box_rows <= T::kTileM) return {args, std::max(box_rows, 8), turns};
  }
}

// Bytes of weights that all paced blocks together ask for at once as they begin. Memory is busy
// with these, and behind more what the kernels before still read and write would stand in line.
// Where blocks hurry in the end, fewer do.
constexpr int64_t kUnderWay = 9270 << 10, kUnderWayAtFirst = 6200 << 10;

// Whether the kernel after this one may begin at once. What it loads ahead stands in line before
// the rest of W, and what kernels before still load; of one row there is no rest where the GPU's
// shared memory has room for all of W.
bool lets_next_start(const LinearArgs& args, Stream& stream) {
  const int64_t room = int64_t{static_cast<CudaStream&>(stream).multiprocessors()} * kMemoryOfAll;
  return args.rows == 1 && args.W.N * args.W.K * static_cast<int64_t>(sizeof(uint16_t)) <= room;
}

template <typename T>
void launch_linear(const LinearArgs& args, const Rows& x, const Cut<T>& cut, Stream& stream) {
  const int boxes = ceil_div(args.W.K, kBoxK);
  Task task{.rows = args.rows,
            .outputs = static_cast<int>(args.outputs()),
            .stages = 0,
            .box_rows = cut.box_rows,
            .tile_step = cut.outputs_of_tile(args, cut.box_rows),
            .box_offset = args.swiglu ? static_cast<int>(args.W.N / 2) : cut.box_rows,
            .x_rows = T::kWide ? round_up(ceil_div(args.rows, cut.tiles_of_rows), 8)
                               : ceil_div(args.rows, cut.tiles_of_rows),
            .boxes = boxes,
            .piece_boxes = ceil_div(boxes, cut.turns * cut.parts),
            .turns = cut.turns,
            .parts = cut.parts,
            .sharers = cut.sharers,
            .swiglu = args.swiglu,
            .vector = args.outputs() % 4 == 0 && aligned(args.y) && aligned(args.y_bf16) &&
                      aligned(args.bias) && aligned(args.residual),
            .soft_cap = args.soft_cap,
            .K = static_cast<int>(args.W.K),
            .norm_eps = args.norm_eps,
            .scales = x.scales,
            .squares = x.squares,
            .found = x.found,
            .bias = args.bias,
            .residual = args.residual,
            .y = args.y,
            .y_bf16 = args.y_bf16,
            .conv = args.conv.value_or(CausalConv1dArgs{}),
            .conv_first = args.conv ? static_cast<int>(args.conv->x - args.y) : 0,
            .next_norm = args.next_norm,
            .next = args.next,
            .lets_next_start = lets_next_start(args, stream),
            .under_way = 0,
            .hurries = args.rows == 1,
            .first_boxes = 0};
  task.stages = std::clamp(ceil_div(boxes, cut.parts), 2, kMostStages);
  while (Shared<T>::bytes(task) > kTaken<T>) --task.stages;
  if constexpr (kPaced<T>) {
    const int at_once = std::min(cut.blocks(), clusters_at_once<T>(cut.cluster()) * cut.cluster());
    const int64_t under_way = task.hurries ? kUnderWayAtFirst : kUnderWay;
    task.under_way = std::max(1, static_cast<int>(under_way / at_once / task.W_bytes()));
    if (args.W.K % kBoxK == 0) {
      task.first_boxes = std::min(task.stages, task.piece_boxes * task.turns);
    }
  }
  CHECK(task.turns <= T::kMostTurns && task.stages > 1 && 2 * task.box_rows <= T::kTileM);
  allow_memory<T>();
  const Matrix rows{.dtype = DType::kBF16, .N = args.rows, .K = args.W.K, .data = x.x};
  launch_early(
      stream, "linear", linear_kernel<T>,
      {.grid = cut.grid(),
       .threads = T::kThreads,
       .shared = static_cast<size_t>(Shared<T>::bytes(task)),
       .cluster = static_cast<unsigned>(cut.cluster())},
      tensor_map(args.W, T::kWide || args.swiglu ? cut.box_rows : 2 * cut.box_rows),
      tensor_map(rows, task.x_rows),
      task.first_boxes > 0 ? tensor_map(rows, task.x_rows, task.first_boxes) : CUtensorMap(), task);
}

// Tiles of the height that fills the GPU, which weights read from memory want.
template <int kRows, int kBlocks>
void launch_filling(const LinearArgs& args, const Rows& x, Stream& stream) {
  const Cut cut = filling<Tiling<2, kRows, kBlocks>>(args);
  if (2 * cut.box_rows > kGroupM) return launch_linear(args, x, cut, stream);
  launch_linear<Tiling<1, kRows, kBlocks>>(args, x, {args, cut.box_rows, cut.turns}, stream);
}

// One tile on a multiprocessor, as x is read for each, unless that makes them very low or does not
// take all of W: then kBlocks.
template <int kRows, int kBlocks>
void launch_one_or(const LinearArgs& args, const Rows& x, Stream& stream) {
  constexpr int kLow = 40;
  const Cut cut = filling<Tiling<2, kRows, 1>>(args);
  if (2 * cut.box_rows >= kLow && cut.waves() == 1) return launch_linear(args, x, cut, stream);
  launch_filling<kRows, kBlocks>(args, x, stream);
}

// About how long wide tiles take, in ns, as measured on an H200: a box takes what its products take
// or what its rows take to come. Blocks that share some need a while to agree; it takes longer
// where each loads all of them, and most where others load the same weights. Then there are the
// beginning, the outputs and the sums of another block.
template <typename T>
int64_t time_of(const LinearArgs& args, const Cut<T>& cut) {
  constexpr double kProduct = 2.73 / 128, kRow = 1.16, kShared = 290, kAlone = 1.2;
  constexpr double kProductAmongOthers = 2.87 / 128, kRowAmongOthers = 1.75;
  constexpr double kBegin = 4000, kOutput = 17.6 / 128, kOtherSums = 1300;
  constexpr int kElements = T::kTileM * T::kRows, kBoxRows = T::kTileM + T::kRows;
  const double least = std::max(kProduct * kElements, kRow * kBoxRows);
  const double box = cut.sharers > 1 ? std::max(least, kShared)
                     : cut.tiles_of_rows == 1
                         ? kAlone * least
                         : std::max(kProductAmongOthers * kElements, kRowAmongOthers * kBoxRows);
  const double time = box * static_cast<double>(args.W.K) / (kBoxK * cut.parts) + kBegin +
                      kOutput * kElements / cut.parts + (cut.parts > 1 ? kOtherSums : 0);
  return cut.waves() * static_cast<int64_t>(time);
}

// The wide tiles that take least time, or those of persistent blocks if they take less.
template <int kRows, int... kTileM>
void launch_widest(const LinearArgs& args, const Rows& x, Stream& stream) {
  int best_height = 0, best_turns = 0, best_sharers = 0;
  int64_t least = 0;
  const int pieces = pieces_of(args.W), tiles_of_rows = ceil_div(args.rows, kRows);
  const auto look_at = [&]<typename T>(T, int parts, int sharers) {
    if (pieces / parts > T::kMostTurns) return;
    const Cut<T> cut(args, T::kTileM / 2, pieces / parts, sharers);
    const int64_t time = time_of(args, cut);
    if (best_height != 0 && time >= least) return;
    best_height = T::kTileM;
    best_turns = cut.turns;
    best_sharers = sharers;
    least = time;
  };
  for (int parts = 1; parts <= std::min(pieces, 2); ++parts) {
    (look_at(WideTiling<kTileM, kRows>{}, parts, 1), ...);
    // There is room for few clusters of four: for one wave of them.
    if (tiles_of_rows == 2 || (tiles_of_rows % 2 == 0 && parts == 1)) {
      (look_at(WideTiling<kTileM, kRows>{}, parts, 2), ...);
    }
  }
  if (const auto plan = plan_persistent(args, stream); plan && plan->time < least) {
    return launch_persistent(*plan, args, x, stream);
  }
  const auto launch_if_best = [&]<typename T>(T) {
    if (best_height != T::kTileM) return;
    launch_linear<T>(args, x, {args, T::kTileM / 2, best_turns, best_sharers}, stream);
  };
  (launch_if_best(WideTiling<kTileM, kRows>{}), ...);
}

// Tiles of 256 rows where K is in one piece, unless they leave half of the multiprocessors idle.
void launch_wide(const LinearArgs& args, const Rows& x, Stream& stream) {
  constexpr int kLowest = 64;
  const int half = static_cast<CudaStream&>(stream).multiprocessors() / 2;
  const Cut<WideTiling<kLowest, 256>> lowest(args, kLowest / 2, 1);
  if (lowest.parts == 1 && lowest.blocks() > half) {
    return launch_widest<256, kLowest, 128, 176, 192>(args, x, stream);
  }
  launch_widest<128, kLowest, 80, 96, 128, 144, 160, 176, 192>(args, x, stream);
}

// Up to 128 rows x weighs as much as W, and tiles that are high or wide are best where there are
// enough of them. A longer K takes longer in turn than it does to add up its pieces in other
// blocks.
void launch_some_rows(const LinearArgs& args, const Rows& x, int wide_blocks, Stream& stream) {
  constexpr int kLongK = 4096, kEnough = 60;
  const bool in_turn = pieces_of(args.W) > 1 && args.W.K <= kLongK;
  if (in_turn && wide_blocks >= kEnough) return launch_wide(args, x, stream);
  if (turns_of<Tiling<2, 128, 1>>(args.W) > 1) return launch_one_or<128, 2>(args, x, stream);
  const Cut high = filling<Tiling<3, 128, 1>>(args);
  if (high.box_rows > kGroupM) return launch_linear(args, x, high, stream);
  launch_filling<128, 2>(args, x, stream);
}

// Up to 64 rows weights are what takes time. With several blocks on a multiprocessor another's
// weights come while one ends, or those of the next kernel.
void linear_rows(const LinearArgs& args, const Rows& x, Stream& stream) {
  if (args.rows <= 8) return launch_one_or<8, 3>(args, x, stream);
  if (args.rows <= 16) return launch_one_or<16, 3>(args, x, stream);
  if (args.rows <= 32) return launch_one_or<32, 3>(args, x, stream);
  if (args.rows <= 64) return launch_one_or<64, 3>(args, x, stream);
  constexpr int kFew = 24;
  const int pieces = pieces_of(args.W), turns = pieces > 2 ? pieces / 2 : pieces;
  const int wide_blocks = Cut<WideTiling<64, 128>>(args, 64 / 2, turns).blocks();
  if (wide_blocks < kFew) return launch_filling<64, 3>(args, x, stream);
  if (args.rows <= 128) return launch_some_rows(args, x, wide_blocks, stream);
  launch_wide(args, x, stream);
}

// scales: of the rows, where there is a norm.
void round_rows(const LinearArgs& args, uint16_t* rounded, float* scales, Stream& stream) {
  const size_t squares = args.norm == nullptr ? 0 : args.W.K / BegunNorm::kSquares * sizeof(float);
  const auto launch = [&]<int kThreads>() {
    launch_early(stream, "linear, rounding", round_kernel<kThreads>,
                 {.grid = static_cast<unsigned>(args.rows), .threads = kThreads, .shared = squares},
                 args.x, args.norm, args.norm_eps, static_cast<int>(args.W.K), rounded, scales);
  };
  constexpr int kFewRows = 1024;
  if (args.rows <= kFewRows) return launch.operator()<512>();
  launch.operator()<128>();
}

// A warp a row: the scales of a norm that is begun.
constexpr int kScaleThreads = 128;
__global__ void __launch_bounds__(kScaleThreads)
    scales_kernel(const float* squares, int rows, int K, float eps, float* scales) {
  let_next_start();
  wait_for_previous();
  const int row = static_cast<int>(blockIdx.x * kScaleThreads + threadIdx.x) / kWarpSize;
  if (row >= rows) return;
  const float* mine = squares + static_cast<int64_t>(row) * (K / BegunNorm::kSquares);
  RowSquares<8> sums;
  sums.load(mine, K);
  const float scale = sums.scale(mine, K, eps);
  if (threadIdx.x % kWarpSize == 0) scales[row] = scale;
}

// Of a norm that is begun. Few rows' scales are found by the blocks that multiply them.
void linear_begun(const LinearArgs& args, Stream& stream) {
  const BegunNorm& begun = args.begun;
  if (args.rows <= kMostRowsOfBegunNorm) {
    return linear_rows(args, {.x = begun.x, .squares = begun.squares, .found = begun.scales},
                       stream);
  }
  launch_early(stream, "linear, scales", scales_kernel,
               {.grid = static_cast<unsigned>(ceil_div(args.rows, kScaleThreads / kWarpSize)),
                .threads = kScaleThreads},
               begun.squares, args.rows, static_cast<int>(args.W.K), args.norm_eps, begun.scales);
  linear_rows(args, {.x = begun.x, .scales = begun.scales}, stream);
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

}  // namespace

void run(const LinearArgs& args, Stream& stream) {
  if (args.rows == 0 || args.W.N == 0) return;
  if (!linear_takes(args.W)) {
    CHECK(args.x_bf16 == nullptr && args.y_bf16 == nullptr && args.next.x == nullptr);
    CHECK(args.begun.x == nullptr);
    return sm80::run(args, stream);
  }
  if (args.next.x != nullptr) {
    CHECK(args.rows <= kMostRowsOfBegunNorm && args.W.N % BegunNorm::kSquares == 0 &&
          !args.swiglu && !args.conv && aligned(args.next.x) && aligned(args.next_norm));
  }
  if (args.x_bf16 != nullptr) {
    CHECK(aligned(args.x_bf16) && args.norm == nullptr);
    return linear_rows(args, {args.x_bf16}, stream);
  }
  if (args.begun.x != nullptr) {
    CHECK(aligned(args.begun.x) && args.norm != nullptr);
    return linear_begun(args, stream);
  }
  const int64_t K = args.W.K;
  const std::span<std::byte> scratch = static_cast<CudaStream&>(stream).scratch();
  // Whole tiles.
  const int most =
      static_cast<int>(scratch.size() / (sizeof(uint16_t) * K + sizeof(float)) / 256) * 256;
  auto* rounded = reinterpret_cast<uint16_t*>(scratch.data());
  auto* scales = reinterpret_cast<float*>(rounded + most * K);
  CHECK(most > 0 && aligned(args.x));
  for (int row = 0; row < args.rows; row += most) {
    const LinearArgs part = rows_of(args, row, std::min(most, args.rows - row));
    round_rows(part, rounded, scales, stream);
    linear_rows(part, {.x = rounded, .scales = args.norm == nullptr ? nullptr : scales}, stream);
  }
}

}  // namespace recurve::cuda::sm90
