#include "server/sampling/sampled_token.h"

#include <algorithm>

namespace recurve {
namespace {

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

StopKind stop_kind(int32_t id, const SamplingParams& params, const SamplingVocab& vocab,
                   int64_t index) {
  // With a constraint, the mask allows ids that end the answer only where they may.
  if (params.constraint == nullptr && index < params.min_tokens) return StopKind::kNone;
  if (!params.ignore_eos && contains(vocab.eos_ids, id)) return StopKind::kEos;
  return contains(params.stop_ids, id) ? StopKind::kStopId : StopKind::kNone;
}

}  // namespace recurve
