#include <climits>

#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/select.cuh"
#include "kernels/ops/sample_math.h"

// This is to be compiled without fused multiply-add, and with constexpr functions for the device.
namespace recurve::cuda::sm80 {
namespace {

// What one block knows of its row and its slot.
struct Row {
  const float* logits;  // (V)
  int V;
  SampleParams params;
  bool endless;  // ids that end the answer are masked
  const uint32_t *ends, *allowed, *biased, *prompt;
  const SampleBias* biases;
  const uint16_t* answer;
};

__device__ bool has(const uint32_t* set, int id) { return (set[id / 32] >> (id % 32) & 1) != 0; }

// The bias of an id that has one.
__device__ float bias_of(const Row& row, int id) {
  int at = 0;  // the first that may be it
  for (int left = row.params.biases; left > 1;) {
    const int half = left / 2;
    if (row.biases[at + half].id <= id) at += half;
    left -= half;
  }
  return row.biases[at].value;
}

__device__ float penalised(float logit, bool in_prompt, uint16_t generated,
                           const SampleParams& params) {
  if (!in_prompt && generated == 0) return logit;
  logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  logit -= params.frequency_penalty * static_cast<float>(generated);
  return generated > 0 ? logit - params.presence_penalty : logit;
}

// The logit after masks, bias and penalties.
__device__ float processed(const Row& row, float logit, int id) {
  if (row.params.masked && !has(row.allowed, id)) logit = kMinusInfinity;
  if (row.endless && has(row.ends, id)) logit = kMinusInfinity;
  if (row.params.biases > 0 && has(row.biased, id)) logit += bias_of(row, id);
  if (row.params.penalised) {
    logit = penalised(logit, has(row.prompt, id), row.answer[id], row.params);
  }
  return logit;
}

// Greater numbers for greater logits; -0 like 0.
__device__ uint32_t rank_of(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
__device__ float logit_of(uint32_t rank) {
  return __uint_as_float(rank >> 31 != 0 ? rank & 0x7fffffffu : ~rank);
}

struct Greatest {
  float raw;   // of the row as it is
  float best;  // after masks, bias and penalties, and the lowest id that has it
  int id;
  SampleStatus status;
};

__device__ SampleStatus status_of(bool nan, float max) {
  if (nan || max == -kMinusInfinity) return SampleStatus::kNotFinite;
  return max == kMinusInfinity ? SampleStatus::kNothing : SampleStatus::kDone;
}

// A thread's greatest logit, and the lowest id that has it.
struct Best {
  float logit = kMinusInfinity;
  int id = INT_MAX;
  bool nan = false;  // there was one, which does not count

  // Ids ascend.
  __device__ void look_at(float other, int other_id) {
    nan |= other != other;
    if (other > logit) {
      logit = other;
      id = other_id;
    }
  }
};
// The best of what the thread looks at: every kThreads-th four from its own on, several on their
// way at a time. What lies before the first four that begins at a multiple of 16 bytes, or behind
// the last, is looked at by the first threads.
__device__ Best best_of(const Row& row) {
  constexpr int kHeld = 4;
  Best best;
  const int thread = static_cast<int>(threadIdx.x);
  const int into = static_cast<int>(reinterpret_cast<uintptr_t>(row.logits) / sizeof(float) % 4);
  const int begin = min((4 - into) % 4, row.V), fours = (row.V - begin) / 4;
  if (thread < begin) best.look_at(row.logits[thread], thread);
  const auto* from = reinterpret_cast<const float4*>(row.logits + begin);
  for (int first = thread; first < fours; first += kHeld * kThreads) {
    float4 held[kHeld];
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = first + j * kThreads;
      if (i < fours) held[j] = from[i];
    }
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = first + j * kThreads, id = begin + 4 * i;
      if (i >= fours) break;
      best.look_at(held[j].x, id);
      best.look_at(held[j].y, id + 1);
      best.look_at(held[j].z, id + 2);
      best.look_at(held[j].w, id + 3);
    }
  }
  const int last = begin + 4 * fours + thread;
  if (last < row.V) best.look_at(row.logits[last], last);
  return best;
}

// So that the greater logit, and of equals the lower id, is greater.
__device__ uint64_t place_of(float logit, int id) {
  return uint64_t{rank_of(logit)} << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}

__device__ Greatest greatest(const Row& row, bool plain, Shared& shared) {
  uint64_t best = 0, raw;
  bool nan = false;
  if (plain) {
    const Best mine = best_of(row);
    nan = mine.nan;
    raw = best = block_max(place_of(mine.logit, mine.id), shared);
  } else {
    float own = kMinusInfinity;
#pragma unroll 8
    for (int id = static_cast<int>(threadIdx.x); id < row.V; id += kThreads) {
      const float logit = row.logits[id];
      nan |= logit != logit;
      own = fmaxf(own, logit);
      const uint64_t place = place_of(processed(row, logit, id), id);
      best = best > place ? best : place;
    }
    best = block_max(best, shared);
    raw = block_max(place_of(own, 0), shared);
  }
  const float greatest_raw = logit_of(static_cast<uint32_t>(raw >> 32));
  const bool any_nan = __syncthreads_or(nan) != 0;
  Greatest found{.raw = greatest_raw,
                 .best = logit_of(static_cast<uint32_t>(best >> 32)),
                 .id = static_cast<int>(0xffffffffu - static_cast<uint32_t>(best)),
                 .status = status_of(any_nan, greatest_raw)};
  if (found.status == SampleStatus::kDone) found.status = status_of(false, found.best);
  return found;
}

// The ids that may still be drawn.
struct Kept {
  const Row& row;
  bool plain;
  float max;
  double inverse_temperature;
  bool has_top_k = false, has_typical = false, has_top_p = false;
  Cutoff top_k = {}, typical = {}, top_p = {};
  double mean = 0;     // of the nats, for typical
  uint64_t least = 1;  // weight

  __device__ uint64_t typicality(double nats) const { return order_of(fabs(nats - mean)); }
  // False where a filter is known to have dropped the id.
  __device__ bool nats_of(int id, double* nats) const {
    float logit = row.logits[id];
    if (!plain) logit = processed(row, logit, id);
    *nats = nats_below(logit, max, inverse_temperature);
    if (!(*nats < kFarthest)) return false;
    if (has_top_k && !top_k.keeps(order_of(*nats), id)) return false;
    if (has_top_p && !top_p.keeps(order_of(*nats), id)) return false;
    return !has_typical || typical.keeps(typicality(*nats), id);
  }
  // 0: it may not.
  __device__ uint64_t weight(int id) const {
    double nats;
    if (!nats_of(id, &nats)) return 0;
    const uint64_t weight = weight_of(exp_nonpositive(-nats));
    return weight >= least ? weight : 0;
  }
};

__device__ uint64_t weight_at(double nats) { return weight_of(exp_nonpositive(-nats)); }

__device__ void keep_top_k(Kept& kept, Shared& shared) {
  const auto order = [&](int id, uint64_t* place) {
    double nats;
    if (!kept.nats_of(id, &nats)) return false;
    *place = order_of(nats);
    return true;
  };
  const auto one = [](int) { return uint64_t{1}; };
  const uint64_t k = static_cast<uint64_t>(kept.row.params.top_k);
  kept.top_k = first_in_order(kept.row.V, kOrderBits, order, one, TopCount{k}, shared);
  kept.has_top_k = true;
}

__device__ void keep_typical(Kept& kept, Shared& shared) {
  uint64_t nats_sum = 0, total = 0;
  for (int id = static_cast<int>(threadIdx.x); id < kept.row.V; id += kThreads) {
    double nats;
    if (!kept.nats_of(id, &nats)) continue;
    const double exp = exp_nonpositive(-nats);
    if (weight_of(exp) == 0) continue;
    nats_sum += weighted_nats(exp, nats);
    total += weight_of(exp);
  }
  nats_sum = block_sum(nats_sum, shared);
  total = block_sum(total, shared);
  kept.mean = static_cast<double>(nats_sum) / static_cast<double>(total);
  const auto order = [&](int id, uint64_t* place) {
    double nats;
    if (!kept.nats_of(id, &nats) || weight_at(nats) == 0) return false;
    *place = kept.typicality(nats);
    return true;
  };
  const auto weight = [&](int id) { return kept.weight(id); };
  kept.typical = first_in_order(kept.row.V, kOrderBits, order, weight,
                                Fraction{kept.row.params.typical_p}, shared);
  kept.has_typical = true;
}

__device__ void keep_top_p(Kept& kept, Shared& shared) {
  const auto order = [&](int id, uint64_t* place) {
    double nats;
    if (!kept.nats_of(id, &nats)) return false;
    *place = order_of(nats);
    return true;
  };
  const auto weight = [&](int id) { return kept.weight(id); };
  kept.top_p = first_in_order(kept.row.V, kOrderBits, order, weight,
                              Fraction{kept.row.params.top_p}, shared);
  kept.has_top_p = true;
}

__device__ void keep_min_p(Kept& kept, Shared& shared) {
  uint64_t most = 0;
  for (int id = static_cast<int>(threadIdx.x); id < kept.row.V; id += kThreads) {
    const uint64_t weight = kept.weight(id);
    most = most > weight ? most : weight;
  }
  kept.least = share_of(kept.row.params.min_p, block_max(most, shared));
}

__device__ int draw(const Row& row, bool plain, float max, int index, Shared& shared) {
  const SampleParams& params = row.params;
  Kept kept{.row = row,
            .plain = plain,
            .max = max,
            .inverse_temperature = 1.0 / static_cast<double>(params.temperature)};
  if (params.top_k > 0 && params.top_k < row.V) keep_top_k(kept, shared);
  if (params.typical_p < 1) keep_typical(kept, shared);
  if (params.top_p < 1) keep_top_p(kept, shared);
  if (params.min_p > 0) keep_min_p(kept, shared);
  const auto weight = [&](int id) { return kept.weight(id); };
  return first_by_id(row.V, weight, Fraction{uniform(params.seed, index)}, shared);
}

// One thread's.
__device__ void move_on(const SampleTable& table, int32_t slot, const Row& row, int32_t id,
                        SampleStatus status) {
  SampleProgress& progress = table.progress[slot];
  if (status != SampleStatus::kDone) {
    progress.ended = 1;
    return;
  }
  const int32_t generated = progress.generated + 1;
  const bool ends = !row.endless && has(row.ends, id);
  progress = {.token = id,
              .generated = generated,
              .ended = ends || generated >= row.params.max_tokens ? 1 : 0};
  uint16_t* answer = table.answer + int64_t{slot} * row.V + id;
  if (row.params.penalised && *answer < kMostInAnswer) ++*answer;
}

// The likeliest ids of the row as it is, likeliest first.
__device__ void write_top(const Row& row, int count, TopLogit* top, Shared& shared) {
  const auto order = [&](int id, uint64_t* place) {
    const float logit = row.logits[id];
    *place = 0xffffffffu - rank_of(logit);
    return logit > kMinusInfinity;
  };
  const auto one = [](int) { return uint64_t{1}; };
  const Cutoff cutoff =
      first_in_order(row.V, 32, order, one, TopCount{static_cast<uint64_t>(count)}, shared);
  __shared__ TopLogit found[kMostTop];
  __shared__ int many;
  if (threadIdx.x == 0) many = 0;
  __syncthreads();
  for (int id = static_cast<int>(threadIdx.x); id < row.V; id += kThreads) {
    uint64_t place;
    if (order(id, &place) && cutoff.keeps(place, id)) {
      found[atomicAdd(&many, 1)] = {.id = id, .logit = row.logits[id]};
    }
  }
  __syncthreads();
  const int at = static_cast<int>(threadIdx.x);
  if (at < many) {
    int before = 0;
    for (int i = 0; i < many; ++i) {
      before += found[i].logit > found[at].logit ||
                (found[i].logit == found[at].logit && found[i].id < found[at].id);
    }
    top[before] = found[at];
  } else if (at < count) {
    top[at] = {.id = -1, .logit = kMinusInfinity};
  }
}

__device__ void add_logprobs(const Row& row, float max, int count, TopLogit* top,
                             SampleResult* result, Shared& shared) {
  uint64_t sum = 0;
  for (int id = static_cast<int>(threadIdx.x); id < row.V; id += kThreads) {
    sum += weight_at(nats_below(row.logits[id], max, 1.0));
  }
  result->sum = block_sum(sum, shared);
  result->max = max;
  result->logit = result->id < row.V ? row.logits[result->id] : kMinusInfinity;
  if (count > 0) write_top(row, count, top, shared);
}

// One block a row.
__global__ void __launch_bounds__(kThreads, 1) sample_kernel(SampleArgs args) {
  let_next_start();
  wait_for_previous();
  __shared__ Shared shared;
  const SampleRow wanted = args.rows[blockIdx.x];
  const bool scored = wanted.scored >= 0;
  const SampleProgress progress = args.table.progress[wanted.slot];
  SampleResult result{.id = -1, .status = SampleStatus::kEnded, .logit = 0, .max = 0, .sum = 0};
  if (!scored && progress.ended != 0) {
    if (threadIdx.x == 0) args.results[blockIdx.x] = result;
    return;
  }
  const int64_t slot = wanted.slot;
  Row row{.logits = args.logits + wanted.logits * args.stride,
          .V = args.V,
          .params = args.table.params[slot],
          .endless = false,
          .ends = args.table.ends + slot * args.table.words,
          .allowed = args.table.allowed + slot * args.table.words,
          .biased = args.table.biased + slot * args.table.words,
          .prompt = args.table.prompt + slot * args.table.words,
          .biases = args.table.biases + slot * kMostBiases,
          .answer = args.table.answer + slot * args.V};
  row.endless = progress.generated < row.params.min_tokens;
  const bool plain = scored || (!row.params.masked && row.params.biases == 0 &&
                                !row.params.penalised && !row.endless);
  const Greatest max = greatest(row, plain, shared);
  result.status = max.status;
  if (max.status == SampleStatus::kDone) {
    result.id = scored ? wanted.scored
                : row.params.temperature == 0
                    ? max.id
                    : draw(row, plain, max.best, progress.generated, shared);
    if (wanted.top >= 0) {
      add_logprobs(row, max.raw, wanted.top, args.top + wanted.first_top, &result, shared);
    }
  }
  __syncthreads();  // all have read the slot
  if (threadIdx.x != 0) return;
  if (!scored) move_on(args.table, wanted.slot, row, result.id, result.status);
  args.results[blockIdx.x] = result;
}

}  // namespace

void run(const SampleArgs& args, Stream& stream) {
  if (args.count == 0) return;
  launch_early(stream, "sample", sample_kernel,
               {.grid = static_cast<unsigned>(args.count), .threads = kThreads}, args);
}

}  // namespace recurve::cuda::sm80
