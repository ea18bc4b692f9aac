#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/dot_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// Rows [row, row + ROWS) and outputs [n, n + OUTPUTS) as far as they exist.
template <int ROWS, int OUTPUTS, typename T>
void tile(const LinearArgs& a, int64_t row, int64_t n, bool fetch) {
  const int64_t N = a.W.N, K = a.W.K;
  const float* x[ROWS];
  const T* w[OUTPUTS];
  for (int r = 0; r < ROWS; ++r) x[r] = a.x + (row + r) * K;
  for (int j = 0; j < OUTPUTS; ++j) {
    w[j] = static_cast<const T*>(a.W.data) + std::min(n + j, N - 1) * K;
  }
  float sums[ROWS][OUTPUTS];
  dot_tile(K, x, w, fetch ? OUTPUTS * K : 0, sums);

  const int64_t count = std::min<int64_t>(OUTPUTS, N - n);
  for (int r = 0; r < ROWS; ++r) {
    const int64_t at = (row + r) * N + n;
    for (int64_t j = 0; j < count; ++j) {
      float sum = sums[r][j];
      if (a.bias != nullptr) sum += a.bias[n + j];
      if (a.residual != nullptr) sum += a.residual[at + j];
      a.y[at + j] = sum;
    }
  }
}

// All outputs in [begin, end) of ROWS rows.
template <int ROWS, typename T>
void row_tile(const LinearArgs& a, int64_t row, int64_t begin, int64_t end, bool fetch) {
  constexpr int OUTPUTS = kTileOutputs<ROWS>;
  for (int64_t n = begin; n < end; n += OUTPUTS) tile<ROWS, OUTPUTS, T>(a, row, n, fetch);
}

// Matrices of this size are taken to come from memory: models that have them do not fit in a cache.
inline constexpr int64_t kMemoryBytes = 4 << 20;

template <typename T>
void block(const LinearArgs& a, int64_t row_begin, int64_t row_end, int64_t begin, int64_t end) {
  for (int64_t row = row_begin; row < row_end;) {
    // The rest in tiles of nearly one size.
    const int64_t rest = row_end - row;
    const int64_t tiles = ceil_div(rest, kTileRows);
    const int64_t rows = ceil_div(rest, tiles);
    // Only the first rows find their weights in memory; the next find them in the cache.
    const bool fetch = row == row_begin && a.W.N * a.W.K * int64_t{sizeof(T)} >= kMemoryBytes;
    switch (rows) {
      case 1:
        row_tile<1, T>(a, row, begin, end, fetch);
        break;
      case 2:
        row_tile<2, T>(a, row, begin, end, fetch);
        break;
      case 3:
        row_tile<3, T>(a, row, begin, end, fetch);
        break;
      case 4:
        row_tile<std::min(4, kTileRows), T>(a, row, begin, end, fetch);
        break;
      case 5:
        row_tile<std::min(5, kTileRows), T>(a, row, begin, end, fetch);
        break;
      default:
        row_tile<kTileRows, T>(a, row, begin, end, fetch);
        break;
    }
    row += rows;
  }
}

void linear_block(const LinearArgs& a, int64_t row_begin, int64_t row_end, int64_t begin,
                  int64_t end) {
  if (a.W.dtype == DType::kBF16) {
    block<hwy::bfloat16_t>(a, row_begin, row_end, begin, end);
  } else {
    block<float>(a, row_begin, row_end, begin, end);
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {
namespace {

HWY_EXPORT(linear_block);

constexpr int64_t kCacheBytes = 256 * 1024;  // of weights that stay in L2 while rows pass by
constexpr int64_t kBlockWork = 32 * 1024;    // multiplications worth a task of their own
constexpr int64_t kOutputs = 8;              // blocks of outputs are multiples of this
constexpr int64_t kRows = 48;                // rows that make a task of their own

// Without norm, gate and cap.
void bare_linear(const LinearArgs& args, Stream& stream) {
  CHECK(args.W.dtype == DType::kBF16 || args.W.dtype == DType::kF32);
  ThreadPool& pool = pool_of(stream);
  const int64_t rows = args.rows, N = args.W.N, K = args.W.K;

  const int64_t work = rows * N * K;
  const int64_t wanted =
      pool.threads() == 1 ? 1 : std::clamp<int64_t>(work / kBlockWork, 1, 4 * pool.threads());
  const int64_t row_bytes = std::max<int64_t>(K * static_cast<int64_t>(size_of(args.W.dtype)), 1);
  const int64_t outputs =
      std::min(ceil_div(N, wanted), std::max(kCacheBytes / row_bytes, kOutputs));
  const int64_t n_step = ceil_div(outputs, kOutputs) * kOutputs;
  const int64_t n_blocks = ceil_div(N, n_step);
  const int64_t row_blocks = std::min(ceil_div(wanted, n_blocks), ceil_div(rows, kRows));

  pool.parallel_for(n_blocks * row_blocks, [&](int64_t task) {
    const int64_t row_block = task % row_blocks, begin = task / row_blocks * n_step;
    HWY_DYNAMIC_DISPATCH(linear_block)
    (args, rows * row_block / row_blocks, rows * (row_block + 1) / row_blocks, begin,
     std::min(begin + n_step, N));
  });
}

}  // namespace

void run(const LinearArgs& args, Stream& stream) {
  if (args.rows == 0 || args.W.N == 0) return;
  const int outputs = static_cast<int>(args.outputs());
  const int64_t normed = args.norm != nullptr ? args.rows * args.W.K : 0;
  const int64_t z = args.swiglu ? args.rows * args.W.N : 0;
  float* between = scratch(static_cast<size_t>(normed + z));  // (rows, K), then (rows, N)
  LinearArgs bare = args;
  bare.norm = nullptr;
  if (args.norm != nullptr) {
    run(RmsNormArgs{.rows = args.rows,
                    .D = static_cast<int>(args.W.K),
                    .eps = args.norm_eps,
                    .x = args.x,
                    .w = args.norm,
                    .y = between},
        stream);
    bare.x = between;
  }
  if (args.swiglu) bare.y = between + normed;
  bare_linear(bare, stream);
  if (args.swiglu) {
    run(GluArgs{.rows = args.rows,
                .F = outputs,
                .f = Activation::kSilu,
                .gate_up = bare.y,
                .y = args.y},
        stream);
  }
  if (args.soft_cap > 0) {
    run(SoftCapArgs{.count = int64_t{args.rows} * outputs, .cap = args.soft_cap, .x = args.y},
        stream);
  }
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
