#include <algorithm>
#include <atomic>
#include <vector>

#include "kernels/cpu/aligned_memory.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/targets.h"
#include "kernels/weight_format.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear/expert_linear.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

void gate_outputs(int64_t count, const float* gates, const float* ups, float* y) {
  for_lanes(count, [&](auto d, int64_t j) HWY_ATTR {
    hn::StoreU(hn::Mul(silu(d, hn::LoadU(d, gates + j)), hn::LoadU(d, ups + j)), d, y + j);
  });
}

void add_weighted(int64_t count, float weight, const float* z, float* y) {
  for_lanes(count, [&](auto d, int64_t j) HWY_ATTR {
    hn::StoreU(hn::MulAdd(hn::Set(d, weight), hn::LoadU(d, z + j), hn::LoadU(d, y + j)), d, y + j);
  });
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {
namespace {

HWY_EXPORT(gate_outputs);
HWY_EXPORT(add_weighted);

// Rows of an expert that are multiplied together at most: so many pay for widening its weights, and
// bound the memory of a thread. A multiple of every LinearProducts::rows.
constexpr int64_t kMostRows = 192;
// Ranges of outputs that are added up by one task begin at multiples of this, which is one of every
// LinearProducts::outputs.
constexpr int64_t kOutputs = 64;

// Rows of one expert that follow each other.
struct Part {
  int64_t expert, first, rows;  // first: the position
  LinearProducts products;
};

// Some outputs of a part.
struct Task {
  size_t part;
  int64_t begin, end;
};

// What a thread has of the part that it worked on last, and memory for products.
struct Workspace {
  uint64_t call = 0;  // that the part was one of
  size_t part = 0;
  bool has_rows = false, has_rounded = false;
  AlignedMemory rows, rounded, products;
};

// Outputs of a task that computes gates: as many of both halves.
int64_t gate_step(const LinearProducts& products, const ExpertLinearArgs& a) {
  const int64_t half = a.outputs() / 2;
  if (half % products.outputs != 0) return half;
  const int64_t groups =
      products.outputs_at_once(rows_of(a.W, 0, a.outputs())) / 2 / products.outputs;
  return std::max<int64_t>(groups, 1) * products.outputs;
}

// Parts that so many rows may come to.
int64_t most_parts(const ExpertLinearArgs& a) {
  const int64_t pairs = int64_t{a.rows} * a.top;
  return std::min<int64_t>(a.E, pairs) + pairs / kMostRows;
}

class ExpertProducts {
 public:
  ExpertProducts(ChooseProducts choose, const ExpertLinearArgs& args)
      : a_(args), parts_(memory_of_parts()) {
    static std::atomic<uint64_t> calls = 0;
    call_ = ++calls;
    parts_.clear();
    parts_.reserve(static_cast<size_t>(most_parts(a_)));
    for (int64_t e = 0; e < a_.E; ++e) {
      const int64_t first = a_.begin == nullptr ? 0 : a_.begin[e];
      const int64_t last = a_.begin == nullptr ? a_.rows : a_.begin[e + 1];
      for (int64_t i = first; i < last; i += kMostRows) {
        Part part{e, i, std::min(kMostRows, last - i), {}};
        part.products = choose(layer(part));
        parts_.push_back(part);
      }
    }
  }

  // y[i] = silu(first half of W_e x[r]) * second half.
  void gate_all(ThreadPool& pool) {
    static thread_local std::vector<Task> tasks;
    tasks.clear();
    const int64_t half = a_.outputs() / 2;
    for (size_t p = 0; p < parts_.size(); ++p) {
      const int64_t step = gate_step(parts_[p].products, a_);
      for (int64_t n = 0; n < half; n += step) tasks.push_back({p, n, std::min(n + step, half)});
    }
    const Task* const all = tasks.data();
    pool.parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t t) { gate_some(all[t]); });
  }

  // y[r] += weight[p] W_e x[i]: a task has some outputs of all rows, and goes through the experts
  // in their order.
  void add_all(ThreadPool& pool) {
    const int64_t N = a_.outputs();
    const int64_t wanted = pool.threads() == 1 ? 1 : 4 * int64_t{pool.threads()};
    const int64_t step = ceil_div(ceil_div(N, wanted), kOutputs) * kOutputs;
    pool.parallel_for(ceil_div(N, step), [&](int64_t t) {
      for (size_t p = 0; p < parts_.size(); ++p) {
        add_some({p, t * step, std::min((t + 1) * step, N)});
      }
    });
  }

 private:
  static std::vector<Part>& memory_of_parts() {
    static thread_local std::vector<Part> parts;
    return parts;
  }
  static Workspace& workspace() {
    static thread_local Workspace workspace;
    return workspace;
  }

  // The layer that a part is, without x and y.
  LinearArgs layer(const Part& part) const {
    return {.rows = static_cast<int>(part.rows),
            .W = rows_of(a_.W, part.expert * a_.outputs(), a_.outputs())};
  }

  const float* row(int64_t position) const {
    if (a_.weight != nullptr || a_.pair == nullptr) return a_.x + position * a_.W.K;
    return a_.x + a_.pair[position] / a_.top * a_.W.K;
  }

  // The rows of a part as the products read them, one after the other.
  const float* rows(const Part& part, Workspace& w) const {
    const int64_t K = a_.W.K;
    if (a_.weight != nullptr || a_.pair == nullptr || part.rows == 1) return row(part.first);
    auto* const rows = w.rows.reserve<float>(kMostRows * K);
    if (!w.has_rows) {
      for (int64_t i = 0; i < part.rows; ++i) std::copy_n(row(part.first + i), K, rows + i * K);
    }
    w.has_rows = true;
    return rows;
  }
  const std::byte* rounded(const Part& part, const float* x, Workspace& w) const {
    const LinearProducts& p = part.products;
    if (p.round == nullptr) return nullptr;
    const int64_t K = a_.W.K, bytes = p.rounded_bytes(K);
    auto* const rounded = w.rounded.reserve<std::byte>(kMostRows * bytes);
    for (int64_t i = 0; i < part.rows && !w.has_rounded; i += p.rows) {
      p.round(x + i * K, K, std::min(p.rows, part.rows - i), rounded + i * bytes);
    }
    w.has_rounded = true;
    return rounded;
  }

  // z: (rows of the part, N), of which these outputs are written.
  float* multiply(size_t p, int64_t begin, int64_t end) const {
    Workspace& w = workspace();
    if (w.call != call_ || w.part != p) {
      w.call = call_;
      w.part = p;
      w.has_rows = w.has_rounded = false;
    }
    const Part& part = parts_[p];
    LinearArgs args = layer(part);
    args.x = rows(part, w);
    args.y = w.products.reserve<float>(kMostRows * args.W.N);
    part.products.block(args, rounded(part, args.x, w), 0, part.rows, begin, end);
    return args.y;
  }

  void gate_some(const Task& task) const {
    const Part& part = parts_[task.part];
    const int64_t N = a_.outputs(), half = N / 2;
    const bool all = task.end - task.begin == half;
    const float* z = multiply(task.part, task.begin, all ? N : task.end);
    if (!all) z = multiply(task.part, half + task.begin, half + task.end);
    for (int64_t i = 0; i < part.rows; ++i) {
      const float* gates = z + i * N + task.begin;
      HWY_DYNAMIC_DISPATCH(gate_outputs)
      (task.end - task.begin, gates, gates + half, a_.y + (part.first + i) * half + task.begin);
    }
  }

  void add_some(const Task& task) const {
    const Part& part = parts_[task.part];
    const int64_t N = a_.outputs(), step = part.products.outputs_at_once(layer(part).W);
    for (int64_t n = task.begin; n < task.end; n += step) {
      const int64_t end = std::min(n + step, task.end);
      const float* z = multiply(task.part, n, end);
      for (int64_t i = 0; i < part.rows; ++i) {
        const int64_t position = part.first + i;
        const int64_t pair = a_.pair == nullptr ? position : a_.pair[position];
        HWY_DYNAMIC_DISPATCH(add_weighted)
        (end - n, a_.weight[pair], z + i * N + n, a_.y + pair / a_.top * N + n);
      }
    }
  }

  const ExpertLinearArgs& a_;
  std::vector<Part>& parts_;
  uint64_t call_;
};

}  // namespace

void experts_with(ChooseProducts choose, const ExpertLinearArgs& args, Stream& stream) {
  if (args.rows == 0 || args.outputs() == 0) return;
  ExpertProducts products(choose, args);
  if (args.weight == nullptr) {
    products.gate_all(pool_of(stream));
  } else {
    products.add_all(pool_of(stream));
  }
}

// Of experts with one row and with many, which may be multiplied in different ways.
ScratchBytes scratch_with(ChooseProducts choose, const ExpertLinearArgs& a) {
  const Matrix W = rows_of(a.W, 0, a.outputs());
  const bool gates = a.weight == nullptr;
  const auto parts = static_cast<size_t>(most_parts(a));
  ScratchBytes bytes{.call = parts * sizeof(Part), .thread = 0};
  size_t blocks = 0, rounded = 0, tasks = 0;
  for (const int64_t rows : {int64_t{1}, std::min<int64_t>(a.rows, kMostRows)}) {
    const LinearProducts products = choose({.rows = static_cast<int>(rows), .W = W});
    if (products.round != nullptr) {
      rounded = static_cast<size_t>(kMostRows * products.rounded_bytes(W.K));
    }
    if (products.block_scratch != nullptr) {
      blocks = std::max(blocks, products.block_scratch(W.K, rows, W.N));
    }
    tasks = std::max(tasks, static_cast<size_t>(ceil_div(W.N / 2, gate_step(products, a))));
  }
  if (gates) bytes.call += 3 * parts * tasks * sizeof(Task);  // a vector that grows
  const bool copies = gates && a.pair != nullptr && a.rows > 1;
  bytes.thread = rounded + static_cast<size_t>(copies ? kMostRows * W.K : 0) * sizeof(float);
  bytes.other_thread = blocks + static_cast<size_t>(kMostRows * W.N) * sizeof(float);
  return bytes;
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
