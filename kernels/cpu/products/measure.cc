#include "kernels/cpu/products/measure.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "kernels/cpu/stream.h"

namespace recurve::cpu {
namespace {

constexpr int64_t kOutputs = 256, kColumns = 1024;  // in bf16 what a second cache holds
constexpr int kRows[] = {12, 48};                   // of a dozen sequences, of a prompt
constexpr int kTimes = 10;                          // of which the shortest counts
constexpr double kWorth = 0.8;

// kOutputs times the same row of values around 1 / sqrt(kColumns), as a layer has.
struct Weights {
  explicit Weights(const WeightFormat& format)
      : row_bytes(format.row_bytes(kColumns)), row_scales(format.row_scales(kColumns)) {
    std::vector<float> row(kColumns);
    for (int64_t k = 0; k < kColumns; ++k) row[k] = static_cast<float>(k % 17 - 8) / 160;
    data.reset(static_cast<std::byte*>(::operator new(kOutputs * row_bytes, kAlignment)));
    scales.resize(kOutputs * row_scales);
    format.pack(row.data(), kColumns, data.get(), scales.data());
    for (int64_t n = 1; n < kOutputs; ++n) {
      std::copy_n(data.get(), row_bytes, data.get() + n * row_bytes);
      std::copy_n(scales.data(), row_scales, scales.data() + n * row_scales);
    }
    matrix = {.dtype = format.dtype, .N = kOutputs, .K = kColumns, .data = data.get()};
    if (format.packed()) {
      matrix.format = &format;
      matrix.scales = scales.data();
    }
  }

  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
  };
  const int64_t row_bytes, row_scales;
  std::unique_ptr<std::byte, Free> data;
  std::vector<std::byte> scales;
  Matrix matrix;
};

double seconds_of(LinearRun run, const LinearArgs& args, Stream& stream) {
  const auto begin = std::chrono::steady_clock::now();
  run(args, stream);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

bool is_faster(LinearRun narrow, LinearRun wide, const WeightFormat& format) {
  const Weights weights(format);
  ThreadPool pool(1);
  CpuStream stream(pool);
  double with_narrow = 0, with_wide = 0;
  for (const int rows : kRows) {
    const std::vector<float> x(rows * kColumns, 0.75f);
    std::vector<float> y(rows * kOutputs);
    const LinearArgs args{.rows = rows, .W = weights.matrix, .x = x.data(), .y = y.data()};
    double shortest_narrow = std::numeric_limits<double>::infinity();
    double shortest_wide = shortest_narrow;
    for (int i = 0; i < kTimes; ++i) {  // in turns, as others use the machine too
      shortest_narrow = std::min(shortest_narrow, seconds_of(narrow, args, stream));
      shortest_wide = std::min(shortest_wide, seconds_of(wide, args, stream));
    }
    with_narrow += shortest_narrow;
    with_wide += shortest_wide;
  }
  return with_narrow <= kWorth * with_wide;
}

}  // namespace recurve::cpu
