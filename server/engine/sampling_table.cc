#include "server/engine/sampling_table.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/check.h"
#include "kernels/ops/sample_math.h"

namespace recurve {
namespace {

static_assert(kMaxLogprobs <= kMostTop);

SampleParams params_for(const SamplingParams& p) {
  return {.temperature = p.temperature,
          .top_p = p.top_p,
          .min_p = p.min_p,
          .typical_p = p.typical_p,
          .top_k = p.top_k,
          .repetition_penalty = p.repetition_penalty,
          .presence_penalty = p.presence_penalty,
          .frequency_penalty = p.frequency_penalty,
          .seed = p.seed,
          .min_tokens = p.min_tokens,
          .max_tokens = p.max_tokens,
          .masked = !p.allowed_ids.empty(),
          .biased = !p.logit_bias.empty(),
          .penalised = has_penalties(p)};
}

const char* sentence_for(SampleStatus status) {
  if (status == SampleStatus::kNotFinite) return "the model's logits are not finite numbers";
  CHECK(status == SampleStatus::kNothing);
  return "no token is left to sample: all are masked or impossible";
}

}  // namespace

SamplingTable::SamplingTable(Backend& backend, const SamplingVocab& vocab, int slots,
                             Stream& stream)
    : backend_(backend), vocab_(vocab), words_((static_cast<size_t>(vocab.usable) + 31) / 32) {
  CHECK(vocab_.usable > 0 && vocab_.usable <= vocab_.rows);
  for (const int32_t id : vocab_.eos_ids) CHECK(id >= 0 && id < vocab_.usable);
  const auto each = static_cast<size_t>(slots) + 1, usable = static_cast<size_t>(vocab.usable);
  params_ = backend.allocate(each * sizeof(SampleParams));
  progress_ = backend.allocate(each * sizeof(SampleProgress));
  ends_ = backend.allocate(each * words_ * sizeof(uint32_t));
  allowed_ = backend.allocate(each * words_ * sizeof(uint32_t));
  bias_ = backend.allocate(each * usable * sizeof(float));
  seen_ = backend.allocate(each * usable * sizeof(uint32_t));
  const SampleProgress scratch{.token = 0, .generated = 0, .ended = 1};
  backend.upload(progress(), &scratch, sizeof scratch, stream);
  stream.wait();
}

void SamplingTable::begin(int32_t slot, const SamplingParams& params, const TokenHistory& history,
                          Staging& staging, Stream& stream) {
  const auto set = [&](const auto& value, auto* array) {
    using T = std::decay_t<decltype(value)>;
    const std::span<T> staged = staging.take<T>(1);
    staged[0] = value;
    backend_.upload(array + slot, staged.data(), sizeof(T), stream);
  };
  set(params_for(params), params_.as<SampleParams>());
  set(SampleProgress{.token = 0, .generated = 0, .ended = 0}, progress());
  const std::array ends = {params.stop_ids,
                           params.ignore_eos ? std::vector<int32_t>() : vocab_.eos_ids};
  set_ids(ends_, slot, ends, staging, stream);
  const SampleParams kinds = params_for(params);
  if (kinds.masked) set_ids(allowed_, slot, {&params.allowed_ids, 1}, staging, stream);
  if (kinds.biased) set_bias(slot, params, staging, stream);
  if (kinds.penalised) set_seen(slot, history, staging, stream);
}

void SamplingTable::set_ids(const Buffer& sets, int32_t slot,
                            std::span<const std::vector<int32_t>> ids, Staging& staging,
                            Stream& stream) {
  const std::span<uint32_t> set = staging.take<uint32_t>(words_);
  std::ranges::fill(set, 0);
  for (const auto& some : ids) {
    for (const int32_t id : some) {
      set[static_cast<size_t>(id) / 32] |= uint32_t{1} << (static_cast<size_t>(id) % 32);
    }
  }
  backend_.upload(sets.as<uint32_t>() + static_cast<size_t>(slot) * words_, set.data(),
                  set.size_bytes(), stream);
}

void SamplingTable::set_bias(int32_t slot, const SamplingParams& params, Staging& staging,
                             Stream& stream) {
  const auto usable = static_cast<size_t>(vocab_.usable);
  const std::span<float> bias = staging.take<float>(usable);
  std::ranges::fill(bias, 0.0f);
  for (const auto& [id, value] : params.logit_bias) bias[static_cast<size_t>(id)] = value;
  backend_.upload(bias_.as<float>() + static_cast<size_t>(slot) * usable, bias.data(),
                  bias.size_bytes(), stream);
}

void SamplingTable::set_seen(int32_t slot, const TokenHistory& history, Staging& staging,
                             Stream& stream) {
  const auto usable = static_cast<size_t>(vocab_.usable);
  const std::span<uint32_t> seen = staging.take<uint32_t>(usable);
  std::ranges::fill(seen, 0);
  for (const TokenHistory::Entry& entry : history.entries()) {
    if (entry.id >= vocab_.usable) continue;
    seen[static_cast<size_t>(entry.id)] =
        (entry.prompt > 0 ? kSeenInPrompt : 0) | std::min(entry.generated, kMostSeen);
  }
  backend_.upload(seen_.as<uint32_t>() + static_cast<size_t>(slot) * usable, seen.data(),
                  seen.size_bytes(), stream);
}

SampleArgs SamplingTable::args(const float* logits, std::span<const SampleRow> rows,
                               SampleResult* results, TopLogit* top) const {
  return {.count = static_cast<int>(rows.size()),
          .stride = vocab_.rows,
          .V = vocab_.usable,
          .logits = logits,
          .rows = rows.data(),
          .table = {.words = static_cast<int>(words_),
                    .params = params_.as<SampleParams>(),
                    .ends = ends_.as<uint32_t>(),
                    .allowed = allowed_.as<uint32_t>(),
                    .bias = bias_.as<float>(),
                    .seen = seen_.as<uint32_t>(),
                    .progress = progress()},
          .results = results,
          .top = top};
}

SampledToken token_of(const SampleResult& result, std::span<const TopLogit> top) {
  SampledToken token;
  if (result.id < 0) {
    token.error = sentence_for(result.status);
    return token;
  }
  token.id = result.id;
  if (result.sum == 0) return token;  // no log-probabilities were asked for
  const double log_sum = result.max + std::log(static_cast<double>(result.sum) / kWeightUnit);
  token.logprob = static_cast<float>(result.logit - log_sum);
  for (const TopLogit& other : top) {
    if (other.id < 0) break;
    token.top.push_back({other.id, static_cast<float>(other.logit - log_sum)});
  }
  return token;
}

}  // namespace recurve
