// Prompts of the delta rule with no decays, or one a row, by tiles.
#include <span>
#include <utility>

#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm80/matrix/delta_rule.h"
#include "kernels/cuda/sm80/matrix/matrix_chunk.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm90/capabilities.h"
#include "kernels/cuda/sm90/matrix/delta_tiles.h"
#include "kernels/cuda/sm90/ops.h"

namespace recurve::cuda::sm90 {
namespace {

void run_tiles(const DeltaRuleArgs& args, Stream& stream) {
  // Waves take turns with the halves, so that one is made while the other is gone through.
  const std::span<std::byte> scratch = static_cast<CudaStream&>(stream).scratch();
  std::span<std::byte> half = scratch.first(kDeltaWaveBytes);
  std::span<std::byte> other = scratch.subspan(kDeltaWaveBytes);
  const size_t bytes = delta_tile_bytes(args.H, args.HK, args.DK);
  const auto visit = [&](const Ragged& seqs, int first_tile, int tiles) {
    DeltaTileArgs part{args, first_tile, tiles, nullptr, nullptr};
    part.rule.seqs = seqs;
    part.keys = reinterpret_cast<uint16_t*>(half.data());
    part.weights = reinterpret_cast<DeltaTile*>(part.keys + int64_t{seqs.num_seqs} * tiles *
                                                                args.HK * 2 * kDeltaRows * args.DK);
    weigh_delta_tiles(part, stream);
    scan_delta_tiles(part, stream);
    std::swap(half, other);
  };
  sm80::for_each_wave<kDeltaRows>(args.seqs, args.chunk, bytes, kDeltaWaveBytes, visit);
}

}  // namespace

static_assert(sizeof(DeltaTile) == kDeltaWeightBytes && kDeltaRows == kScanRows);

void run(const DeltaRuleArgs& args, Stream& stream) {
  const bool prompts = args.seqs.num_seqs > 0 && args.seqs.max_len > 1;
  if (!prompts || !delta_scans(args)) return sm80::run(args, stream);
  run_tiles(args, stream);
  sm80::delta_rule_last_rows(args, stream);
}

}  // namespace recurve::cuda::sm90
