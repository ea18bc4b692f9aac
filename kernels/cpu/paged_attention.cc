#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"
#include "kernels/page_check.h"

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
  const float* q(int64_t query) const { return args.q_at(row_of(query), head_of(query)); }
  int64_t parts() const { return args.position[end - 1] / kAttentionPart + 1; }
  // Keys of the part that begins at `from` that the query sees.
  int64_t keys(int64_t query, int64_t from) const {
    return std::clamp<int64_t>(args.position[row_of(query)] + 1 - from, 0, kAttentionPart);
  }
  // This head of the page of the token at x; null behind the last token of the block.
  const std::byte* page(const PagedData& paged, int64_t x) const {
    if (x > args.position[end - 1]) return nullptr;
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
#include "kernels/cpu/recurrence/stored_state-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// A tile of sums: queries, and vectors of keys or of channels.
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_TARGET == HWY_NEON
constexpr int kQueryRows = 6, kQueryVectors = 4;
#else
constexpr int kQueryRows = 6, kQueryVectors = 2;
#endif

// Asks for what is read next, as many bytes as are read here, which stand `at` behind the beginning
// of a page of a head. Pages are anywhere, so the processor does not foresee them.
template <int64_t BYTES>
HWY_INLINE void fetch_next(const std::byte* next, int64_t at) {
  constexpr int64_t kLines = std::max<int64_t>(1, BYTES / kLine);
  if (next != nullptr) fetch_lines<kLines, FetchFar>(next + at);
}

// Products of ROWS queries with the keys of a page (D, kPageTokens): each adds up its channels in
// their order.
template <int ROWS, class T>
void products(int64_t D, const float* const (&q)[ROWS], const T* page, const std::byte* next,
              float* const (&scores)[ROWS]) {
  const Floats d;
  constexpr int64_t kKeys = kQueryVectors * hn::MaxLanes(d);
  static_assert(kPageTokens % kKeys == 0);
  for (int64_t key = 0; key < kPageTokens; key += kKeys) {
    hn::Vec<Floats> sum[ROWS][kQueryVectors];
    HWY_UNROLL(8)
    for (int i = 0; i < ROWS; ++i) {
      HWY_UNROLL(4)
      for (int j = 0; j < kQueryVectors; ++j) sum[i][j] = hn::Zero(d);
    }
    for (int64_t c = 0; c < D; ++c) {
      fetch_next<kKeys * sizeof(T)>(next, (key * D + c * kKeys) * int64_t{sizeof(T)});
      hn::Vec<Floats> keys[kQueryVectors];
      load_columns(d, page + c * kPageTokens + key, keys);
      HWY_UNROLL(4)
      for (int j = 0; j < kQueryVectors; ++j) keep_in_register(keys[j]);
      HWY_UNROLL(8)
      for (int i = 0; i < ROWS; ++i) {
        auto factor = hn::Set(d, q[i][c]);
        keep_in_register(factor);
        HWY_UNROLL(4)
        for (int j = 0; j < kQueryVectors; ++j) sum[i][j] = hn::MulAdd(factor, keys[j], sum[i][j]);
      }
    }
    HWY_UNROLL(8)
    for (int i = 0; i < ROWS; ++i) store_as_columns<T>(d, sum[i], scores[i] + key);
  }
}

// scores *= scale; the largest of them.
float scale_scores(int64_t keys, float scale, float* scores) {
  const Floats d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  auto most = hn::Set(d, -std::numeric_limits<float>::infinity());
  int64_t x = 0;
  for (; x + kLanes <= keys; x += kLanes) {
    const auto score = hn::Mul(hn::LoadU(d, scores + x), hn::Set(d, scale));
    hn::StoreU(score, d, scores + x);
    most = hn::Max(most, score);
  }
  float largest = hn::GetLane(hn::MaxOfLanes(d, most));
  for (; x < keys; ++x) {
    scores[x] *= scale;
    largest = scores[x] > largest ? scores[x] : largest;
  }
  return largest;
}

// The weights of one query's keys, from their products with it: into `scores`, and their sum.
float weigh(int64_t keys, float largest, float* scores) {
  constexpr int64_t kLanes = hn::MaxLanes(Floats());
  float sums[kTogether * kLanes] = {}, rest = 0;
  for_several<kTogether>(keys, [&]<int COUNT>(auto d, int64_t x) HWY_ATTR {
    hn::Vec<decltype(d)> weights[COUNT];
    each<COUNT>([&](int i) HWY_ATTR {
      const auto score = hn::LoadU(d, scores + x + i * hn::MaxLanes(d));
      weights[i] = at_least(d, -104.0f, hn::Sub(score, hn::Set(d, largest)));
    });
    exps_of_bounded(d, weights);
    each<COUNT>([&](int i) HWY_ATTR {
      float* sum = hn::MaxLanes(d) == kLanes ? sums + i * kLanes : &rest;
      hn::StoreU(weights[i], d, scores + x + i * hn::MaxLanes(d));
      hn::StoreU(hn::Add(hn::LoadU(d, sum), weights[i]), d, sum);
    });
  });
  return rest + sum_over(kTogether * kLanes,
                         [&](auto d, int64_t i) HWY_ATTR { return hn::LoadU(d, sums + i); });
}

// Adds the values of `keys` tokens of a page to sums of ROWS queries, VECTORS vectors of channels:
// the oldest comes first. values, weights and sums begin at the first token and channel.
template <int ROWS, int VECTORS, class T, class D>
HWY_INLINE void add_channels(D d, int64_t keys, int64_t width, const T* values,
                             const std::byte* next, const float* const (&weights)[ROWS],
                             float* const (&sums)[ROWS]) {
  hn::Vec<D> sum[ROWS][VECTORS];
  HWY_UNROLL(8)
  for (int i = 0; i < ROWS; ++i) load_as_columns<T>(d, sums[i], sum[i]);
  for (int64_t x = 0; x < keys; ++x, values += width) {
    constexpr int64_t kBytes = VECTORS * hn::MaxLanes(d) * sizeof(T);
    fetch_next<kBytes>(next, x * kBytes);
    hn::Vec<D> channels[VECTORS];
    load_columns(d, values, channels);
    HWY_UNROLL(8)
    for (int i = 0; i < ROWS; ++i) {
      const auto weight = hn::Set(d, weights[i][x]);
      HWY_UNROLL(4)
      for (int j = 0; j < VECTORS; ++j) sum[i][j] = hn::MulAdd(weight, channels[j], sum[i][j]);
    }
  }
  HWY_UNROLL(8)
  for (int i = 0; i < ROWS; ++i) store_as_columns<T>(d, sum[i], sums[i]);
}

template <int ROWS, class T>
void add_values(int64_t keys, int64_t width, const T* values, const std::byte* next,
                const float* const (&weights)[ROWS], float* const (&sums)[ROWS]) {
  constexpr int64_t kLanes = hn::MaxLanes(Floats());
  int64_t channel = 0;
  const auto add = [&]<int VECTORS>(auto d) HWY_ATTR {
    float* at[ROWS];
    for (int i = 0; i < ROWS; ++i) at[i] = sums[i] + channel;
    const std::byte* after =
        next == nullptr ? nullptr : next + channel * kPageTokens * int64_t{sizeof(T)};
    add_channels<ROWS, VECTORS>(d, keys, width, values + channel, after, weights, at);
    channel += VECTORS * hn::MaxLanes(d);
  };
  while (channel + kQueryVectors * kLanes <= width)
    add.template operator()<kQueryVectors>(Floats());
  while (channel + kLanes <= width) add.template operator()<1>(Floats());
  while (channel < width) add.template operator()<1>(OneFloat());
}

// The part of ROWS queries from `query` on. The first of them sees the fewest keys, and what only
// others see is nothing that it multiplies by zero.
template <int ROWS, class T>
void part_of_queries(const QueryBlock& block, int64_t query, int64_t from, float* scores,
                     QuerySums& sums) {
  const PagedAttentionArgs& a = block.args;
  const int64_t most = block.keys(query + ROWS - 1, from);
  const bool fetches = query == 0;
  const float* q[ROWS];
  for (int i = 0; i < ROWS; ++i) q[i] = block.q(query + i);
  for (int64_t at = 0; at < most; at += kPageTokens) {
    float* to[ROWS];
    for (int i = 0; i < ROWS; ++i) to[i] = scores + (query + i) * kAttentionPart + at;
    const bool last = at + kPageTokens >= most;
    const std::byte* next =
        last ? block.page(a.values, from) : block.page(a.keys, from + at + kPageTokens);
    products(a.D, q, reinterpret_cast<const T*>(block.page(a.keys, from + at)),
             fetches ? next : nullptr, to);
  }
  for (int i = 0; i < ROWS; ++i) {
    const int64_t keys = block.keys(query + i, from);
    float* of_query = scores + (query + i) * kAttentionPart;
    sums.largest[query + i] = scale_scores(keys, a.scale, of_query);
    sums.weights[query + i] = weigh(keys, sums.largest[query + i], of_query);
    std::fill_n(sums.values + (query + i) * a.D, a.D, 0.0f);
  }
  for (int64_t at = 0; at < most; at += kPageTokens) {
    const auto* values = reinterpret_cast<const T*>(block.page(a.values, from + at));
    const bool last = at + kPageTokens >= kAttentionPart;
    const std::byte* next = last ? block.page(a.keys, from + kAttentionPart)
                                 : block.page(a.values, from + at + kPageTokens);
    const float* weights[ROWS];
    float* to[ROWS];
    for (int i = 0; i < ROWS; ++i) {
      weights[i] = scores + (query + i) * kAttentionPart + at;
      to[i] = sums.values + (query + i) * a.D;
    }
    const int64_t all = std::clamp<int64_t>(block.keys(query, from) - at, 0, kPageTokens);
    add_values(all, a.D, values, fetches ? next : nullptr, weights, to);
    for (int i = 1; i < ROWS; ++i) {
      const int64_t more =
          std::clamp<int64_t>(block.keys(query + i, from) - at, 0, kPageTokens) - all;
      const float* const weight[] = {weights[i] + all};
      float* const sum[] = {to[i]};
      if (more > 0) add_values(more, a.D, values + all * a.D, nullptr, weight, sum);
    }
  }
}

template <class T>
void part_of(const QueryBlock& block, int64_t from, float* scores, QuerySums& sums) {
  int64_t query = 0;
  const auto tiles_of = [&]<int ROWS>() {
    for (; query + ROWS <= block.queries(); query += ROWS) {
      part_of_queries<ROWS, T>(block, query, from, scores, sums);
    }
  };
  tiles_of.template operator()<kQueryRows>();
  tiles_of.template operator()<4>();
  tiles_of.template operator()<2>();
  tiles_of.template operator()<1>();
}

// scores: (queries, kAttentionPart) scratch. sums: written; of queries that see none of the keys
// with anything.
void attend_part(const QueryBlock& block, int64_t from, float* scores, QuerySums& sums) {
  if (block.args.keys.dtype == DType::kF32) {
    part_of<float>(block, from, scores, sums);
  } else {
    part_of<uint16_t>(block, from, scores, sums);
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

// Queries of a block: as many as a few tiles of products have.
constexpr int64_t kQueries = 48;

// Bytes of the sums of parts that wait to be joined, at most.
constexpr int64_t kMostSums = 32 << 20;

int64_t rows_of_block(const PagedAttentionArgs& a) {
  return std::max<int64_t>(1, kQueries / (a.H / a.HK));
}

// Rows of slot 0 are in none: nothing is asked of them.
std::vector<QueryBlock> blocks_of(const PagedAttentionArgs& a) {
  const int64_t rows = rows_of_block(a);
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

int64_t sums_of(const QueryBlock& block) {
  return QuerySums::floats(block.queries(), block.args.D);
}

void attend(const QueryBlock& block) {
  const int64_t queries = block.queries(), each = sums_of(block);
  float* memory = scratch(static_cast<size_t>(queries * kAttentionPart + 2 * each));
  float* scores = memory + 2 * each;
  QuerySums all(memory, queries, block.args.D), part(memory + each, queries, block.args.D);
  HWY_DYNAMIC_DISPATCH(attend_part)(block, 0, scores, all);
  for (int64_t p = 1; p < block.parts(); ++p) {
    HWY_DYNAMIC_DISPATCH(attend_part)(block, p * kAttentionPart, scores, part);
    HWY_DYNAMIC_DISPATCH(join_part)(block, p * kAttentionPart, part, all);
  }
  HWY_DYNAMIC_DISPATCH(finish_queries)(block, all);
}

// Some parts of a block, whose sums are joined when all are there.
struct PartsOfBlock {
  const QueryBlock* block;
  int64_t first, end;
  float* sums;  // of all parts of the block, sums_of() each; null: the block is attended whole
};

void attend(const PartsOfBlock& some) {
  if (some.sums == nullptr) return attend(*some.block);
  const QueryBlock& block = *some.block;
  float* scores = scratch(static_cast<size_t>(block.queries() * kAttentionPart));
  for (int64_t p = some.first; p < some.end; ++p) {
    QuerySums sums(some.sums + p * sums_of(block), block.queries(), block.args.D);
    HWY_DYNAMIC_DISPATCH(attend_part)(block, p * kAttentionPart, scores, sums);
  }
}

void join(const PartsOfBlock& some) {
  const QueryBlock& block = *some.block;
  QuerySums all(some.sums, block.queries(), block.args.D);
  for (int64_t p = 1; p < block.parts(); ++p) {
    const QuerySums part(some.sums + p * sums_of(block), block.queries(), block.args.D);
    HWY_DYNAMIC_DISPATCH(join_part)(block, p * kAttentionPart, part, all);
  }
  HWY_DYNAMIC_DISPATCH(finish_queries)(block, all);
}

// Blocks of more parts than `most` in pieces of so many.
std::vector<PartsOfBlock> pieces_of(const std::vector<QueryBlock>& blocks, int64_t most) {
  static thread_local AlignedMemory memory;
  int64_t floats = 0;
  for (const QueryBlock& block : blocks) {
    floats += block.parts() > most ? block.parts() * sums_of(block) : 0;
  }
  const bool whole = floats * int64_t{sizeof(float)} > kMostSums;
  float* sums = whole ? nullptr : memory.reserve<float>(floats);
  std::vector<PartsOfBlock> pieces;
  for (const QueryBlock& block : blocks) {
    if (whole || block.parts() <= most) {
      pieces.push_back({&block, 0, block.parts(), nullptr});
      continue;
    }
    for (int64_t first = 0; first < block.parts(); first += most) {
      pieces.push_back({&block, first, std::min(first + most, block.parts()), sums});
    }
    sums += block.parts() * sums_of(block);
  }
  return pieces;
}

}  // namespace

ScratchBytes scratch_of(const PagedAttentionArgs& a) {
  const int64_t queries = rows_of_block(a) * (a.H / a.HK), sums = QuerySums::floats(queries, a.D);
  const int64_t blocks = (ceil_div(a.seqs.rows, rows_of_block(a)) + a.seqs.num_seqs) * a.HK;
  const int64_t parts = ceil_div(a.keys.most * kPageTokens, kAttentionPart);
  const auto bytes = [](int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); };
  return {.call = std::min<size_t>(bytes(blocks * parts * sums), kMostSums),
          .thread = bytes(queries * kAttentionPart + 2 * sums)};
}

// A thread takes a block of queries over all of its parts, or, where that is more than its share,
// some of the parts.
void run(const PagedAttentionArgs& a, Stream& stream) {
  check_pages(a);
  ThreadPool& pool = pool_of(stream);
  const std::vector<QueryBlock> blocks = blocks_of(a);
  int64_t parts = 0, work = 0;
  for (const QueryBlock& block : blocks) {
    parts += block.parts();
    work += (block.args.position[block.end - 1] + 1) * block.queries() * a.D / 4;
  }
  if (pool.threads() == 1 || work < kGrain) {
    for (const QueryBlock& block : blocks) attend(block);
    return;
  }
  const auto pieces = pieces_of(blocks, ceil_div(parts, int64_t{4} * pool.threads()));
  const auto on_all = [&](auto body) {
    pool.parallel_for(static_cast<int64_t>(pieces.size()),
                      [&](int64_t i) { body(pieces[static_cast<size_t>(i)]); });
  };
  on_all([](const PartsOfBlock& some) { attend(some); });
  on_all([](const PartsOfBlock& some) {
    if (some.sums != nullptr && some.first == 0) join(some);
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
