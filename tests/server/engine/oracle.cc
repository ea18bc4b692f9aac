#include "tests/server/engine/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace recurve::testing_support {
namespace {

void normalise(std::vector<Outcome>* outcomes) {
  double sum = 0;
  for (const Outcome& o : *outcomes) sum += o.p;
  for (Outcome& o : *outcomes) o.p /= sum;
}

// Cuts behind the first outcomes whose probabilities reach `mass`, and normalises.
void cut_at(double mass, std::vector<Outcome>* outcomes) {
  double cumulative = 0;
  size_t n = 0;
  while (n < outcomes->size() && cumulative < mass) cumulative += (*outcomes)[n++].p;
  outcomes->resize(std::max<size_t>(n, 1));
  normalise(outcomes);
}

}  // namespace

std::vector<double> oracle_logits(std::span<const float> row, const SamplingVocab& vocab,
                                  const SamplingParams& params, const Seen& seen, int64_t index) {
  const double never = -std::numeric_limits<double>::infinity();
  std::vector<double> z(row.begin(), row.begin() + vocab.usable);
  const std::set<int32_t> allowed(params.allowed_ids.begin(), params.allowed_ids.end());
  for (int32_t id = 0; id < vocab.usable; ++id) {
    if (!allowed.empty() && !allowed.contains(id)) z[static_cast<size_t>(id)] = never;
  }
  if (index < params.min_tokens) {
    if (!params.ignore_eos) {
      for (const int32_t id : vocab.eos_ids) z[static_cast<size_t>(id)] = never;
    }
    for (const int32_t id : params.stop_ids) z[static_cast<size_t>(id)] = never;
  }
  for (const auto& [id, bias] : params.logit_bias) z[static_cast<size_t>(id)] += bias;
  for (int32_t id = 0; id < vocab.usable; ++id) {
    double& logit = z[static_cast<size_t>(id)];
    const double repetition = params.repetition_penalty;
    if (seen.prompt.contains(id) || seen.generated.contains(id)) {
      logit = logit > 0 ? logit / repetition : logit * repetition;
    }
    if (const auto found = seen.generated.find(id); found != seen.generated.end()) {
      logit -= static_cast<double>(params.frequency_penalty) * found->second;
      logit -= params.presence_penalty;
    }
  }
  return z;
}

std::vector<Outcome> oracle(std::span<const float> row, const SamplingVocab& vocab,
                            const SamplingParams& params, const Seen& seen, int64_t index) {
  const std::vector<double> z = oracle_logits(row, vocab, params, seen, index);
  const double max = *std::max_element(z.begin(), z.end());
  std::vector<Outcome> all;
  for (size_t id = 0; id < z.size(); ++id) {
    const double p = std::exp((z[id] - max) / static_cast<double>(params.temperature));
    if (p > 0) all.push_back({static_cast<int32_t>(id), z[id], p});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Outcome& a, const Outcome& b) { return a.logit > b.logit; });
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < all.size()) {
    all.resize(static_cast<size_t>(params.top_k));
  }
  normalise(&all);
  if (params.typical_p < 1) {
    double entropy = 0;
    for (const Outcome& o : all) entropy -= o.p * std::log(o.p);
    const auto distance = [&](const Outcome& o) { return std::abs(-std::log(o.p) - entropy); };
    std::stable_sort(all.begin(), all.end(),
                     [&](const Outcome& a, const Outcome& b) { return distance(a) < distance(b); });
    cut_at(params.typical_p, &all);
    std::sort(all.begin(), all.end(), [](const Outcome& a, const Outcome& b) {
      return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    });
  }
  if (params.top_p < 1) cut_at(params.top_p, &all);
  const double least = static_cast<double>(params.min_p) * all.front().p;
  std::erase_if(all, [&](const Outcome& o) { return o.p < least; });
  normalise(&all);
  return all;
}

int32_t oracle_draw(std::vector<Outcome> outcomes, double u) {
  std::sort(outcomes.begin(), outcomes.end(),
            [](const Outcome& a, const Outcome& b) { return a.id < b.id; });
  double cumulative = 0;
  for (const Outcome& o : outcomes) {
    cumulative += o.p;
    if (cumulative >= u) return o.id;
  }
  return outcomes.back().id;
}

}  // namespace recurve::testing_support
