#include <algorithm>
#include <vector>

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/sm80/linear/lora.cuh"
#include "kernels/cuda/sm80/linear/lora.h"
#include "kernels/cuda/sm80/tile.cuh"

namespace recurve::cuda::sm80 {
namespace {

__device__ float4 rounded(const float4& v) {
  const uint32_t low = round_bf16(v.x, v.y), high = round_bf16(v.z, v.w);
  return make_float4(__uint_as_float(low << 16), __uint_as_float(low & 0xffff0000u),
                     __uint_as_float(high << 16), __uint_as_float(high & 0xffff0000u));
}

// A block sums up a piece of K for up to 16 ranks of a part. How many pieces there are follows from
// K alone.
constexpr int kWarps = 4, kThreads = kWarps * kWarpSize;
constexpr int kRanks = kWarps * kFour;
constexpr int kMostPieces = 8, kLeastPiece = 512;
__host__ __device__ int pieces_of(int64_t K) {
  const int64_t pieces = (K + kLeastPiece - 1) / kLeastPiece;
  return static_cast<int>(pieces < kMostPieces ? pieces : kMostPieces);
}
constexpr int kRun = kWarpSize * kFour;  // of K, of a warp

// How rows are read.
enum class Reads { kFloats, kNormed, kBf16 };
struct Input {
  int64_t K = 0;
  const float* x = nullptr;        // (rows, K)
  const uint16_t* bf16 = nullptr;  // the same of Reads::kBf16
  const float* norm = nullptr;     // (K), of Reads::kNormed
  const float* squares = nullptr;  // of a deferred norm: (rows, K / 8), or null
  float eps = 0;
  bool scaled = false, rounds = false;
  bool multiplies_bf16 = false;  // rows are such that tensor cores take them
  float* inner = nullptr;        // (rows, stride)
  int64_t stride = 0;
  int parts = 0, tiles = 0;    // of the table
  std::byte* table = nullptr;  // where that is left, as Joined has it; or null
  uint32_t* ready = nullptr;   // LoraArgs::ready
};

// The values from k on of a row, times the norm's weights. All lanes of the warp. squares: of
// what counts of the row so far, the lane's sum: of eight values in each even lane.
template <Reads kReads, bool kVector>
__device__ float4 read_row(const Input& in, int64_t row, int64_t k, bool counts, float& squares) {
  const int64_t rest = in.K - k;
  const bool even = threadIdx.x % 2 == 0;
  if constexpr (kReads == Reads::kBf16) {
    if (counts && even && rest > 0) {
      squares += in.squares[(row * in.K + k) / DeferredRmsNorm::kSquares];
    }
    return load4<kVector>(in.bf16 + row * in.K + k, rest);
  } else {
    float4 v = load4<kVector>(in.x + row * in.K + k, rest);
    if constexpr (kReads == Reads::kNormed) {
      if (counts) {
        const float mine = squares_of(v);
        const float other = __shfl_xor_sync(0xffffffffu, mine, 1);
        if (even) squares += mine + other;
      }
      const float4 w = load4<kVector>(in.norm + k, rest);
      v = make_float4(__fmul_rn(v.x, w.x), __fmul_rn(v.y, w.y), __fmul_rn(v.z, w.z),
                      __fmul_rn(v.w, w.w));
    }
    return in.rounds ? rounded(v) : v;
  }
}

// The sums of values over the warp's lanes, of which each lane gets one: lane i that of value
// i * kCount / 32. Each is added in the order of warp_sum().
template <int kCount>
__device__ float sum_each(float (&values)[kCount]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
  for (int offset = kWarpSize / 2, count = kCount; offset > 0; offset /= 2, count /= 2) {
    if (count == 1) {
      values[0] += __shfl_xor_sync(0xffffffffu, values[0], offset);
      continue;
    }
    const bool upper = (lane & offset) != 0;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if (i >= count / 2) break;
      const float mine = upper ? values[i + count / 2] : values[i];
      const float other = upper ? values[i] : values[i + count / 2];
      values[i] = mine + __shfl_xor_sync(0xffffffffu, other, offset);
    }
  }
  return values[0];
}

// So much of K, from `begin` to `end`.
struct Piece {
  int64_t begin, end;

  __device__ Piece(int64_t K, int piece) {
    const int64_t runs = (K + kRun - 1) / kRun, pieces = pieces_of(K);
    const int64_t each = (runs + pieces - 1) / pieces * kRun;
    begin = min(piece * each, K);
    end = min(begin + each, K);
  }
};

// Waits until rows may be read. begins: the block waits for the first time. Then it says so to the
// layer, and never again, as a kernel behind may have cleared the word by then.
__device__ void wait_for_rows(const Input& in, bool begins) {
  wait_for_previous();
  if (begins && in.ready != nullptr && threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(in.ready), "r"(1) : "memory");
  }
}

// What a block's warps leave of a piece.
template <int kRows>
struct Shared {
  float product[kWarps][kRows][kRanks];  // those of a warp, or each warp has four ranks
  float squares[kWarps][kRows];
  float sum[kMostPieces][kRows][kRanks];
  float sum_of_squares[kMostPieces][kRows];
};

// By a warp: exact products for its four of the ranks.
template <Reads kReads, bool kVector, int kRows, typename T>
__device__ void add_exactly(const Tile<kRows>& tile, const Input& in, const Piece& piece,
                            const T* A, int ranks, bool begins, Shared<kRows>& shared) {
  constexpr int kAhead = 1;  // runs of A that a lane has on their way
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const bool squared = in.scaled && warp == 0;
  float product[kRows * kFour] = {}, squares[kRows] = {};
  wait_for_rows(in, begins);
  for (int64_t begin = piece.begin; begin < piece.end && ranks > 0; begin += kAhead * kRun) {
    decltype(load_raw<kVector>(A, 0)) w[kAhead][kFour];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t k = begin + i * kRun + lane * kFour;
#pragma unroll
      for (int j = 0; j < kFour; ++j) {
        w[i][j] = load_raw<kVector>(A + j * in.K + k, j < ranks ? piece.end - k : 0);
      }
    }
    // What lies behind the piece's end is multiplied with zeros.
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t k = min(begin + i * kRun + lane * kFour, in.K);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int row = tile.row[min(r, tile.rows - 1)];
        const bool counts = squared && begin + i * kRun < piece.end;
        const float4 v = read_row<kReads, kVector>(in, row, k, counts, squares[r]);
#pragma unroll
        for (int j = 0; j < kFour; ++j)
          product[r * kFour + j] = dot4(widen(w[i][j]), v, product[r * kFour + j]);
      }
    }
  }
  constexpr int kLanes = kWarpSize / (kRows * kFour);  // that have the sum of one product
  const int value = lane / kLanes;
  const float sum = sum_each(product);
  if (lane % kLanes == 0) shared.product[0][value / kFour][warp * kFour + value % kFour] = sum;
  if (squared) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float of_row = warp_sum(squares[r]);
      if (lane == 0) shared.squares[0][r] = of_row;
    }
  }
}

// Eight values of a row of x, times the norm's weights, in bf16. squares: their sum, where it is
// wanted.
template <Reads kReads>
__device__ uint4 read_eight(const Input& in, int64_t row, int64_t k, float& squares) {
  if constexpr (kReads == Reads::kBf16) {
    if (in.scaled) squares += in.squares[(row * in.K + k) / DeferredRmsNorm::kSquares];
    return *reinterpret_cast<const uint4*>(in.bf16 + row * in.K + k);
  } else {
    const auto* const from = reinterpret_cast<const float4*>(in.x + row * in.K + k);
    float4 v[2] = {from[0], from[1]};
    if constexpr (kReads == Reads::kNormed) {
      squares += squares_of(v[0]) + squares_of(v[1]);
      const auto* const norm = reinterpret_cast<const float4*>(in.norm + k);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 w = norm[i];
        v[i] = make_float4(__fmul_rn(v[i].x, w.x), __fmul_rn(v[i].y, w.y), __fmul_rn(v[i].z, w.z),
                           __fmul_rn(v[i].w, w.w));
      }
    }
    return make_uint4(round_bf16(v[0].x, v[0].y), round_bf16(v[0].z, v[0].w),
                      round_bf16(v[1].x, v[1].y), round_bf16(v[1].z, v[1].w));
  }
}

// By a warp: products in bf16 for all of the ranks, of its quarter of the piece. A lane has eight
// values side by side of two ranks and of a row: as all are summed up it does not matter which of
// them a product takes for which column.
template <Reads kReads, int kRows>
__device__ void add_bf16(const Tile<kRows>& tile, const Input& in, const Piece& piece,
                         const uint16_t* A, int ranks, bool begins, Shared<kRows>& shared) {
  constexpr int kStep = 32, kAhead = 4;  // of K; steps on their way
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int g = lane / 4, q = lane % 4;
  const int64_t steps = (piece.end - piece.begin + kStep - 1) / kStep;
  const int64_t first = piece.begin + steps * warp / kWarps * kStep;
  const int64_t end = min(piece.begin + steps * (warp + 1) / kWarps * kStep, piece.end);
  float d[4] = {}, squares = 0;
  const uint4 zeros = make_uint4(0, 0, 0, 0);
  uint4 a[kAhead][2];
  const auto load_A = [&](int64_t begin) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t k = begin + i * kStep + 8 * q;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int rank = g + 8 * half;
        a[i][half] =
            k < end && rank < ranks ? *reinterpret_cast<const uint4*>(A + rank * in.K + k) : zeros;
      }
    }
  };
  load_A(first);
  wait_for_rows(in, begins);
  const bool has_row = g < tile.rows;
  const int64_t row = tile.row[has_row ? g : 0];
  for (int64_t begin = first; begin < end; begin += kAhead * kStep) {
    if (begin > first) load_A(begin);
    uint4 x[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t k = begin + i * kStep + 8 * q;
      x[i] = k < end && has_row ? read_eight<kReads>(in, row, k, squares) : zeros;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      multiply_bf16(d, {a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y}, x[i].x, x[i].y);
      multiply_bf16(d, {a[i][0].z, a[i][1].z, a[i][0].w, a[i][1].w}, x[i].z, x[i].w);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int of_tile = 2 * q + i % 2;
    if (of_tile < kRows) shared.product[warp][of_tile][g + i / 2 * 8] = d[i];
  }
  squares += __shfl_xor_sync(0xffffffffu, squares, 1);
  squares += __shfl_xor_sync(0xffffffffu, squares, 2);
  if (q == 0 && g < kRows) shared.squares[warp][g] = squares;
}

// Brings a share of the adapter's B to the L2 cache: the kernel that multiplies it starts soon.
template <int kRows>
__device__ void fetch_B(const Part* parts, const Tile<kRows>& tile, int64_t thread,
                        int64_t threads) {
  constexpr int64_t kLine = 128;
  for (int p = tile.first; p < tile.first + tile.parts; ++p) {
    const int64_t values = int64_t{parts[p].r} * parts[p].N;
    const auto bytes = static_cast<int64_t>(values * (parts[p].bf16 ? 2 : 4));
    const auto* B = static_cast<const char*>(parts[p].B);
    for (int64_t at = thread * kLine; at < bytes; at += threads * kLine) fetch(B + at);
  }
}

template <typename AnyTable>
__device__ void leave_table(const AnyTable& table, const Input& in) {
  auto* const parts = reinterpret_cast<Part*>(in.table);
  auto* const tiles = reinterpret_cast<Tile<AnyTable::kRows>*>(parts + in.parts);
  for (int i = static_cast<int>(threadIdx.x); i < in.parts; i += kThreads) {
    parts[i] = table.part[i];
  }
  for (int i = static_cast<int>(threadIdx.x); i < in.tiles; i += kThreads) {
    tiles[i] = table.tile[i];
  }
}

// Of several blocks of a cluster, one after the other: what they have at the same place.
__device__ float sum_of_pieces(const float* first, int stride, int pieces, int blocks) {
  float values[kMostPieces];
#pragma unroll
  for (int i = 0; i < kMostPieces; ++i) {
    const float* const from = first + i * stride;
    values[i] = i >= pieces ? 0 : blocks == 1 ? *from : load_shared(from, i % blocks);
  }
  float sum = values[0];
#pragma unroll
  for (int i = 1; i < kMostPieces; ++i) {
    if (i < pieces) sum += values[i];
  }
  return sum;
}

// Layers of one launch, of the same K.
constexpr int kMostLayers = 4;
template <typename AnyTable, int kLayers>
struct Group {
  AnyTable table[kLayers];
  Input in[kLayers];
};

// blocks: of a cluster, which share the pieces of K.
template <Reads kReads, bool kVector, typename AnyTable, int kLayers>
__global__ void __launch_bounds__(kThreads, 5)
    shrink_kernel(const __grid_constant__ Group<AnyTable, kLayers> group, int blocks) {
  constexpr int kRows = AnyTable::kRows;
  __shared__ Shared<kRows> shared;
  const int layer = kLayers == 1 ? 0 : static_cast<int>(blockIdx.z);
  const AnyTable& table = group.table[layer];
  const Input& in = group.in[layer];
  const Tile<kRows>& tile = table.tile[blockIdx.y];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize;
  const bool first_block = blockIdx.x == 0 && blockIdx.y == 0;
  if (in.ready != nullptr) {
    // All who waited for it have gone on: kernels behind theirs came only then.
    if (first_block && thread == 0) {
      asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(in.ready), "r"(0) : "memory");
      __threadfence();
    }
    __syncthreads();
  }
  let_next_start();
  const int rank = rank_in_cluster(), pieces = pieces_of(in.K);
  // Which part, and which of its ranks.
  int p = tile.first, share = static_cast<int>(blockIdx.x) / blocks, before = 0;
  const int last = tile.first + tile.parts;
  if (static_cast<int>(blockIdx.y) >= in.tiles) p = last;
  while (p < last && share * kWarps >= table.part[p].fours()) {
    share -= (table.part[p].fours() + kWarps - 1) / kWarps;
    before += table.part[p++].fours();
  }
  if (p == last) {  // the same for a cluster
    wait_for_rows(in, true);
    return;
  }
  const Part& part = table.part[p];
  const int ranks = min(kRanks, part.r - share * kRanks);
  const int64_t at = int64_t{share} * kRanks * in.K;
  const bool in_bf16 = in.multiplies_bf16 && part.bf16 && part.aligned;
  for (int i = rank; i < pieces; i += blocks) {
    const Piece piece(in.K, i);
    const bool begins = i == rank;
    if (in_bf16) {
      add_bf16<kReads>(tile, in, piece, static_cast<const uint16_t*>(part.A) + at, ranks, begins,
                       shared);
    } else {
      const int64_t of_warp = at + int64_t{warp} * kFour * in.K;
      const int mine = min(kFour, ranks - warp * kFour);
      if (part.bf16) {
        add_exactly<kReads, kVector>(
            tile, in, piece, static_cast<const uint16_t*>(part.A) + of_warp, mine, begins, shared);
      } else {
        add_exactly<kReads, kVector>(tile, in, piece, static_cast<const float*>(part.A) + of_warp,
                                     mine, begins, shared);
      }
    }
    __syncthreads();
    const auto add_warps = [&](const float* first, int stride) {
      float sum = first[0];
      for (int w = 1; w < (in_bf16 ? kWarps : 1); ++w) sum += first[w * stride];
      return sum;
    };
    if (thread < kRows * kRanks) {
      shared.sum[i][thread / kRanks][thread % kRanks] =
          add_warps(&shared.product[0][0][0] + thread, kRows * kRanks);
    }
    if (thread < kRows)
      shared.sum_of_squares[i][thread] = add_warps(&shared.squares[0][thread], kRows);
    __syncthreads();
  }
  if (in.table != nullptr) {
    fetch_B(table.part, tile, int64_t{blockIdx.x} * kThreads + thread,
            int64_t{gridDim.x} * kThreads);
  }
  if (blocks > 1) sync_cluster();
  const int r = thread / kRanks, j = thread % kRanks;
  if (rank == 0 && r < tile.rows && j < part.fours() * kFour - share * kRanks) {
    float sum = sum_of_pieces(&shared.sum[0][r][j], kRows * kRanks, pieces, blocks);
    if (in.scaled) {
      const float squares = sum_of_pieces(&shared.sum_of_squares[0][r], kRows, pieces, blocks);
      sum = __fmul_rn(sum, norm_scale(squares, static_cast<int>(in.K), in.eps));
    }
    in.inner[tile.row[r] * in.stride + before * kFour + share * kRanks + j] = sum;
  }
  if (in.table != nullptr && first_block) leave_table(table, in);
  if (blocks > 1) leave_cluster();
}

Input input_of(const LoraArgs& args, bool rounds) {
  Input in;
  in.K = args.K;
  in.x = args.x;
  in.rounds = rounds;
  in.inner = args.inner;
  in.stride = args.inner_floats();
  if (!args.linear) return in;
  const LinearArgs& linear = *args.linear;
  if (args.joined) {
    in.table = reinterpret_cast<std::byte*>(args.inner);
    in.inner = reinterpret_cast<float*>(in.table + lora::Joined(args).table_bytes());
  }
  in.x = linear.x;
  in.norm = linear.norm;
  in.eps = linear.norm_eps;
  in.scaled = linear.norm != nullptr;
  in.bf16 = linear.deferred.x != nullptr ? linear.deferred.x : linear.x_bf16;
  in.squares = linear.deferred.squares;
  in.multiplies_bf16 =
      rounds && in.K % 8 == 0 && aligned(in.x) && aligned(in.bf16) && aligned(in.norm);
  return in;
}

// How a launch reads its layers.
struct Form {
  Reads reads;
  bool vector;
  int64_t K;
  bool operator==(const Form&) const = default;
};
Form form_of(const LoraArgs& args, const Input& in) {
  return {.reads = in.bf16 != nullptr   ? Reads::kBf16
                   : in.norm != nullptr ? Reads::kNormed
                                        : Reads::kFloats,
          .vector = in.K % kFour == 0 && aligned(in.x) && aligned(in.bf16) && aligned(in.norm) &&
                    parts_aligned(args, &LoraPart::A),
          .K = in.K};
}

template <bool kVector, typename AnyTable, int kLayers>
void launch_shrink(Reads reads, const Group<AnyTable, kLayers>& group, int layers, int blocks,
                   Stream& stream) {
  int shares = 0, tiles = 0;
  for (int i = 0; i < layers; ++i) {
    shares = std::max(shares, lora::most_shares(group.table[i], group.in[i].tiles, kWarps));
    tiles = std::max(tiles, group.in[i].tiles);
  }
  const auto launch = [&](auto kernel) {
    launch_early(stream, "lora", kernel,
                 {.grid = dim3(static_cast<unsigned>(shares * blocks), static_cast<unsigned>(tiles),
                               static_cast<unsigned>(layers)),
                  .threads = kThreads,
                  .cluster = static_cast<unsigned>(blocks)},
                 group, blocks);
  };
  switch (reads) {
    case Reads::kFloats:
      return launch(shrink_kernel<Reads::kFloats, kVector, AnyTable, kLayers>);
    case Reads::kNormed:
      return launch(shrink_kernel<Reads::kNormed, kVector, AnyTable, kLayers>);
    case Reads::kBf16:
      return launch(shrink_kernel<Reads::kBf16, kVector, AnyTable, kLayers>);
  }
}

void shrink_layer(const LoraArgs& args, Input in, int blocks, Stream& stream) {
  const Form form = form_of(args, in);
  with_form(form.vector, args, {}, [&]<bool kVector, typename AnyTable>() {
    lora::for_tables<AnyTable>(args, {}, [&](const AnyTable& table, int parts, int tiles) {
      in.parts = parts;
      in.tiles = tiles;
      launch_shrink<kVector, AnyTable, 1>(form.reads, {{table}, {in}}, 1, blocks, stream);
    });
  });
}

// Layers of the same form that each have a small table.
void shrink_group(std::span<const LoraArgs> layers, std::span<const Input> inputs, int blocks,
                  Stream& stream) {
  using AnyTable = Table<lora::kJoinedTileRows, true>;
  Group<AnyTable, kMostLayers> group = {};
  for (size_t i = 0; i < layers.size(); ++i) {
    lora::for_tables<AnyTable>(layers[i], {}, [&](const AnyTable& table, int parts, int tiles) {
      group.table[i] = table;
      group.in[i] = inputs[i];
      group.in[i].parts = parts;
      group.in[i].tiles = tiles;
    });
  }
  const Reads reads = form_of(layers[0], inputs[0]).reads;
  launch_shrink<true, AnyTable, kMostLayers>(reads, group, static_cast<int>(layers.size()), blocks,
                                             stream);
}

}  // namespace

void lora_shrink(std::span<const LoraArgs> layers, std::span<const bool> rounds, bool clusters,
                 Stream& stream) {
  std::vector<Input> inputs;
  for (size_t i = 0; i < layers.size(); ++i) inputs.push_back(input_of(layers[i], rounds[i]));
  inputs[0].ready = layers[0].joined ? layers[0].ready : nullptr;
  const auto joins_first = [&](size_t i) {
    const Form form = form_of(layers[i], inputs[i]);
    return layers[i].joined && form.vector && form == form_of(layers[0], inputs[0]) &&
           lora::Joined(layers[i]).fits<true>();
  };
  size_t count = 0;  // of those that the first launch has
  while (count < std::min<size_t>(layers.size(), kMostLayers) && joins_first(count)) ++count;
  // Clusters where the kernel's own time counts, not how often it is there.
  const auto blocks_of = [&](const LoraArgs& args) {
    return clusters && args.linear && args.linear->rows <= kFewRows ? pieces_of(args.K) : 1;
  };
  if (count > 1) {
    shrink_group(layers.first(count), std::span(inputs).first(count), blocks_of(layers[0]), stream);
  } else {
    count = 0;
  }
  for (size_t i = count; i < layers.size(); ++i) {
    shrink_layer(layers[i], inputs[i], blocks_of(layers[i]), stream);
  }
}

}  // namespace recurve::cuda::sm80
