#include "kernels/cpu/linear/linear.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/aligned_memory.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"
#include "kernels/weight_format.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear/linear.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/linear/linear_panel-inl.h"
#include "kernels/cpu/linear/transposed_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

LinearProducts linear_products(const LinearArgs& args) {
  if (args.W.transposed) {
    return args.W.dtype == DType::kBF16
               ? transposed_products_for<PlainColumns<hwy::bfloat16_t>>(args)
               : transposed_products_for<PlainColumns<float>>(args);
  }
  return args.W.dtype == DType::kBF16 ? products_for<PlainWeights<hwy::bfloat16_t>>(args)
                                      : products_for<PlainWeights<float>>(args);
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {
namespace {

HWY_EXPORT(linear_products);

constexpr int64_t kBlockWork = 32 * 1024;  // multiplications worth a separate task
constexpr int64_t kRows = 48;              // rows that make a separate task

// Rows of x as the products read them, (ranges of products.rows rows, rounded_bytes each).
void round_rows(const LinearProducts& products, const LinearArgs& args, int64_t begin, int64_t end,
                std::byte* to) {
  const int64_t K = args.W.K, bytes = products.rounded_bytes(K), together = products.rows;
  for (int64_t row = begin; row < end; row += together, to += together * bytes) {
    products.round(args.x + row * K, K, std::min(together, end - row), to);
  }
}

// All of them, in memory that the next such layer on this thread takes again; null: the products
// read x.
const std::byte* rounded_rows(const LinearProducts& products, const LinearArgs& args,
                              ThreadPool& pool) {
  if (products.round == nullptr) return nullptr;
  static thread_local AlignedMemory memory;
  const int64_t K = args.W.K, bytes = products.rounded_bytes(K);
  auto* const rows = memory.reserve<std::byte>(args.rows * bytes);
  const int64_t together = products.rows;
  for_blocks(pool, ceil_div(args.rows, together), together * K, [&](int64_t begin, int64_t end) {
    round_rows(products, args, begin * together, std::min(end * together, int64_t{args.rows}),
               rows + begin * together * bytes);
  });
  return rows;
}

// The rows [begin, end) alone.
LinearArgs some_rows(LinearArgs args, int64_t begin, int64_t end) {
  args.rows = static_cast<int>(end - begin);
  args.x += begin * args.W.K;
  args.y += begin * args.W.N;
  if (args.residual != nullptr) args.residual += begin * args.W.N;
  return args;
}

// How a layer is divided among tasks.
struct Tasks {
  int64_t outputs;  // of a task, a multiple of LinearProducts::outputs
  int64_t output_blocks, row_blocks;
};

Tasks divide(const LinearProducts& products, const LinearArgs& args, int threads) {
  const int64_t rows = args.rows, N = args.W.N, K = args.W.K;
  const int64_t row_groups = ceil_div(rows, products.rows);
  const int64_t wanted =
      threads == 1 ? 1
                   : std::clamp<int64_t>(rows * N * K / kBlockWork, 1, products.tasks * threads);
  Tasks tasks;
  int64_t outputs;
  if (products.rows_stay) {
    // As many rows as stay in the cache; and all outputs where two tasks a thread come of it, as
    // then a task rounds its own rows.
    const int64_t bytes = rows * products.rounded_bytes(K);
    tasks.row_blocks = std::min(ceil_div(bytes, products.cache_bytes), row_groups);
    outputs = 2 * tasks.row_blocks >= wanted ? N : ceil_div(N * tasks.row_blocks, wanted);
  } else {
    // As many outputs at once as stay in the cache, so that rows are read as seldom as can be.
    const int64_t bytes = products.weight_bytes != nullptr ? products.weight_bytes(K)
                                                           : format_of(args.W).row_bytes(K);
    tasks.row_blocks = std::min(ceil_div(rows, kRows), row_groups);
    outputs =
        std::min(ceil_div(N * tasks.row_blocks, wanted),
                 std::max(products.cache_bytes / std::max<int64_t>(bytes, 1), products.outputs));
  }
  tasks.outputs = ceil_div(outputs, products.outputs) * products.outputs;
  tasks.output_blocks = ceil_div(N, tasks.outputs);
  if (!products.rows_stay) {
    tasks.row_blocks = std::min(ceil_div(wanted, tasks.output_blocks), tasks.row_blocks);
  }
  return tasks;
}

// What linear_with() computes on the way from x to y: rows (rows, K) of a norm, then (rows, N)
// before a gate.
int64_t normed_floats(const LinearArgs& a) { return a.norm != nullptr ? a.rows * a.W.K : 0; }
int64_t gated_floats(const LinearArgs& a) { return a.swiglu ? a.rows * a.W.N : 0; }

// Without norm, gate and cap.
void bare_linear(const LinearProducts& products, const LinearArgs& args, Stream& stream) {
  ThreadPool& pool = pool_of(stream);
  const int64_t rows = args.rows, N = args.W.N;
  const Tasks tasks = divide(products, args, pool.threads());
  const int64_t row_groups = ceil_div(rows, products.rows);
  const auto first_row = [&](int64_t block) {
    return std::min(row_groups * block / tasks.row_blocks * products.rows, rows);
  };
  if (products.rows_stay && tasks.output_blocks == 1) {
    pool.parallel_for(tasks.row_blocks, [&](int64_t block) {
      static thread_local AlignedMemory memory;
      const int64_t begin = first_row(block), end = first_row(block + 1);
      auto* const rounded =
          memory.reserve<std::byte>((end - begin) * products.rounded_bytes(args.W.K));
      round_rows(products, args, begin, end, rounded);
      products.block(some_rows(args, begin, end), rounded, 0, end - begin, 0, N);
    });
    return;
  }
  const std::byte* const rounded = rounded_rows(products, args, pool);
  pool.parallel_for(tasks.output_blocks * tasks.row_blocks, [&](int64_t task) {
    // A thread goes through the outputs of some rows, most of which it has rounded itself.
    const int64_t row_block = task / tasks.output_blocks;
    const int64_t begin = task % tasks.output_blocks * tasks.outputs;
    products.block(args, rounded, first_row(row_block), first_row(row_block + 1), begin,
                   std::min(begin + tasks.outputs, N));
  });
}

}  // namespace

void linear_with(const LinearProducts& products, const LinearArgs& args, Stream& stream) {
  if (args.rows == 0 || args.W.N == 0) return;
  const int outputs = static_cast<int>(args.outputs());
  const int64_t normed = normed_floats(args);
  float* between = scratch(static_cast<size_t>(normed + gated_floats(args)));
  LinearArgs bare = args;
  bare.norm = nullptr;
  if (args.norm != nullptr) {
    run(args.norm_into(between), stream);
    bare.x = between;
  }
  if (args.swiglu) bare.y = between + normed;
  bare_linear(products, bare, stream);
  if (args.swiglu) run(args.gate_of(bare.y), stream);
  if (args.soft_cap > 0) {
    run(SoftCapArgs{.count = int64_t{args.rows} * outputs, .cap = args.soft_cap, .x = args.y},
        stream);
  }
}

int64_t LinearProducts::outputs_at_once(const Matrix& W) const {
  if (rows_stay) return W.N;
  const int64_t bytes = weight_bytes != nullptr ? weight_bytes(W.K) : format_of(W).row_bytes(W.K);
  return std::max<int64_t>(cache_bytes / std::max<int64_t>(bytes, 1) / outputs, 1) * outputs;
}

ScratchBytes scratch_with(const LinearProducts& products, const LinearArgs& a) {
  ScratchBytes bytes;
  bytes.call = static_cast<size_t>(normed_floats(a) + gated_floats(a)) * sizeof(float);
  const auto rows = static_cast<size_t>(a.rows);
  if (products.round != nullptr) {
    const auto row = static_cast<size_t>(products.rounded_bytes(a.W.K));
    bytes.other_call = rows * row;
    const size_t of_task =
        static_cast<size_t>(products.cache_bytes) + 2 * static_cast<size_t>(products.rows) * row;
    if (products.rows_stay) bytes.thread = std::min(rows * row, of_task);
  }
  if (products.block_scratch == nullptr) return bytes;
  const int64_t outputs = std::min(products.outputs_at_once(a.W) + products.outputs, a.W.N);
  bytes.other_thread = products.block_scratch(a.W.K, a.rows, outputs);
  return bytes;
}

ScratchBytes scratch_of(const LinearArgs& args) {
  return scratch_with(HWY_DYNAMIC_DISPATCH(linear_products)(args), args);
}

ScratchBytes scratch_of(const ExpertLinearArgs& args) {
  return scratch_with(
      [](const LinearArgs& of_expert) { return HWY_DYNAMIC_DISPATCH(linear_products)(of_expert); },
      args);
}

void run(const LinearArgs& args, Stream& stream) {
  CHECK(args.W.dtype == DType::kBF16 || args.W.dtype == DType::kF32);
  linear_with(HWY_DYNAMIC_DISPATCH(linear_products)(args), args, stream);
}

void run(const ExpertLinearArgs& args, Stream& stream) {
  CHECK(args.W.dtype == DType::kBF16 || args.W.dtype == DType::kF32);
  experts_with(
      [](const LinearArgs& of_expert) { return HWY_DYNAMIC_DISPATCH(linear_products)(of_expert); },
      args, stream);
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
