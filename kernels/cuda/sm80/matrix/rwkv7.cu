#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/cuda/sm80/matrix/rwkv7.cuh"
#include "kernels/cuda/sm80/matrix/rwkv7.h"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

template <bool kWhole, int kKeys>
__device__ void load_row(Rwkv7Row<kKeys>& x, const Rwkv7Args& a, int64_t row,
                         const Rwkv7ThreadCoord& place) {
  const int64_t head = row * a.stride + static_cast<int64_t>(place.head) * a.N;
  const int64_t at = head + place.key;
  const int keys = a.N - place.key;
  load_keys<kWhole>(x.kk, a.kk + at, keys);
  load_keys<kWhole>(x.b, a.alpha + at, keys);
  load_keys<kWhole>(x.w, a.lw + at, keys);
  load_keys<kWhole>(x.k, a.k + at, keys);
  load_keys<kWhole>(x.r, a.r + at, keys);
  x.v = load_inputs<kWhole>(a.v + head + place.column, a.N - place.column);
#pragma unroll
  for (int j = 0; j < kKeys; ++j) {
    x.w[j] = rwkv7_decay(x.w[j]);
    x.b[j] = rwkv7_b(x.kk[j], x.b[j]);
  }
}

constexpr int kBlocks = 5;  // that are to share a multiprocessor where states stream through

// A block a head of a sequence. kStep: sequences have one row each. kOutgrown: see vector.cuh.
template <typename T, int kKeys, bool kWhole, bool kOutgrown, bool kStep>
__global__ void __launch_bounds__(rwkv7_threads(kRwkv7Groups* kKeys), kWhole ? kBlocks : 1)
    rwkv7_kernel(Rwkv7Args a) {
  const Rwkv7ThreadCoord place = rwkv7_coord<kKeys>(a.H);
  const int N = kWhole ? kRwkv7Groups * kKeys : a.N;
  T* const S = rwkv7_state<T>(a, N, place);
  wait_for_previous();
  let_next_start();
  Rwkv7State<T, kKeys> state;
  state.template load<kWhole, kOutgrown>(S, N, place);
  Rwkv7Row<kKeys> x;
  if constexpr (kStep) {
    load_row<kWhole>(x, a, place.sequence, place);
    put_rwkv7_o<kWhole>(a, N, place.sequence, place, rwkv7_step(state, x));
  } else {
    const int begin = a.seqs.begin[place.sequence], end = a.seqs.begin[place.sequence + 1];
    for (int row = begin; row < end; ++row) {
      load_row<kWhole>(x, a, row, place);
      put_rwkv7_o<kWhole>(a, N, row, place, rwkv7_step(state, x));
      if ((row + 1 - begin) % a.chunk == 0) state.round();
    }
  }
  state.template store<kWhole, kOutgrown>(S, N, place);
}

template <typename T, int kKeys>
auto kernel_for_any(const Rwkv7Args& a) {
  return a.seqs.max_len == 1 ? rwkv7_kernel<T, kKeys, false, false, true>
                             : rwkv7_kernel<T, kKeys, false, false, false>;
}

// Of whole heads, where all sequences have one row.
template <typename T>
auto kernel_for_whole(const Rwkv7Args& a) {
  return outgrows_cache<T>(int64_t{a.seqs.num_seqs} * a.H * a.N * a.N)
             ? rwkv7_kernel<T, kKeysOfWhole, true, true, true>
             : rwkv7_kernel<T, kKeysOfWhole, true, false, true>;
}

}  // namespace

void run(const Rwkv7Args& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  if (args.gate) return rwkv7_cell(args, stream);
  const bool whole = rwkv7_is_whole(args);
  if (whole && args.seqs.max_len > 1) return rwkv7_rows(args, stream);
  with_state_type(args.S.dtype, [&](auto element) {
    using T = decltype(element);
    auto kernel = whole                  ? kernel_for_whole<T>(args)
                  : args.N > kWholeRwkv7 ? kernel_for_any<T, 2 * kKeysOfWhole>(args)
                                         : kernel_for_any<T, kKeysOfWhole>(args);
    // Where more blocks than run at once stream through states, loads on their way take the cache.
    const int blocks = args.seqs.num_seqs * args.H;
    const bool concurrent = blocks <= kBlocks * static_cast<CudaStream&>(stream).multiprocessors();
    launch_early(stream, "rwkv7", kernel,
                 {.grid = static_cast<unsigned>(blocks),
                  .threads = static_cast<unsigned>(rwkv7_threads(args.N)),
                  .carveout = concurrent ? cudaSharedmemCarveoutMaxShared : 25},
                 args);
  });
}

}  // namespace recurve::cuda::sm80
