#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/matrix/rwkv7.cuh"
#include "kernels/cuda/sm80/matrix/rwkv7.h"
#include "kernels/cuda/sm80/tile.cuh"

// Rows are brought to shared memory some at a time, while the ones before them are computed.
namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = rwkv7_threads(kWholeRwkv7);
constexpr int kRows = 8;  // of a stage

// Rows of a head.
struct Stage {
  enum { kR, kW, kK, kKK, kB, kV, kArrays };  // w is lw, and b alpha, until they are prepared
  float x[kArrays][kRows][kWholeRwkv7];
};

// Asks for the rows [first, first + count).
__device__ void ask_for(Stage& stage, const Rwkv7Args& a, int head, int64_t first, int count) {
  constexpr int kPieces = kWholeRwkv7 / 4;  // of 16 bytes, a row
  static_assert(kThreads == kRows * kPieces);
  const int row = static_cast<int>(threadIdx.x) / kPieces;
  const int c = static_cast<int>(threadIdx.x) % kPieces * 4;
  const float* const arrays[] = {a.r, a.lw, a.k, a.kk, a.alpha, a.v};
  const int64_t at = (first + row) * a.stride + static_cast<int64_t>(head) * kWholeRwkv7 + c;
  if (row < count) {
#pragma unroll
    for (int i = 0; i < Stage::kArrays; ++i) {
      copy_16_bytes(shared_address(&stage.x[i][row][c]), arrays[i] + at);
    }
  }
  commit_copies();
}

// Decays and keys that are there: each thread those that it asked for, so that it need not wait
// for the others.
__device__ void prepare(Stage& stage) {
  constexpr int kPieces = kWholeRwkv7 / 4;
  const int row = static_cast<int>(threadIdx.x) / kPieces;
  const int c = static_cast<int>(threadIdx.x) % kPieces * 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float& w = stage.x[Stage::kW][row][c + i];
    float& b = stage.x[Stage::kB][row][c + i];
    w = rwkv7_decay(w);
    b = rwkv7_b(stage.x[Stage::kKK][row][c + i], b);
  }
}

__device__ void load_row(Rwkv7Row<kKeysOfWhole>& x, const Stage& stage, int row,
                         const Rwkv7ThreadCoord& place) {
  load_keys<true>(x.kk, &stage.x[Stage::kKK][row][place.key], kKeysOfWhole);
  load_keys<true>(x.b, &stage.x[Stage::kB][row][place.key], kKeysOfWhole);
  load_keys<true>(x.w, &stage.x[Stage::kW][row][place.key], kKeysOfWhole);
  load_keys<true>(x.k, &stage.x[Stage::kK][row][place.key], kKeysOfWhole);
  load_keys<true>(x.r, &stage.x[Stage::kR][row][place.key], kKeysOfWhole);
  x.v = load_inputs<true>(&stage.x[Stage::kV][row][place.column], 4);
}

// What each thread makes of o: sums over its own keys. As the warps' lanes hold them.
using Parts = float4[kRows][kThreads / kWarpSize][kWarpSize];

// Adds them up, in the order of sum_of_groups(): a thread has four columns of a row.
__device__ void put_rows(const Rwkv7Args& a, const Parts& parts, int head, int64_t first,
                         int count) {
  constexpr int kPieces = kWholeRwkv7 / 4;
  const int row = static_cast<int>(threadIdx.x) / kPieces;
  const int piece = static_cast<int>(threadIdx.x) % kPieces;
  if (row >= count) return;
  const float4* of_warp = parts[row][piece / kRwkv7Width] + piece % kRwkv7Width;
  float4 sums[kRwkv7Groups];
#pragma unroll
  for (int group = 0; group < kRwkv7Groups; ++group) sums[group] = of_warp[group * kRwkv7Width];
#pragma unroll
  for (int step = 1; step < kRwkv7Groups; step *= 2) {
#pragma unroll
    for (int group = 0; group < kRwkv7Groups; group += 2 * step) {
      const float4& other = sums[group + step];
      sums[group].x += other.x;
      sums[group].y += other.y;
      sums[group].z += other.z;
      sums[group].w += other.w;
    }
  }
  const int64_t at = ((first + row) * a.H + head) * kWholeRwkv7 + piece * 4;
  *reinterpret_cast<float4*>(a.o + at) = sums[0];
}

// A block a head of a sequence.
template <typename T>
__global__ void __launch_bounds__(kThreads, 4) rwkv7_rows_kernel(Rwkv7Args a) {
  __shared__ alignas(16) Stage stages[2];
  __shared__ Parts parts;
  constexpr int N = kWholeRwkv7;
  const Rwkv7ThreadCoord place = rwkv7_coord<kKeysOfWhole>(a.H);
  T* const S = rwkv7_state<T>(a, N, place);
  wait_for_previous();
  let_next_start();
  const int begin = a.seqs.begin[place.sequence], end = a.seqs.begin[place.sequence + 1];
  ask_for(stages[0], a, place.head, begin, min(kRows, end - begin));
  Rwkv7State<T, kKeysOfWhole> state;
  state.template load<true, false>(S, N, place);
  int turn = 0;
  for (int first = begin; first < end; first += kRows, turn ^= 1) {
    Stage& stage = stages[turn];
    const int count = min(kRows, end - first);
    wait_for_copies();
    prepare(stage);
    __syncthreads();  // all see the rows, and none reads those before them any more
    ask_for(stages[turn ^ 1], a, place.head, first + kRows, min(kRows, end - first - kRows));
    float4* part = &parts[0][threadIdx.x / kWarpSize][threadIdx.x % kWarpSize];
#pragma unroll 2
    for (int i = 0; i < count; ++i, part += kThreads) {
      Rwkv7Row<kKeysOfWhole> x;
      load_row(x, stage, i, place);
      *part = rwkv7_step(state, x);
      if ((first + i + 1 - begin) % a.chunk == 0) state.round();
    }
    __syncthreads();  // all parts are there
    put_rows(a, parts, place.head, first, count);
  }
  state.template store<true, false>(S, N, place);
}

}  // namespace

void rwkv7_rows(const Rwkv7Args& args, Stream& stream) {
  with_state_type(args.S.dtype, [&](auto element) {
    launch_early(stream, "rwkv7, rows", rwkv7_rows_kernel<decltype(element)>,
                 {.grid = static_cast<unsigned>(args.seqs.num_seqs * args.H), .threads = kThreads},
                 args);
  });
}

}  // namespace recurve::cuda::sm80
