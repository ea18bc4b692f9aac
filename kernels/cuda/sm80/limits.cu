#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm80/attention/paged_attention.h"
#include "kernels/cuda/sm80/attention/ring_attention.h"
#include "kernels/cuda/sm80/channels/selective_scan.cuh"
#include "kernels/cuda/sm80/limits.h"
#include "kernels/cuda/sm80/matrix/delta_rule.h"
#include "kernels/cuda/sm80/matrix/gla_chunk.h"
#include "kernels/cuda/sm80/matrix/matrix_chunk.h"
#include "kernels/cuda/sm80/matrix/matrix_step.cuh"
#include "kernels/cuda/sm80/matrix/rwkv7.h"
#include "kernels/cuda/sm80/rows/router.h"

namespace recurve::cuda::sm80 {
namespace {

std::string too_many(const char* what, int64_t found, int64_t most) {
  return std::to_string(found) + " " + what + ", but " + std::to_string(most) + " at most";
}

// What the ops whose state is a matrix a head have in common.
struct MatrixSizes {
  int H, DK, chunk;
  bool own_decays;
  size_t scratch;  // bytes of a block of rows, at least
};

std::string chunks_cannot(const MatrixSizes& a, size_t shared_memory) {
  const int keys = most_keys_of_chunks(a.own_decays, shared_memory);
  if (a.DK > keys) return too_many("keys a head", a.DK, keys);
  const auto of_chunk = static_cast<size_t>(blocks_of_chunk<>(a.chunk));
  if (a.scratch * of_chunk <= kScratchBytes) return "";
  return "chunks of " + std::to_string(a.chunk) + " rows of " + std::to_string(a.H) + " heads of " +
         std::to_string(a.DK) + " keys, for which its memory is too small";
}

// What mlstm and gla cannot take. Their step form has its keys in shared memory too; `most` is
// below what a block has without asking for more.
std::string matrix_cannot(const MatrixSizes& a, size_t shared_memory) {
  constexpr int kMost = 2048;
  static_assert(kMost * (sizeof(KeyWeights) + sizeof(float)) <= 40 << 10);
  if (a.DK > kMost) return too_many("keys a head", a.DK, kMost);
  return a.chunk > 1 ? chunks_cannot(a, shared_memory) : "";
}

size_t heads_of(int H) { return static_cast<size_t>(H); }

}  // namespace

void set_limits(Kernels& kernels, size_t shared_memory) {
  kernels.mlstm.cannot = [shared_memory](const MlstmArgs& a) {
    const size_t scratch = (sizeof(BlockWeights) + sizeof(float)) * heads_of(a.H);
    return matrix_cannot({a.H, a.DK, a.chunk, false, scratch}, shared_memory);
  };
  kernels.gla.cannot = [shared_memory](const GlaArgs& a) {
    return matrix_cannot({a.H, a.DK, a.chunk, a.decay == GlaDecay::kChannel, bytes_of_gla_block(a)},
                         shared_memory);
  };
  kernels.ssd.cannot = [shared_memory](const SsdArgs& a) -> std::string {
    if (a.chunk <= 1) return "";
    return chunks_cannot({a.H, a.N, a.chunk, false, sizeof(BlockWeights) * heads_of(a.H)},
                         shared_memory);
  };
  kernels.selective_scan.cannot = [shared_memory](const SelectiveScanArgs& a) -> std::string {
    if (a.N <= kScanShort) return "";
    const auto most = static_cast<int64_t>(shared_memory / kBytesOfScannedState);
    return a.N > most ? too_many("states a channel", a.N, most) : "";
  };
  kernels.rwkv7.cannot = [](const Rwkv7Args& a) -> std::string {
    return a.N > kMostRwkv7Channels ? too_many("channels a head", a.N, kMostRwkv7Channels) : "";
  };
  kernels.delta_rule.cannot = [](const DeltaRuleArgs& a) -> std::string {
    return a.DK > kMostDeltaKeys ? too_many("keys a head", a.DK, kMostDeltaKeys) : "";
  };
  kernels.ring_attention.cannot = [](const RingAttentionArgs& a) -> std::string {
    if (a.D > kMostRingChannels) return too_many("channels a head", a.D, kMostRingChannels);
    if (bytes_of_ring_row(a) <= kScratchBytes) return "";
    return "a window of " + std::to_string(a.W) + " rows of " + std::to_string(a.H) +
           " heads, for which its memory is too small";
  };
  kernels.paged_attention.cannot = [](const PagedAttentionArgs& a) -> std::string {
    return a.D > kMostPagedChannels ? too_many("channels a head", a.D, kMostPagedChannels) : "";
  };
  kernels.router.cannot = [shared_memory](const RouterArgs& a) -> std::string {
    if (bytes_of_routed_row(a) <= shared_memory) return "";
    return std::to_string(a.E) + " experts, for which its memory is too small";
  };
}

}  // namespace recurve::cuda::sm80
