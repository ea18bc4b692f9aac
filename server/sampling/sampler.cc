#include "server/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/check.h"
#include "server/sampling/philox.h"
#include "server/sampling/row.h"

namespace recurve {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Why nothing can be sampled from a row with this maximum; null if something can.
const char* problem(const RowMax& max) {
  if (max.nan || max.value == kInfinity) return "the model's logits are not finite numbers";
  if (max.value == -kInfinity) return "no token is left to sample: all are masked or impossible";
  return nullptr;
}

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

// All ids of the row with their weights, without those that cannot be reached: where only the
// likeliest ids up to a fraction f of the total matter, ids below (1 - f) * total / n do not, since
// all of them together weigh less than what is beyond f. min_weight drops those below it for good.
void gather(std::span<const double> weights, std::span<const float> row, double fraction,
            double min_weight, Candidates* out) {
  const double unreachable =
      0.5 * (1 - fraction) * out->total / static_cast<double>(row.size());  // 0.5: for rounding
  const double floor = std::max({min_weight, unreachable, std::numeric_limits<double>::min()});
  out->list.resize(row.size());
  size_t n = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    out->list[n] = {row[i], static_cast<int32_t>(i), weights[i], 0};
    n += weights[i] >= floor;
  }
  out->list.resize(n);
}

}  // namespace

Sampler::Sampler(SamplingVocab vocab) : vocab_(std::move(vocab)) {
  CHECK(vocab_.usable > 0 && vocab_.usable <= vocab_.rows);
  for (const int32_t id : vocab_.eos_ids) CHECK(id >= 0 && id < vocab_.usable);
}

SampledToken Sampler::sample(std::span<const float> logits, const SamplingParams& params,
                             const TokenHistory& history, int64_t index) {
  CHECK(logits.size() == static_cast<size_t>(vocab_.rows));
  const auto row = logits.first(static_cast<size_t>(vocab_.usable));
  const RowMax raw = row_max(row);
  SampledToken token;
  if ((token.error = problem(raw))) return token;

  const auto changed = processed(row, params, history, index);
  const RowMax best = changed.data() == row.data() ? raw : row_max(changed);
  if ((token.error = problem(best))) return token;

  token.id = params.temperature == 0 ? best.id : draw(changed, best.value, params, index);
  if (params.logprobs >= 0) add_logprobs(row, raw.value, params.logprobs, &token);
  return token;
}

std::span<const float> Sampler::processed(std::span<const float> row, const SamplingParams& params,
                                          const TokenHistory& history, int64_t index) {
  const bool masked = !params.allowed_ids.empty() || index < params.min_tokens;
  const bool penalised = has_penalties(params) && !history.entries().empty();
  if (!masked && !penalised && params.logit_bias.empty()) return row;

  apply_masks(row, params, index);
  for (const auto& [id, bias] : params.logit_bias) scratch_[static_cast<size_t>(id)] += bias;
  if (penalised) apply_penalties(params, history);
  return scratch_;
}

void Sampler::apply_masks(std::span<const float> row, const SamplingParams& params, int64_t index) {
  if (params.allowed_ids.empty()) {
    scratch_.assign(row.begin(), row.end());
  } else {
    scratch_.assign(row.size(), -kInfinity);
    for (const int32_t id : params.allowed_ids) {
      scratch_[static_cast<size_t>(id)] = row[static_cast<size_t>(id)];
    }
  }
  if (index < params.min_tokens) {
    if (!params.ignore_eos) {
      for (const int32_t id : vocab_.eos_ids) scratch_[static_cast<size_t>(id)] = -kInfinity;
    }
    for (const int32_t id : params.stop_ids) scratch_[static_cast<size_t>(id)] = -kInfinity;
  }
}

void Sampler::apply_penalties(const SamplingParams& params, const TokenHistory& history) {
  for (const TokenHistory::Entry& seen : history.entries()) {
    if (seen.id >= vocab_.usable) continue;
    float& logit = scratch_[static_cast<size_t>(seen.id)];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    logit -= params.frequency_penalty * static_cast<float>(seen.generated);
    if (seen.generated > 0) logit -= params.presence_penalty;
  }
}

int32_t Sampler::draw(std::span<const float> row, float max, const SamplingParams& params,
                      int64_t index) {
  const double inverse_temperature = 1.0 / static_cast<double>(params.temperature);
  const double u = uniform(params.seed, index);
  const bool typical = params.typical_p < 1, top_p = params.top_p<1, min_p = params.min_p> 0;

  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < row.size()) {
    select_top(row, static_cast<size_t>(params.top_k), &candidates_.list);
    candidates_.total = 0;
    for (Candidate& c : candidates_.list) {
      c.weight = exp_nonpositive((static_cast<double>(c.logit) - max) * inverse_temperature);
      candidates_.total += c.weight;
    }
    std::erase_if(candidates_.list, [](const Candidate& c) { return c.weight == 0; });
  } else {
    weights_.resize(row.size());
    candidates_.total = exp_sum(row, max, inverse_temperature, weights_.data());
    // How much of the distribution the first filter can reach; typical_p may start anywhere.
    const double fraction = typical ? 1.0 : top_p ? params.top_p : min_p ? 1.0 : u;
    const double min_weight = !typical && !top_p ? params.min_p : 0.0;
    gather(weights_, row, fraction, min_weight, &candidates_);
  }
  if (typical) keep_typical(params.typical_p, &candidates_);
  if (top_p) keep_top_p(params.top_p, &candidates_);
  if (min_p) keep_min_p(params.min_p, &candidates_);
  return pick(u, &candidates_);
}

void Sampler::add_logprobs(std::span<const float> row, float max, int top, SampledToken* token) {
  const double log_sum = max + std::log(exp_sum(row, max, 1.0, nullptr));
  const auto logprob = [&](float logit) { return static_cast<float>(logit - log_sum); };
  const auto id = static_cast<size_t>(token->id);
  token->logprob = id < row.size() ? logprob(row[id]) : -kInfinity;
  select_top(row, static_cast<size_t>(top), &candidates_.list);
  std::sort(candidates_.list.begin(), candidates_.list.end(), likelier);
  token->top.reserve(candidates_.list.size());
  for (const Candidate& c : candidates_.list) token->top.push_back({c.id, logprob(c.logit)});
}

SampledToken Sampler::score(std::span<const float> logits, int32_t id, int top) {
  CHECK(logits.size() == static_cast<size_t>(vocab_.rows));
  CHECK(id >= 0 && id < vocab_.rows && top >= 0);
  const auto row = logits.first(static_cast<size_t>(vocab_.usable));
  const RowMax max = row_max(row);
  SampledToken token;
  if ((token.error = problem(max))) return token;
  token.id = id;
  add_logprobs(row, max.value, top, &token);
  return token;
}

StopKind Sampler::stop_kind(int32_t id, const SamplingParams& params, int64_t index) const {
  if (index < params.min_tokens) return StopKind::kNone;
  if (!params.ignore_eos && contains(vocab_.eos_ids, id)) return StopKind::kEos;
  return contains(params.stop_ids, id) ? StopKind::kStopId : StopKind::kNone;
}

}  // namespace recurve
