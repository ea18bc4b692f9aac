#include "model/layers/token_weights.h"

#include <fmt/format.h>

#include "model/weights/convert.h"

namespace recurve {
namespace {

const std::vector<std::string> kHeadNames = {"lm_head.weight", "model.lm_head.weight"};

// The first of the names that exists, or the first of all.
std::string existing(const Checkpoint& checkpoint, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (checkpoint.find(name) != nullptr) return name;
  }
  return names.front();
}

}  // namespace

HeadSource find_head(Checkpoint& checkpoint, const std::string& embedding,
                     const std::vector<std::string>& names, bool tied) {
  const std::string name = existing(checkpoint, names);
  if (!tied) return {false, name};
  const TensorView* head = checkpoint.find(name);
  if (head == nullptr) return {true, "the embedding"};
  const TensorView* table = checkpoint.find(embedding);
  const bool same = table != nullptr && is_weight_type(head->type) && same_values(*head, *table);
  if (!same) {
    return {false,
            fmt::format("{}, which differs from the embedding though the config ties them", name)};
  }
  checkpoint.allow_extra(names);
  return {true, fmt::format("the embedding; {} is the same", name)};
}

TokenWeights load_token_weights(Backend& backend, Checkpoint& checkpoint, const std::string& prefix,
                                const std::string& norm_name, int64_t V, int64_t D, bool tied,
                                const WeightFormats& formats) {
  const std::string embedding = existing(
      checkpoint,
      {prefix + "embeddings.weight", prefix + "embedding.weight", prefix + "embed_tokens.weight"});
  TokenWeights weights;
  weights.embedding = LinearWeights::load(backend, checkpoint, {{embedding, V}}, D, formats.tokens);
  if (!norm_name.empty()) {
    weights.norm = VectorWeights::load(backend, checkpoint, prefix + norm_name, {{D}});
  }
  const HeadSource head = find_head(checkpoint, embedding, kHeadNames, tied);
  weights.head_source = head.words;
  if (!head.is_embedding) {
    weights.lm_head = LinearWeights::load(
        backend, checkpoint, {{existing(checkpoint, kHeadNames), V}}, D, formats.tokens);
  }
  return weights;
}

bool has_lm_head(const Checkpoint& checkpoint) {
  return checkpoint.find(existing(checkpoint, kHeadNames)) != nullptr;
}

void WeightTally::add(const LinearWeights& weights) {
  const Matrix& matrix = weights.matrix();
  parameters += matrix.N * matrix.K + (weights.bias() == nullptr ? 0 : matrix.N);
  bytes += static_cast<int64_t>(weights.bytes());
}

void WeightTally::add(const VectorWeights& weights) {
  parameters += weights.size();
  bytes += static_cast<int64_t>(weights.bytes());
}

void WeightTally::add(const TokenWeights& weights) {
  add(weights.embedding);
  add(weights.norm);
  add(weights.lm_head);
}

}  // namespace recurve
