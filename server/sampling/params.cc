#include "server/sampling/params.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

namespace recurve {
namespace {

using Problem = std::optional<std::string>;

enum class Low { kIncluded, kExcluded };

// NaN is in no range.
template <typename T>
Problem check_range(const char* field, T value, T low, T high, Low end = Low::kIncluded) {
  const bool above = end == Low::kIncluded ? value >= low : value > low;
  if (above && value <= high) return {};
  return fmt::format("{} must be in {}{}, {}], got {}", field, end == Low::kIncluded ? '[' : '(',
                     low, high, value);
}

Problem check_min(const char* field, int32_t value, int32_t low) {
  if (value >= low) return {};
  return fmt::format("{} must be at least {}, got {}", field, low, value);
}

Problem check_size(const char* field, size_t size, size_t most) {
  if (size <= most) return {};
  return fmt::format("{} must have at most {} entries, got {}", field, most, size);
}

Problem check_id(const char* field, int32_t id, int32_t usable) {
  if (id >= 0 && id < usable) return {};
  return fmt::format("{} must name token ids in [0, {}), got {}", field, usable, id);
}

Problem first_of(std::initializer_list<Problem> problems) {
  for (const Problem& problem : problems) {
    if (problem) return problem;
  }
  return {};
}

Problem check_numbers(const SamplingParams& p) {
  return first_of({
      check_range("temperature", p.temperature, 0.0f, kMaxTemperature),
      check_min("top_k", p.top_k, 0),
      check_range("top_p", p.top_p, 0.0f, 1.0f, Low::kExcluded),
      check_range("min_p", p.min_p, 0.0f, 1.0f),
      check_range("typical_p", p.typical_p, 0.0f, 1.0f, Low::kExcluded),
      check_range("repetition_penalty", p.repetition_penalty, kMinRepetitionPenalty,
                  kMaxRepetitionPenalty),
      check_range("presence_penalty", p.presence_penalty, -kMaxOpenAiPenalty, kMaxOpenAiPenalty),
      check_range("frequency_penalty", p.frequency_penalty, -kMaxOpenAiPenalty, kMaxOpenAiPenalty),
      check_range("logprobs", p.logprobs, -1, kMaxLogprobs),
      check_range("prompt_logprobs", p.prompt_logprobs, -1, kMaxLogprobs),
      check_min("max_tokens", p.max_tokens, 0),
      check_range("min_tokens", p.min_tokens, 0, p.max_tokens),
  });
}

Problem check_bias(const SamplingParams& p, int32_t usable) {
  if (auto problem = check_size("logit_bias", p.logit_bias.size(), kMaxLogitBiasEntries)) {
    return problem;
  }
  std::vector<int32_t> ids;
  for (const auto& [id, bias] : p.logit_bias) {
    if (auto problem = check_id("logit_bias", id, usable)) return problem;
    const std::string field = fmt::format("logit_bias of token id {}", id);
    if (auto problem = check_range(field.c_str(), bias, -kMaxLogitBias, kMaxLogitBias)) {
      return problem;
    }
    ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice == ids.end()) return {};
  return fmt::format("logit_bias must name a token id once, got {} more than once", *twice);
}

Problem check_ids(const char* field, const std::vector<int32_t>& ids, size_t most, int32_t usable) {
  if (auto problem = check_size(field, ids.size(), most)) return problem;
  for (const int32_t id : ids) {
    if (auto problem = check_id(field, id, usable)) return problem;
  }
  return {};
}

// min_tokens masks the ids that end an answer; another id must remain to be sampled.
Problem check_something_left(const SamplingParams& p, const SamplingVocab& vocab) {
  if (p.min_tokens == 0) return {};
  std::vector<int32_t> ends = p.stop_ids;
  if (!p.ignore_eos) ends.insert(ends.end(), vocab.eos_ids.begin(), vocab.eos_ids.end());
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  const bool left =
      p.allowed_ids.empty()
          ? ends.size() < static_cast<size_t>(vocab.usable)
          : std::any_of(
                p.allowed_ids.begin(), p.allowed_ids.end(),
                [&](int32_t id) { return !std::binary_search(ends.begin(), ends.end(), id); });
  if (left) return {};
  return fmt::format(
      "min_tokens must be 0 where every id that may be sampled ends the answer "
      "(end-of-sequence or stop_token_ids), got {}",
      p.min_tokens);
}

}  // namespace

std::optional<std::string> check(const SamplingParams& params, const SamplingVocab& vocab) {
  // The vocabulary bounds allowed_ids: more entries than ids can only be repeats.
  if (auto problem = check_numbers(params)) return problem;
  if (auto problem = check_bias(params, vocab.usable)) return problem;
  if (auto problem = check_ids("allowed_token_ids", params.allowed_ids,
                               static_cast<size_t>(vocab.usable), vocab.usable)) {
    return problem;
  }
  if (auto problem = check_ids("stop_token_ids", params.stop_ids, kMaxStopIds, vocab.usable)) {
    return problem;
  }
  return check_something_left(params, vocab);
}

}  // namespace recurve
