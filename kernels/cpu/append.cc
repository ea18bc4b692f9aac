#include <algorithm>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"
#include "kernels/page_check.h"

#ifndef RECURVE_CPU_APPEND_ONCE
#define RECURVE_CPU_APPEND_ONCE
namespace recurve::cpu {

// Rows of a sequence that are in one page, from one of its tokens on.
struct AppendedRows {
  int32_t slot;
  int64_t row, rows;
  int64_t position;  // of the first
};

}  // namespace recurve::cpu
#endif  // RECURVE_CPU_APPEND_ONCE

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/append.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/transpose-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// The page of a head, into which these rows go.
template <class T>
T* page_of(const PagedData& paged, const AppendedRows& some, int64_t head, int64_t D) {
  const int64_t page = paged.table[int64_t{some.slot} * paged.most + some.position / kPageTokens];
  std::byte* data = static_cast<std::byte*>(paged.data) + page * paged.page_bytes;
  return reinterpret_cast<T*>(data) + head * kPageTokens * D;
}

template <class T>
void append_keys(const AppendArgs& a, const AppendedRows& some, int64_t head) {
  turn(some.rows, a.D, a.k + some.row * a.k_stride + head * a.D, a.k_stride,
       page_of<T>(a.keys, some, head, a.D) + some.position % kPageTokens, kPageTokens);
}

template <class T>
void append_values(const AppendArgs& a, const AppendedRows& some, int64_t head) {
  T* to = page_of<T>(a.values, some, head, a.D) + some.position % kPageTokens * a.D;
  const float* from = a.v + some.row * a.v_stride + head * a.D;
  for (int64_t row = 0; row < some.rows; ++row, from += a.v_stride, to += a.D) {
    for_lanes(a.D,
              [&](auto d, int64_t i) HWY_ATTR { store_state(d, hn::LoadU(d, from + i), to + i); });
  }
}

void append_head(const AppendArgs& a, const AppendedRows& some, int64_t head) {
  if (a.keys.dtype == DType::kF32) {
    append_keys<float>(a, some, head);
    append_values<float>(a, some, head);
  } else {
    append_keys<uint16_t>(a, some, head);
    append_values<uint16_t>(a, some, head);
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {
namespace {

HWY_EXPORT(append_head);

std::vector<AppendedRows> by_page(const AppendArgs& a) {
  std::vector<AppendedRows> all;
  for (int seq = 0; seq < a.seqs.num_seqs; ++seq) {
    const int64_t end = a.seqs.begin[seq + 1];
    if (a.seqs.slot[seq] == 0) continue;
    for (int64_t row = a.seqs.begin[seq]; row < end; row += all.back().rows) {
      const int64_t position = a.position[row], left = kPageTokens - position % kPageTokens;
      all.push_back({a.seqs.slot[seq], row, std::min(left, end - row), position});
    }
  }
  return all;
}

}  // namespace

void run(const AppendArgs& a, Stream& stream) {
  check_pages(a);
  const std::vector<AppendedRows> pages = by_page(a);
  if (pages.empty()) return;
  const auto count = static_cast<int64_t>(pages.size());
  const int64_t cost = int64_t{4} * a.D * a.seqs.rows / count;
  for_blocks(pool_of(stream), count * a.HK, cost, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      HWY_DYNAMIC_DISPATCH(append_head)(a, pages[static_cast<size_t>(item / a.HK)], item % a.HK);
    }
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
