// The chunk form in plain fp32, correct first: making prefill fast is for later.
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/common/error.h"
#include "kernels/cuda/sm80/mlstm.cuh"
#include "kernels/cuda/sm80/mlstm.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kSide = 16;  // threads stand in a square
constexpr int kThreads = kSide * kSide;
constexpr int kRows = 64;   // of a chunk at a time, as queries and as keys
constexpr int kSlice = 32;  // of DK at a time
constexpr int kEach = kRows / kSide;

// The block's shared memory, in floats.
struct Shared {
  float* C;       // (DK, columns)
  float* n;       // (DK)
  float* b;       // (chunk)
  float* i;       // (chunk)
  float* weight;  // (chunk) m of each row; then the weight of each in the new state
  float* S;       // (kRows, kRows + 1); or v when the state advances
  float* q;       // (kRows, kSlice + 1)
  float* k;       // (kRows, kSlice + 1)
  float* v;       // (kRows, columns), in the place of q and k
  float* qn;      // (kRows)
};
__host__ __device__ size_t lay_out(Shared& s, float* memory, const MlstmArgs& a, int columns) {
  float* const start = memory;
  const auto take = [&](int count) { return memory += count, memory - count; };
  s.C = take(a.DK * columns);
  s.n = take(a.DK);
  s.b = take(a.chunk);
  s.i = take(a.chunk);
  s.weight = take(a.chunk);
  s.S = take(kRows * (kRows + 1));
  s.q = take(kRows * (kSlice + 1));
  s.k = take(kRows * (kSlice + 1));
  s.v = s.q;
  s.qn = take(kRows);
  return static_cast<size_t>(memory - start) * sizeof(float);
}
static_assert(kRows <= 2 * (kSlice + 1), "v fits the place of q and k");

// Columns [x0, x0 + width) of `rows` rows, zeros beyond `rows` and DK, into to (kRows, pitch).
__device__ void load_tile(float* to, int pitch, int width, const float* from, int stride, int rows,
                          int columns_left) {
  for (int at = threadIdx.x; at < kRows * width; at += kThreads) {
    const int r = at / width, c = at % width;
    const bool there = r < rows && c < columns_left;
    to[r * pitch + c] = there ? from[static_cast<int64_t>(r) * stride + c] : 0;
  }
}

// Rows [t0, t0 + kRows) of a chunk of L, for kColumns columns of which `columns` exist. d0: the
// first.
template <int kColumns>
__device__ void chunk_output(const MlstmArgs& a, const MlstmHead& s, const Shared& shared, int L,
                             int t0, float m, int d0, int columns) {
  constexpr int kWide = kColumns / kSide;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  const float scale = 1.0f / sqrtf(static_cast<float>(a.DK));
  float h[kEach][kWide] = {};
  float qn = 0;  // of row t0 + threadIdx.x, in the first kRows threads

  for (int j0 = 0; j0 <= t0; j0 += kRows) {
    float qk[kEach][kEach] = {};
    for (int x0 = 0; x0 < a.DK; x0 += kSlice) {
      load_tile(shared.q, kSlice + 1, kSlice, s.q + static_cast<int64_t>(t0) * a.stride + x0,
                a.stride, L - t0, a.DK - x0);
      load_tile(shared.k, kSlice + 1, kSlice, s.k + static_cast<int64_t>(j0) * a.stride + x0,
                a.stride, L - j0, a.DK - x0);
      __syncthreads();
      const int slice = min(kSlice, a.DK - x0);
      for (int x = 0; x < slice; ++x) {
        float q[kEach];
#pragma unroll
        for (int y = 0; y < kEach; ++y) q[y] = shared.q[(ty + kSide * y) * (kSlice + 1) + x];
#pragma unroll
        for (int z = 0; z < kEach; ++z) {
          const float k = shared.k[(tx + kSide * z) * (kSlice + 1) + x];
#pragma unroll
          for (int y = 0; y < kEach; ++y) qk[y][z] = fmaf(q[y], k, qk[y][z]);
        }
        if (j0 > 0) continue;
#pragma unroll
        for (int c = 0; c < kWide; ++c) {
          const float C = shared.C[(x0 + x) * kColumns + tx + kSide * c];
#pragma unroll
          for (int y = 0; y < kEach; ++y) h[y][c] = fmaf(q[y], C, h[y][c]);
        }
      }
      if (j0 == 0 && threadIdx.x < kRows) {
        for (int x = 0; x < slice; ++x) {
          qn = fmaf(shared.q[threadIdx.x * (kSlice + 1) + x], shared.n[x0 + x], qn);
        }
      }
      __syncthreads();
    }

    // What the state before the chunk gives, weighted; then the tokens.
    if (j0 == 0) {
#pragma unroll
      for (int y = 0; y < kEach; ++y) {
        const int t = t0 + ty + kSide * y;
        const float e = t < L ? expf(shared.b[t] + m - shared.weight[t]) * scale : 0;
#pragma unroll
        for (int c = 0; c < kWide; ++c) h[y][c] *= e;
      }
      const int t = t0 + static_cast<int>(threadIdx.x);
      if (threadIdx.x < kRows && t < L) qn *= expf(shared.b[t] + m - shared.weight[t]) * scale;
    }
#pragma unroll
    for (int y = 0; y < kEach; ++y) {
#pragma unroll
      for (int z = 0; z < kEach; ++z) {
        const int row = ty + kSide * y, column = tx + kSide * z, t = t0 + row, j = j0 + column;
        float S = 0;
        if (t < L && j <= t) {
          S = scale * qk[y][z] * expf(shared.b[t] - shared.b[j] + shared.i[j] - shared.weight[t]);
        }
        shared.S[row * (kRows + 1) + column] = S;
      }
    }
    load_tile(shared.v, kColumns, kColumns, s.v + static_cast<int64_t>(j0) * a.stride + d0,
              a.stride, L - j0, columns);
    __syncthreads();
    if (threadIdx.x < kRows) {
      for (int j = 0; j < kRows; ++j) qn += shared.S[threadIdx.x * (kRows + 1) + j];
    }
    for (int j = 0; j < kRows; ++j) {
#pragma unroll
      for (int y = 0; y < kEach; ++y) {
        const int row = ty + kSide * y;
        if (j0 + j > t0 + row) continue;  // a NaN of a later token stays out
        const float S = shared.S[row * (kRows + 1) + j];
#pragma unroll
        for (int c = 0; c < kWide; ++c) {
          h[y][c] = fmaf(S, shared.v[j * kColumns + tx + kSide * c], h[y][c]);
        }
      }
    }
    __syncthreads();
  }

  if (threadIdx.x < kRows) shared.qn[threadIdx.x] = qn;
  __syncthreads();
#pragma unroll
  for (int y = 0; y < kEach; ++y) {
    const int row = ty + kSide * y, t = t0 + row;
    if (t >= L) continue;
    const float den = denominator(shared.qn[row], shared.weight[t], a.eps);
#pragma unroll
    for (int c = 0; c < kWide; ++c) {
      const int column = tx + kSide * c;
      if (column >= columns) continue;
      s.h[static_cast<int64_t>(t) * a.H * a.DV + d0 + column] = h[y][c] / den;
    }
  }
}

// C and n after a chunk of L; shared.weight has the weights of its tokens, F is that of the state.
template <int kColumns>
__device__ void chunk_state(const MlstmArgs& a, const MlstmHead& s, const Shared& shared, int L,
                            float F, int d0, int columns) {
  constexpr int kWide = kColumns / kSide, kTall = kSlice / kSide;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  for (int x = threadIdx.x; x < a.DK; x += kThreads) {
    shared.n[x] = chunk_n(F, shared.n[x], shared.weight, s.k + x, a.stride, L);
  }
  for (int j0 = 0; j0 < L; j0 += kRows) {
    load_tile(shared.S, kColumns, kColumns, s.v + static_cast<int64_t>(j0) * a.stride + d0,
              a.stride, L - j0, columns);
    for (int x0 = 0; x0 < a.DK; x0 += kSlice) {
      load_tile(shared.k, kSlice + 1, kSlice, s.k + static_cast<int64_t>(j0) * a.stride + x0,
                a.stride, L - j0, a.DK - x0);
      __syncthreads();
      float sum[kTall][kWide] = {};
      for (int j = 0; j < min(kRows, L - j0); ++j) {
#pragma unroll
        for (int y = 0; y < kTall; ++y) {
          const float k = shared.weight[j0 + j] * shared.k[j * (kSlice + 1) + ty + kSide * y];
#pragma unroll
          for (int c = 0; c < kWide; ++c) {
            sum[y][c] = fmaf(k, shared.S[j * kColumns + tx + kSide * c], sum[y][c]);
          }
        }
      }
#pragma unroll
      for (int y = 0; y < kTall; ++y) {
        const int x = x0 + ty + kSide * y;
        if (x >= a.DK) continue;
#pragma unroll
        for (int c = 0; c < kWide; ++c) {
          float& C = shared.C[x * kColumns + tx + kSide * c];
          C = (j0 == 0 ? F : 1.0f) * C + sum[y][c];
        }
      }
      __syncthreads();
    }
  }
}

// m after a chunk, the weight of the state before it, and, in `weight` (L), those of its tokens. To
// be called by the whole block.
struct ChunkEnd {
  float m, F;
};
__device__ ChunkEnd end_chunk(const float* b, const float* i, float* weight, int L, float m) {
  const float next = chunk_m(b, i, L - 1, L - 1, m), g = b[L - 1];
  __syncthreads();
  for (int j = threadIdx.x; j < L; j += kThreads) weight[j] = expf(g - b[j] + i[j] - next);
  __syncthreads();
  return {next, expf(g + m - next)};
}

// A block: kColumns columns of C of one head of one sequence, kept in shared memory meanwhile.
template <int kColumns>
__global__ void __launch_bounds__(kThreads) chunk_kernel(MlstmArgs a, int tiles) {
  extern __shared__ float memory[];
  const int tile = blockIdx.x % tiles, head = blockIdx.x / tiles % a.H;
  const int sequence = blockIdx.x / tiles / a.H;
  const int begin = a.seqs.begin[sequence], end = a.seqs.begin[sequence + 1];
  if (end - begin < 2) return;

  Shared shared;
  lay_out(shared, memory, a, kColumns);
  const int64_t state = static_cast<int64_t>(a.seqs.slot[sequence]) * a.H + head;
  const int d0 = tile * kColumns, columns = min(kColumns, a.DV - d0);
  float* C = static_cast<float*>(a.C.data) + state * a.DK * a.DV + d0;
  for (int at = threadIdx.x; at < a.DK * kColumns; at += kThreads) {
    const int x = at / kColumns, d = at % kColumns;
    shared.C[at] = d < columns ? C[static_cast<int64_t>(x) * a.DV + d] : 0;
  }
  for (int x = threadIdx.x; x < a.DK; x += kThreads) shared.n[x] = a.n[state * a.DK + x];
  float m = a.m[state];

  for (int row = begin; row + 1 < end; row += a.chunk) {
    const int L = min(a.chunk, end - row);
    const MlstmHead s = head_at(a, head, row);
    chunk_gates<kThreads>(a, s, L, shared.b, shared.i);
    for (int t = threadIdx.x; t < L; t += kThreads) {
      shared.weight[t] = chunk_m(shared.b, shared.i, t, t, m);
    }
    __syncthreads();
    for (int t0 = 0; t0 < L; t0 += kRows) {
      chunk_output<kColumns>(a, s, shared, L, t0, m, d0, columns);
      __syncthreads();
    }
    const ChunkEnd after = end_chunk(shared.b, shared.i, shared.weight, L, m);
    chunk_state<kColumns>(a, s, shared, L, after.F, d0, columns);
    m = after.m;
    __syncthreads();
  }
  for (int at = threadIdx.x; at < a.DK * kColumns; at += kThreads) {
    const int x = at / kColumns, d = at % kColumns;
    if (d < columns) C[static_cast<int64_t>(x) * a.DV + d] = shared.C[at];
  }
}

// A block: n and m of one head of one sequence.
__global__ void __launch_bounds__(kThreads) chunk_normaliser_kernel(MlstmArgs a) {
  extern __shared__ float memory[];  // b, i, weight: (chunk) each
  float* b = memory;
  float* i = b + a.chunk;
  float* weight = i + a.chunk;
  const int head = blockIdx.x % a.H, sequence = blockIdx.x / a.H;
  const int begin = a.seqs.begin[sequence], end = a.seqs.begin[sequence + 1];
  if (end - begin < 2) return;
  const int64_t state = static_cast<int64_t>(a.seqs.slot[sequence]) * a.H + head;
  float* n = a.n + state * a.DK;
  float m = a.m[state];
  for (int row = begin; row + 1 < end; row += a.chunk) {
    const int L = min(a.chunk, end - row);
    const MlstmHead s = head_at(a, head, row);
    chunk_gates<kThreads>(a, s, L, b, i);
    const ChunkEnd after = end_chunk(b, i, weight, L, m);
    for (int x = threadIdx.x; x < a.DK; x += kThreads) {
      n[x] = chunk_n(after.F, n[x], weight, s.k + x, a.stride, L);
    }
    m = after.m;
    __syncthreads();  // before the next chunk's gates
  }
  if (threadIdx.x == 0) a.m[state] = m;
}

size_t most_shared_memory() {
  int device = 0, bytes = 0;
  abort_if_failed(cudaGetDevice(&device), "mlstm, device");
  abort_if_failed(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                  "mlstm, size of shared memory");
  return static_cast<size_t>(bytes);
}

// False if a block's shared memory cannot hold that many columns of the state.
template <int kColumns>
bool launch_chunks(const MlstmArgs& args, cudaStream_t stream) {
  Shared unused;
  const size_t bytes = lay_out(unused, nullptr, args, kColumns);
  if (bytes > most_shared_memory()) return false;
  abort_if_failed(
      cudaFuncSetAttribute(chunk_kernel<kColumns>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(bytes)),
      "mlstm, shared memory");
  const int tiles = (args.DV + kColumns - 1) / kColumns;
  chunk_kernel<kColumns>
      <<<args.seqs.num_seqs * args.H * tiles, kThreads, bytes, stream>>>(args, tiles);
  return true;
}

}  // namespace

void mlstm_chunks(const MlstmArgs& args, cudaStream_t stream) {
  if (launch_chunks<64>(args, stream) || launch_chunks<16>(args, stream)) return;
  std::fprintf(stderr, "mlstm: queries and keys of %d values in chunks of %d do not fit this GPU\n",
               args.DK, args.chunk);
  std::abort();
}

void mlstm_chunk_normalisers(const MlstmArgs& args, cudaStream_t stream) {
  const size_t shared = 3 * sizeof(float) * static_cast<size_t>(args.chunk);
  chunk_normaliser_kernel<<<args.seqs.num_seqs * args.H, kThreads, shared, stream>>>(args);
}

}  // namespace recurve::cuda::sm80
