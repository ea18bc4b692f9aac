#include <algorithm>
#include <bit>
#include <limits>
#include <span>
#include <vector>

#include "kernels/ops/sample_math.h"
#include "kernels/reference/candidates.h"
#include "kernels/reference/row.h"
#include "kernels/reference/table.h"

namespace recurve::reference {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Memory that is used again from row to row.
struct Scratch {
  std::vector<float> changed;     // (V)
  std::vector<uint64_t> weights;  // (V)
  Candidates candidates;
  std::vector<TopLogit> top;
};

// One slot's part of the table.
struct SlotView {
  SlotView(const SampleTable& table, int V, int32_t slot)
      : params(table.params[slot]),
        ends(table.ends + int64_t{slot} * table.words),
        allowed(table.allowed + int64_t{slot} * table.words),
        biases(table.biases + int64_t{slot} * kMostBiases,
               static_cast<size_t>(table.params[slot].biases)),
        prompt(table.prompt + int64_t{slot} * table.words),
        answer(table.answer + int64_t{slot} * V),
        progress(table.progress[slot]) {}
  const SampleParams& params;
  const uint32_t* ends;
  const uint32_t* allowed;
  std::span<const SampleBias> biases;
  const uint32_t* prompt;
  uint16_t* answer;
  SampleProgress& progress;
};

bool has(const uint32_t* set, size_t id) { return (set[id / 32] >> (id % 32) & 1) != 0; }

SampleStatus status_of(const RowMax& max) {
  if (max.nan || max.value == kInfinity) return SampleStatus::kNotFinite;
  return max.value == -kInfinity ? SampleStatus::kNothing : SampleStatus::kDone;
}

float penalised(float logit, bool in_prompt, uint16_t generated, const SampleParams& params) {
  if (!in_prompt && generated == 0) return logit;
  logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  logit -= params.frequency_penalty * static_cast<float>(generated);
  return generated > 0 ? logit - params.presence_penalty : logit;
}

// Of ids that may not come. Most words of 32 ids are all of one kind.
void mask(const SlotView& slot, bool endless, std::span<float> row) {
  for (size_t first = 0; first < row.size(); first += 32) {
    uint32_t out = slot.params.masked ? ~slot.allowed[first / 32] : 0;
    if (endless) out |= slot.ends[first / 32];
    const auto of_word = row.subspan(first, std::min<size_t>(32, row.size() - first));
    if (out == ~uint32_t{0}) {
      std::ranges::fill(of_word, -kInfinity);
      continue;
    }
    for (; out != 0; out &= out - 1) {
      const auto id = static_cast<size_t>(std::countr_zero(out));
      if (id < of_word.size()) of_word[id] = -kInfinity;
    }
  }
}

// The row after masks, bias and penalties. The row itself where none applies.
std::span<const float> processed(std::span<const float> row, const SlotView& slot,
                                 std::vector<float>* changed) {
  const SampleParams& params = slot.params;
  const bool endless = slot.progress.generated < params.min_tokens;
  if (!params.masked && params.biases == 0 && !params.penalised && !endless) return row;
  changed->assign(row.begin(), row.end());
  if (params.masked || endless) mask(slot, endless, *changed);
  for (const SampleBias& bias : slot.biases) (*changed)[static_cast<size_t>(bias.id)] += bias.value;
  for (size_t id = 0; id < row.size() && params.penalised; ++id) {
    float& logit = (*changed)[id];
    logit = penalised(logit, has(slot.prompt, id), slot.answer[id], params);
  }
  return *changed;
}

// In the order of ids, where nothing is filtered.
int32_t pick(double u, std::span<const uint64_t> weights, uint64_t total) {
  const uint64_t target = share_of(u, total);
  uint64_t reached = weights[0];
  size_t id = 0;
  while (reached < target) reached += weights[++id];
  return static_cast<int32_t>(id);
}

// Those ids with a weight that the first filter can reach: ids that weigh less than a V-th of what
// top_p leaves out come after its border, as all of them together weigh less than that.
void gather(std::span<const float> row, float max, double inverse_temperature,
            const SampleParams& params, uint64_t total, Scratch* scratch) {
  uint64_t least = 1;
  if (params.typical_p >= 1 && params.top_p < 1 && params.top_k == 0) {
    least = std::max<uint64_t>(1, (total - share_of(params.top_p, total)) / row.size());
  }
  const auto k = static_cast<size_t>(params.top_k);
  Candidates& candidates = scratch->candidates;
  candidates.clear();
  candidates.reserve(k > 0 ? std::min(2 * (k + 32) + 2, row.size()) : row.size());
  for (size_t id = 0; id < row.size(); ++id) {
    if (scratch->weights[id] < least) continue;
    const double nats = nats_below(row[id], max, inverse_temperature);
    candidates.push_back({order_of(nats), scratch->weights[id], static_cast<int32_t>(id), nats, 0});
    if (k > 0 && candidates.size() / 2 > k + 32) keep_top_k(k, &candidates);
  }
}

// The filters and the draw; `max` is the row's greatest value, which is finite.
int32_t draw(std::span<const float> row, float max, const SampleParams& params, int32_t index,
             Scratch* scratch) {
  const double inverse_temperature = 1.0 / static_cast<double>(params.temperature);
  const double u = uniform(params.seed, index);
  scratch->weights.resize(row.size());
  const uint64_t total = weigh(row, max, inverse_temperature, scratch->weights.data());
  if (params.top_k == 0 && params.typical_p >= 1 && params.top_p >= 1 && params.min_p <= 0) {
    return pick(u, scratch->weights, total);
  }
  gather(row, max, inverse_temperature, params, total, scratch);
  Candidates& candidates = scratch->candidates;
  if (params.top_k > 0) keep_top_k(static_cast<size_t>(params.top_k), &candidates);
  if (params.typical_p < 1) keep_typical(params.typical_p, &candidates);
  const bool filtered = params.top_k > 0 || params.typical_p < 1;
  if (params.top_p < 1) {
    keep_top_p(params.top_p, filtered ? total_weight(candidates) : total, &candidates);
  }
  if (params.min_p > 0) keep_min_p(params.min_p, &candidates);
  return pick(u, &candidates);
}

// The `k` likeliest ids that are not -infinity, likeliest first.
void select_top(std::span<const float> row, size_t k, std::vector<TopLogit>* out) {
  const auto likelier = [](const TopLogit& a, const TopLogit& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  out->clear();
  if (k == 0) return;
  const auto keep_k = [&] {
    const auto kth = out->begin() + static_cast<ptrdiff_t>(k - 1);
    std::nth_element(out->begin(), kth, out->end(), likelier);
    out->resize(k);
  };
  // Ids come in ascending order, so one that equals the k-th best so far loses to it.
  float threshold = -kInfinity;
  for (size_t i = 0; i < row.size(); ++i) {
    if (!(row[i] > threshold)) continue;
    out->push_back({static_cast<int32_t>(i), row[i]});
    if (out->size() == 2 * k + 64) {
      keep_k();
      threshold = out->back().logit;
    }
  }
  if (out->size() > k) keep_k();
  std::sort(out->begin(), out->end(), likelier);
}

void add_logprobs(std::span<const float> row, float max, const SampleRow& wanted, TopLogit* top,
                  SampleResult* result, Scratch* scratch) {
  const auto id = static_cast<size_t>(result->id);
  result->logit = id < row.size() ? row[id] : -kInfinity;
  result->max = max;
  result->sum = weigh(row, max, 1.0, nullptr);
  select_top(row, static_cast<size_t>(wanted.top), &scratch->top);
  scratch->top.resize(static_cast<size_t>(wanted.top), {-1, -kInfinity});
  std::copy(scratch->top.begin(), scratch->top.end(), top + wanted.first_top);
}

void move_on(const SlotView& slot, int32_t id, SampleStatus status) {
  SampleProgress& progress = slot.progress;
  if (status != SampleStatus::kDone) {
    progress.ended = 1;
    return;
  }
  const bool may_end = progress.generated >= slot.params.min_tokens;
  const auto at = static_cast<size_t>(id);
  progress = {
      .token = id,
      .generated = progress.generated + 1,
      .ended = (may_end && has(slot.ends, at)) || progress.generated + 1 >= slot.params.max_tokens};
  if (slot.params.penalised && slot.answer[at] < kMostInAnswer) ++slot.answer[at];
}

SampleResult sample_row(std::span<const float> row, const RowMax& raw, const SlotView& slot,
                        Scratch* scratch) {
  SampleResult result{.id = -1, .status = status_of(raw), .logit = 0, .max = 0, .sum = 0};
  if (result.status == SampleStatus::kDone) {
    const auto changed = processed(row, slot, &scratch->changed);
    const RowMax best = changed.data() == row.data() ? raw : row_max(changed);
    result.status = status_of(best);
    if (result.status == SampleStatus::kDone) {
      result.id = slot.params.temperature == 0
                      ? best.id
                      : draw(changed, best.value, slot.params, slot.progress.generated, scratch);
    }
  }
  move_on(slot, result.id, result.status);
  return result;
}

}  // namespace

ScratchBytes scratch_of(const SampleArgs& args) {
  const size_t of_id = sizeof(float) + sizeof(uint64_t) + sizeof(Candidate);
  return {.call = static_cast<size_t>(args.V) * of_id + kMostTop * sizeof(TopLogit), .thread = 0};
}

void run(const SampleArgs& args, Stream&) {
  thread_local Scratch scratch;
  for (int r = 0; r < args.count; ++r) {
    const SampleRow& wanted = args.rows[r];
    const std::span<const float> row(args.logits + wanted.logits * args.stride,
                                     static_cast<size_t>(args.V));
    const SlotView slot(args.table, args.V, wanted.slot);
    SampleResult& result = args.results[r];
    const bool scored = wanted.scored >= 0;
    if (!scored && slot.progress.ended != 0) {
      result = {.id = -1, .status = SampleStatus::kEnded, .logit = 0, .max = 0, .sum = 0};
      continue;
    }
    const RowMax raw = row_max(row);
    if (scored) {
      const SampleStatus status = status_of(raw);
      const int32_t id = status == SampleStatus::kDone ? wanted.scored : -1;
      result = {.id = id, .status = status, .logit = 0, .max = 0, .sum = 0};
    } else {
      result = sample_row(row, raw, slot, &scratch);
    }
    if (wanted.top >= 0 && result.status == SampleStatus::kDone) {
      add_logprobs(row, raw.value, wanted, args.top, &result, &scratch);
    }
  }
}

}  // namespace recurve::reference
