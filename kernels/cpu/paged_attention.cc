#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#ifndef RECURVE_CPU_PAGED_ATTENTION_ONCE
#define RECURVE_CPU_PAGED_ATTENTION_ONCE
namespace recurve::cpu {

// Queries that share a head of keys and values: of some rows of a sequence, oldest first, all heads
// of the group. Keys and values are read once for several of them.
struct QueryBlock {
  const PagedAttentionArgs& args;
  int32_t slot;
  int64_t group;     // head of keys and values
  int64_t row, end;  // rows of the batch

  int64_t heads() const { return args.H / args.HK; }
  int64_t queries() const { return (end - row) * heads(); }
  int64_t row_of(int64_t query) const { return row + query / heads(); }
  int64_t head_of(int64_t query) const { return group * heads() + query % heads(); }
  const float* q(int64_t query) const {
    return args.q + row_of(query) * args.q_stride + head_of(query) * args.D;
  }
  // Keys of the part that begins at `from` that the query sees.
  int64_t keys(int64_t query, int64_t from) const {
    return std::clamp<int64_t>(args.position[row_of(query)] + 1 - from, 0, kAttentionPart);
  }
  // (kPageTokens, D) of the page of the token at x.
  const std::byte* page(const PagedData& paged, int64_t x) const {
    const int64_t number = paged.table[int64_t{slot} * paged.most + x / kPageTokens];
    return static_cast<const std::byte*>(paged.data) + number * paged.page_bytes +
           group * kPageTokens * args.D * static_cast<int64_t>(size_of(paged.dtype));
  }
};

// Of each query: the sums over keys of a part, or of the parts joined so far.
struct QuerySums {
  QuerySums(float* memory, int64_t queries, int64_t D)
      : largest(memory), weights(memory + queries), values(memory + 2 * queries), width(D) {}
  static int64_t floats(int64_t queries, int64_t D) { return queries * (D + 2); }

  float* largest;  // (queries)
  float* weights;  // (queries)
  float* values;   // (queries, D)
  int64_t width;
};

}  // namespace recurve::cpu
#endif  // RECURVE_CPU_PAGED_ATTENTION_ONCE

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/paged_attention.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/linear/dot_tile-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// Products of ROWS queries from `query` on with the keys of a part, as many as the last sees, each
// of the same shape whatever stands around it (dot_tile-inl.h).
template <int ROWS, typename T>
void products(const QueryBlock& block, int64_t query, int64_t from, float* scores) {
  const float* q[ROWS];
  for (int i = 0; i < ROWS; ++i) q[i] = block.q(query + i);
  const int64_t keys = block.keys(query + ROWS - 1, from);
  for (int64_t at = 0; at < keys; at += kPageTokens) {
    float* to[ROWS];
    for (int i = 0; i < ROWS; ++i) to[i] = scores + (query + i) * kAttentionPart + at;
    const auto* page = reinterpret_cast<const T*>(block.page(block.args.keys, from + at));
    dot_rows(block.args.D, q, page, block.args.D, std::min(keys - at, kPageTokens), to);
  }
}

// The weights of one query's keys, from their products with it.
void weigh(const QueryBlock& block, int64_t query, int64_t keys, float* scores, QuerySums& sums) {
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t x = 0; x < keys; ++x) {
    scores[x] *= block.args.scale;
    largest = scores[x] > largest ? scores[x] : largest;
  }
  sums.largest[query] = largest;
  sums.weights[query] = sum_over(keys, [&](auto d, int64_t x) HWY_ATTR {
    const auto weight = exp(d, hn::Sub(hn::LoadU(d, scores + x), hn::Set(d, largest)));
    hn::StoreU(weight, d, scores + x);
    return weight;
  });
}

HWY_INLINE hn::Vec<OneFloat> load_one(const float* p) { return hn::LoadU(OneFloat(), p); }
HWY_INLINE hn::Vec<OneFloat> load_one(const hwy::bfloat16_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return hn::Set(OneFloat(), bf16_to_f32(bits));
}
template <class D, typename T>
HWY_INLINE hn::Vec<D> load_value(D, const T* p) {
  if constexpr (std::is_same_v<D, OneFloat>) {
    return load_one(p);
  } else {
    return load_widened(p);
  }
}

// Sums of values of ROWS queries, VECTORS vectors of channels from `channel` on: the oldest key's
// comes first. The first query sees the fewest keys.
template <int ROWS, int VECTORS, typename T, class D>
void add_values(D d, const QueryBlock& block, int64_t query, int64_t from, int64_t channel,
                const float* scores, QuerySums& sums) {
  hn::Vec<D> sum[ROWS][VECTORS];
  HWY_UNROLL(8)
  for (int i = 0; i < ROWS; ++i) {
    HWY_UNROLL(4)
    for (int j = 0; j < VECTORS; ++j) sum[i][j] = hn::Zero(d);
  }
  const float* weights = scores + query * kAttentionPart;
  const int64_t all = block.keys(query, from), most = block.keys(query + ROWS - 1, from);
  for (int64_t at = 0; at < most; at += kPageTokens) {
    const auto* value =
        reinterpret_cast<const T*>(block.page(block.args.values, from + at)) + channel;
    const int64_t end = std::min(at + kPageTokens, most);
    int64_t x = at;
    for (; x < std::min(end, all); ++x, value += block.args.D) {
      HWY_UNROLL(4)
      for (int j = 0; j < VECTORS; ++j) {
        const auto channels = load_value(d, value + j * hn::MaxLanes(d));
        HWY_UNROLL(8)
        for (int i = 0; i < ROWS; ++i) {
          const auto weight = hn::Set(d, weights[i * kAttentionPart + x]);
          sum[i][j] = hn::MulAdd(weight, channels, sum[i][j]);
        }
      }
    }
    for (; x < end; ++x, value += block.args.D) {  // that only later queries see
      HWY_UNROLL(8)
      for (int i = 0; i < ROWS; ++i) {
        if (x >= block.keys(query + i, from)) continue;
        const auto weight = hn::Set(d, weights[i * kAttentionPart + x]);
        HWY_UNROLL(4)
        for (int j = 0; j < VECTORS; ++j) {
          sum[i][j] = hn::MulAdd(weight, load_value(d, value + j * hn::MaxLanes(d)), sum[i][j]);
        }
      }
    }
  }
  HWY_UNROLL(8)
  for (int i = 0; i < ROWS; ++i) {
    float* to = sums.values + (query + i) * sums.width + channel;
    HWY_UNROLL(4)
    for (int j = 0; j < VECTORS; ++j) hn::StoreU(sum[i][j], d, to + j * hn::MaxLanes(d));
  }
}

template <int ROWS, typename T>
void part_of_queries(const QueryBlock& block, int64_t query, int64_t from, float* scores,
                     QuerySums& sums) {
  constexpr int64_t kLanes = hn::MaxLanes(Floats());
  products<ROWS, T>(block, query, from, scores);
  for (int i = 0; i < ROWS; ++i) {
    weigh(block, query + i, block.keys(query + i, from), scores + (query + i) * kAttentionPart,
          sums);
  }
  const int64_t D = block.args.D;
  int64_t at = 0;
  for (; at + 4 * kLanes <= D; at += 4 * kLanes) {
    add_values<ROWS, 4, T>(Floats(), block, query, from, at, scores, sums);
  }
  for (; at + kLanes <= D; at += kLanes) {
    add_values<ROWS, 1, T>(Floats(), block, query, from, at, scores, sums);
  }
  for (; at < D; ++at) add_values<ROWS, 1, T>(OneFloat(), block, query, from, at, scores, sums);
}

template <typename T>
void part_of(const QueryBlock& block, int64_t from, float* scores, QuerySums& sums) {
  int64_t query = 0;
  const int64_t queries = block.queries();
  for (; query + kTileRows <= queries; query += kTileRows) {
    part_of_queries<kTileRows, T>(block, query, from, scores, sums);
  }
  for (; query + 2 <= queries; query += 2) part_of_queries<2, T>(block, query, from, scores, sums);
  if (query < queries) part_of_queries<1, T>(block, query, from, scores, sums);
}

// scores: (queries, kAttentionPart) scratch. sums: written.
void attend_part(const QueryBlock& block, int64_t from, float* scores, QuerySums& sums) {
  if (block.args.keys.dtype == DType::kF32) {
    part_of<float>(block, from, scores, sums);
  } else {
    part_of<hwy::bfloat16_t>(block, from, scores, sums);
  }
}

// A part that is newer than those in `all`. Queries that see none of its keys stay as they are.
void join_part(const QueryBlock& block, int64_t from, const QuerySums& part, QuerySums& all) {
  for (int64_t query = 0; query < block.queries(); ++query) {
    if (block.keys(query, from) == 0) continue;
    const float largest = std::max(all.largest[query], part.largest[query]);
    const float old_scale = std::exp(all.largest[query] - largest);
    const float new_scale = std::exp(part.largest[query] - largest);
    all.largest[query] = largest;
    all.weights[query] = all.weights[query] * old_scale + part.weights[query] * new_scale;
    float* to = all.values + query * all.width;
    const float* values = part.values + query * all.width;
    for_lanes(all.width, [&](auto d, int64_t at) HWY_ATTR {
      const auto scaled = hn::Mul(hn::LoadU(d, to + at), hn::Set(d, old_scale));
      hn::StoreU(hn::MulAdd(hn::LoadU(d, values + at), hn::Set(d, new_scale), scaled), d, to + at);
    });
  }
}

void finish_queries(const QueryBlock& block, const QuerySums& all) {
  const PagedAttentionArgs& a = block.args;
  for (int64_t query = 0; query < block.queries(); ++query) {
    const int64_t row = block.row_of(query), head = block.head_of(query);
    const float* gate =
        a.gate == nullptr ? nullptr : a.gate + row * a.gate_stride + head * a.gate_head_stride;
    float* o = a.o + (row * a.H + head) * a.D;
    const float* values = all.values + query * all.width;
    for_lanes(all.width, [&](auto d, int64_t at) HWY_ATTR {
      auto value = hn::Div(hn::LoadU(d, values + at), hn::Set(d, all.weights[query]));
      if (gate != nullptr) value = hn::Mul(value, sigmoid(d, hn::LoadU(d, gate + at)));
      hn::StoreU(value, d, o + at);
    });
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {
namespace {

HWY_EXPORT(attend_part);
HWY_EXPORT(join_part);
HWY_EXPORT(finish_queries);

// Rows of a block: as many queries as a few tiles of products have.
constexpr int64_t kQueries = 24;

// Rows of slot 0 are in none: nothing is asked of them.
std::vector<QueryBlock> blocks_of(const PagedAttentionArgs& a) {
  const int64_t rows = std::max<int64_t>(1, kQueries / (a.H / a.HK));
  std::vector<QueryBlock> blocks;
  for (int seq = 0; seq < a.seqs.num_seqs; ++seq) {
    const int64_t first = a.seqs.begin[seq], end = a.seqs.begin[seq + 1];
    if (a.seqs.slot[seq] == 0) {
      std::fill_n(a.o + first * a.H * a.D, (end - first) * a.H * a.D, 0.0f);
      continue;
    }
    for (int64_t row = first; row < end; row += rows) {
      for (int64_t group = 0; group < a.HK; ++group) {
        blocks.push_back({a, a.seqs.slot[seq], group, row, std::min(row + rows, end)});
      }
    }
  }
  return blocks;
}

int64_t parts_of(const QueryBlock& block) {
  return block.args.position[block.end - 1] / kAttentionPart + 1;
}

void attend(const QueryBlock& block) {
  const int64_t queries = block.queries(), each = QuerySums::floats(queries, block.args.D);
  float* memory = scratch(static_cast<size_t>(queries * kAttentionPart + 2 * each));
  float* scores = memory + 2 * each;
  QuerySums all(memory, queries, block.args.D), part(memory + each, queries, block.args.D);
  HWY_DYNAMIC_DISPATCH(attend_part)(block, 0, scores, all);
  for (int64_t p = 1; p < parts_of(block); ++p) {
    HWY_DYNAMIC_DISPATCH(attend_part)(block, p * kAttentionPart, scores, part);
    HWY_DYNAMIC_DISPATCH(join_part)(block, p * kAttentionPart, part, all);
  }
  HWY_DYNAMIC_DISPATCH(finish_queries)(block, all);
}

// Few blocks, of long sessions: their parts are divided among the threads, and then joined.
void attend_by_parts(const std::vector<QueryBlock>& blocks, ThreadPool& pool) {
  struct Item {
    const QueryBlock* block;
    int64_t part;
    float* memory;
  };
  std::vector<Item> items;
  int64_t floats = 0;
  for (const QueryBlock& block : blocks) {
    floats += parts_of(block) * QuerySums::floats(block.queries(), block.args.D);
  }
  float* memory = scratch(static_cast<size_t>(floats));
  for (const QueryBlock& block : blocks) {
    for (int64_t p = 0; p < parts_of(block); ++p) {
      items.push_back({&block, p, memory});
      memory += QuerySums::floats(block.queries(), block.args.D);
    }
  }
  pool.parallel_for(static_cast<int64_t>(items.size()), [&](int64_t i) {
    const Item& item = items[static_cast<size_t>(i)];
    std::vector<float> scores(static_cast<size_t>(item.block->queries() * kAttentionPart));
    QuerySums sums(item.memory, item.block->queries(), item.block->args.D);
    HWY_DYNAMIC_DISPATCH(attend_part)
    (*item.block, item.part * kAttentionPart, scores.data(), sums);
  });
  for (size_t i = 0; i < items.size(); ++i) {
    const QueryBlock& block = *items[i].block;
    QuerySums all(items[i].memory, block.queries(), block.args.D);
    for (; i + 1 < items.size() && items[i + 1].block == &block; ++i) {
      const QuerySums part(items[i + 1].memory, block.queries(), block.args.D);
      HWY_DYNAMIC_DISPATCH(join_part)(block, items[i + 1].part * kAttentionPart, part, all);
    }
    HWY_DYNAMIC_DISPATCH(finish_queries)(block, all);
  }
}

// Rows of heads that lie together, (HK, D) each, to where they are stored.
void store_row(const PagedData& paged, int32_t slot, int64_t x, int HK, int D, const float* row) {
  const int64_t page = paged.table[int64_t{slot} * paged.most + x / kPageTokens];
  std::byte* to = static_cast<std::byte*>(paged.data) + page * paged.page_bytes;
  for (int64_t head = 0; head < HK; ++head) {
    const int64_t at = (head * kPageTokens + x % kPageTokens) * D;
    if (paged.dtype == DType::kF32) {
      std::copy_n(row + head * D, D, reinterpret_cast<float*>(to) + at);
    } else {
      std::transform(row + head * D, row + (head + 1) * D, reinterpret_cast<uint16_t*>(to) + at,
                     f32_to_bf16);
    }
  }
}

}  // namespace

void run(const AppendArgs& a, Stream& stream) {
  for_blocks(pool_of(stream), a.seqs.num_seqs,
             int64_t{a.seqs.rows} * a.HK * a.D / std::max(a.seqs.num_seqs, 1) * 4,
             [&](int64_t begin, int64_t end) {
               for (int64_t seq = begin; seq < end; ++seq) {
                 const int32_t slot = a.seqs.slot[seq];
                 if (slot == 0) continue;
                 for (int64_t row = a.seqs.begin[seq]; row < a.seqs.begin[seq + 1]; ++row) {
                   const int64_t x = a.position[row];
                   store_row(a.keys, slot, x, a.HK, a.D, a.k + row * a.k_stride);
                   store_row(a.values, slot, x, a.HK, a.D, a.v + row * a.v_stride);
                 }
               }
             });
}

void run(const PagedAttentionArgs& a, Stream& stream) {
  ThreadPool& pool = pool_of(stream);
  const std::vector<QueryBlock> blocks = blocks_of(a);
  if (std::ssize(blocks) < int64_t{4} * pool.threads() && pool.threads() > 1) {
    return attend_by_parts(blocks, pool);
  }
  pool.parallel_for(static_cast<int64_t>(blocks.size()),
                    [&](int64_t b) { attend(blocks[static_cast<size_t>(b)]); });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
