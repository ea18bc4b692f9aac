#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/bf16.h"
#include "kernels/cpu/linear/row_tiles.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear/lora.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/linear/dot_tile-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// Vectors of outputs whose sums stay in registers, for as many rows as a tile has.
inline constexpr int kLoraVectors = kTileRows >= 6 ? 4 : 2;

// Rows of one group that are computed together.
template <int ROWS>
struct LoraTile {
  float inner[ROWS][kMostLoraRank];  // A x
  float* y[ROWS];                    // at the part's first output
};

// The outputs [n, n + VECTORS vectors) of a part. B: of them, its rows `stride` apart.
template <int VECTORS, int ROWS, class D, typename T>
HWY_INLINE void add_outputs(D d, const LoraPart& part, const LoraTile<ROWS>& tile, const T* B,
                            int64_t stride, int64_t n) {
  constexpr int64_t kLanes = hn::MaxLanes(D());
  hn::Vec<D> sum[ROWS][VECTORS];
  HWY_UNROLL(8)
  for (int row = 0; row < ROWS; ++row) {
    HWY_UNROLL(4)
    for (int v = 0; v < VECTORS; ++v) sum[row][v] = hn::Zero(d);
  }
  for (int64_t j = 0; j < part.r; ++j, B += stride) {
    hn::Vec<D> w[VECTORS];
    HWY_UNROLL(4)
    for (int v = 0; v < VECTORS; ++v) w[v] = load_lanes(d, B + v * kLanes);
    HWY_UNROLL(8)
    for (int row = 0; row < ROWS; ++row) {
      const auto inner = hn::Set(d, tile.inner[row][j]);
      HWY_UNROLL(4)
      for (int v = 0; v < VECTORS; ++v) sum[row][v] = hn::MulAdd(inner, w[v], sum[row][v]);
    }
  }
  const auto scale = hn::Set(d, part.scale);
  HWY_UNROLL(8)
  for (int row = 0; row < ROWS; ++row) {
    float* const y = tile.y[row] + n;
    HWY_UNROLL(4)
    for (int v = 0; v < VECTORS; ++v) {
      hn::StoreU(hn::MulAdd(scale, sum[row][v], hn::LoadU(d, y + v * kLanes)), d, y + v * kLanes);
    }
  }
}

template <int ROWS, typename T>
void add_B_times_inner(const LoraPart& part, const LoraTile<ROWS>& tile) {
  constexpr int64_t kStep = kLoraVectors * kDotLanes;
  for (int64_t panel = 0; panel < part.N; panel += kLoraPanel) {
    const int64_t width = std::min(kLoraPanel, part.N - panel);
    const T* const B = static_cast<const T*>(part.B) + panel * part.r;
    int64_t n = 0;
    for (; n + kStep <= width; n += kStep) {
      add_outputs<kLoraVectors>(DotFloats(), part, tile, B + n, width, panel + n);
    }
    for (; n + kDotLanes <= width; n += kDotLanes) {
      add_outputs<1>(DotFloats(), part, tile, B + n, width, panel + n);
    }
    for (; n < width; ++n) add_outputs<1>(OneFloat(), part, tile, B + n, width, panel + n);
  }
}

template <typename T, int ROWS>
void add_part(const LoraPart& part, int64_t K, const float* const (&x)[ROWS],
              LoraTile<ROWS>& tile) {
  float* inner[ROWS];
  for (int row = 0; row < ROWS; ++row) inner[row] = tile.inner[row];
  dot_rows(K, x, static_cast<const T*>(part.A), K, part.r, inner, /*fetch=*/true);
  add_B_times_inner<ROWS, T>(part, tile);
}

template <int ROWS>
void lora_tile(const LoraArgs& a, std::span<const LoraPart> parts, const int32_t* rows) {
  const float* x[ROWS];
  for (int row = 0; row < ROWS; ++row) x[row] = a.x + rows[row] * a.K;
  LoraTile<ROWS> tile;
  for (const LoraPart& part : parts) {
    for (int row = 0; row < ROWS; ++row) tile.y[row] = a.y + rows[row] * a.N + part.first;
    if (part.dtype == DType::kBF16) {
      add_part<hwy::bfloat16_t>(part, a.K, x, tile);
    } else {
      add_part<float>(part, a.K, x, tile);
    }
  }
}

void lora_rows(const LoraArgs& a, std::span<const LoraPart> parts, std::span<const int32_t> rows) {
  for_row_tiles<kTileRows>(0, static_cast<int64_t>(rows.size()), kTileRows,
                           [&]<int ROWS>(int64_t row)
                               HWY_ATTR { lora_tile<ROWS>(a, parts, rows.data() + row); });
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(lora_rows);

void run(const LoraArgs& args, Stream& stream) {
  int64_t count = 0, ranks = 0;
  for (const LoraRows& group : args.groups) {
    const auto rows = static_cast<int64_t>(group.rows.size());
    count += rows;
    for (const LoraPart& part : group.layers[static_cast<size_t>(args.layer)]) {
      ranks += rows * part.r;
    }
  }
  if (ranks == 0) return;
  // Blocks of the rows of all groups, one group behind the other.
  const int64_t cost = ranks / count * (args.K + args.N);
  for_blocks(pool_of(stream), count, cost, [&](int64_t begin, int64_t end) {
    int64_t first = 0;
    for (const LoraRows& group : args.groups) {
      const auto rows = static_cast<int64_t>(group.rows.size());
      const int64_t from = std::clamp(begin - first, int64_t{0}, rows);
      const int64_t to = std::clamp(end - first, int64_t{0}, rows);
      first += rows;
      const auto parts = group.layers[static_cast<size_t>(args.layer)];
      if (from == to || parts.empty()) continue;
      HWY_DYNAMIC_DISPATCH(lora_rows)(
          args, parts,
          group.rows.subspan(static_cast<size_t>(from), static_cast<size_t>(to - from)));
    }
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
