#include "server/engine/sampling_table.h"

#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "kernels/ops/sample_math.h"

namespace recurve {
namespace {

static_assert(kMaxLogprobs <= kMostTop);
static_assert(kMaxLogitBiasEntries <= kMostBiases);

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
          // A guide applies it itself: where a text can only end, it ends.
          .min_tokens = p.constraint ? 0 : p.min_tokens,
          .max_tokens = p.max_tokens,
          .biases = static_cast<int32_t>(p.logit_bias.size()),
          .masked = p.constraint != nullptr || !p.allowed_ids.empty(),
          .penalised = has_penalties(p)};
}

const char* sentence_for(SampleStatus status) {
  if (status == SampleStatus::kNotFinite) return "the model's logits are not finite numbers";
  CHECK(status == SampleStatus::kNothing);
  return "no token to sample: all are masked or impossible";
}

// Sets of ids, one bit each.
void add_id(int32_t id, std::span<uint32_t> set) {
  set[static_cast<size_t>(id) / 32] |= uint32_t{1} << (static_cast<size_t>(id) % 32);
}
void add_ids(const std::vector<int32_t>& ids, std::span<uint32_t> set) {
  for (const int32_t id : ids) add_id(id, set);
}

void sort_biases(const SamplingParams& params, std::span<SampleBias> to) {
  size_t at = 0;
  for (const auto& [id, value] : params.logit_bias) to[at++] = {id, value};
  std::ranges::sort(to, {}, &SampleBias::id);
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
  biased_ = backend.allocate(each * words_ * sizeof(uint32_t));
  biases_ = backend.allocate(each * kMostBiases * sizeof(SampleBias));
  prompt_ = backend.allocate(each * words_ * sizeof(uint32_t));
  answer_ = backend.allocate(each * usable * sizeof(uint16_t));
  const SampleProgress scratch{.token = 0, .generated = 0, .ended = 1};
  backend.upload(progress(), &scratch, sizeof scratch, stream);
  stream.wait();
}

void SamplingTable::begin(int32_t slot, const SamplingParams& params, const TokenHistory& history,
                          Staging& staging, Stream& stream, const SampleProgress& progress) {
  // Writes `count` values, zeros at first, to the slot's place, which has room for `most`.
  const auto set_some = [&]<typename T>(T* table, size_t count, size_t most, const auto& write) {
    const std::span<T> staged = staging.take<T>(count);
    std::ranges::fill(staged, T{});
    write(staged);
    backend_.upload(table + static_cast<size_t>(slot) * most, staged.data(), staged.size_bytes(),
                    stream);
  };
  const auto set = [&](auto* table, size_t count, const auto& write) {
    set_some(table, count, count, write);
  };
  const auto usable = static_cast<size_t>(vocab_.usable);
  const SampleParams own = params_for(params);
  set(params_.as<SampleParams>(), 1, [&](auto to) { to[0] = own; });
  set(this->progress(), 1, [&](auto to) { to[0] = progress; });
  set(ends_.as<uint32_t>(), words_, [&](auto to) {
    add_ids(params.stop_ids, to);
    if (!params.ignore_eos) add_ids(vocab_.eos_ids, to);
  });
  if (own.masked && params.constraint == nullptr) {
    set(allowed_.as<uint32_t>(), words_, [&](auto to) { add_ids(params.allowed_ids, to); });
  }
  if (own.biases > 0) {
    set(biased_.as<uint32_t>(), words_, [&](auto to) {
      for (const auto& [id, value] : params.logit_bias) add_id(id, to);
    });
    set_some(biases_.as<SampleBias>(), params.logit_bias.size(), kMostBiases,
             [&](auto to) { sort_biases(params, to); });
  }
  if (!own.penalised) return;
  const auto may_be_said = [&](int32_t id) { return id < vocab_.usable; };
  set(prompt_.as<uint32_t>(), words_, [&](auto to) {
    history.for_each_in_prompt([&](int32_t id) {
      if (may_be_said(id)) add_id(id, to);
    });
  });
  set(answer_.as<uint16_t>(), usable, [&](auto to) {
    for (const TokenHistory::Generated& said : history.generated()) {
      if (!may_be_said(said.id)) continue;
      const uint32_t times = std::min<uint32_t>(said.times, kMostInAnswer);
      to[static_cast<size_t>(said.id)] = static_cast<uint16_t>(times);
    }
  });
}

void SamplingTable::allow(int32_t slot, std::span<const uint32_t> mask, Staging& staging,
                          Stream& stream) {
  CHECK(mask.size() == words_);
  const std::span<uint32_t> staged = staging.take<uint32_t>(words_);
  std::ranges::copy(mask, staged.begin());
  backend_.upload(allowed_.as<uint32_t>() + static_cast<size_t>(slot) * words_, staged.data(),
                  staged.size_bytes(), stream);
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
                    .biased = biased_.as<uint32_t>(),
                    .biases = biases_.as<SampleBias>(),
                    .prompt = prompt_.as<uint32_t>(),
                    .answer = answer_.as<uint16_t>(),
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
