#pragma once
#include <algorithm>

#include "kernels/cuda/sm80/causal_conv1d.cuh"
#include "kernels/cuda/sm90/bulk.cuh"
#include "kernels/cuda/sm90/linear_tile.cuh"

// The end of a linear layer: the sums of the parts of K, and what is done to them.
namespace recurve::cuda::sm90 {

__device__ inline float4 operator+(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Four values of the tile, of all parts of K.
template <int kParts>
__device__ inline float4 sum_of_parts(const float* mine, int first_rank) {
  float4 parts[kParts];
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    parts[part] =
        kParts == 1 ? *reinterpret_cast<const float4*>(mine) : load_shared(mine, first_rank + part);
  }
#pragma unroll
  for (int step = 1; step < kParts; step *= 2) {
#pragma unroll
    for (int part = 0; part < kParts; part += 2 * step) {
      parts[part] = parts[part] + parts[part + step];
    }
  }
  return parts[0];
}

// Rounded before anything is added, in all tilings alike.
__device__ inline float4 operator*(const float4& a, float scale) {
  return make_float4(__fmul_rn(a.x, scale), __fmul_rn(a.y, scale), __fmul_rn(a.z, scale),
                     __fmul_rn(a.w, scale));
}

__device__ inline float4 load4(const float* from, int count, bool vector) {
  if (vector) return *reinterpret_cast<const float4*>(from);
  return make_float4(from[0], count > 1 ? from[1] : 0, count > 2 ? from[2] : 0,
                     count > 3 ? from[3] : 0);
}
__device__ inline void store4(float* to, const float4& value, int count, bool vector) {
  if (vector) {
    *reinterpret_cast<float4*>(to) = value;
    return;
  }
  to[0] = value.x;
  if (count > 1) to[1] = value.y;
  if (count > 2) to[2] = value.z;
  if (count > 3) to[3] = value.w;
}

// As store4, in bf16; vector: to multiples of 8 bytes.
__device__ inline void store4_bf16(uint16_t* to, const float4& value, int count, bool vector) {
  const uint2 bits = make_uint2(round_bf16(value.x, value.y), round_bf16(value.z, value.w));
  if (vector) {
    *reinterpret_cast<uint2*>(to) = bits;
    return;
  }
  to[0] = static_cast<uint16_t>(bits.x);
  if (count > 1) to[1] = static_cast<uint16_t>(bits.x >> 16);
  if (count > 2) to[2] = static_cast<uint16_t>(bits.y);
  if (count > 3) to[3] = static_cast<uint16_t>(bits.y >> 16);
}

template <typename T>
__device__ void sync_computing() {
  asm volatile("bar.sync 1, %0;" ::"n"(T::kComputing) : "memory");
}

// Whether the sums are scaled as they go to shared memory: where nothing is added to them there.
template <typename T>
__device__ bool scales_first(const Task& task) {
  return T::kWide && task.parts == 1;
}

__device__ inline float swish(float gate, float up) { return gate * sigmoid(gate) * up; }

// Where a thread's share of the tile's outputs is: four columns of some rows. Without swiglu two
// threads beside each other have eight.
struct Share {
  int m;       // of the columns, in the outputs of this tile
  int output;  // of the first column
  int count;   // of columns that there are; 0: nothing
  int begin, step, rows;
};
// Of the tile's outputs, the block's columns in fours.
struct Fours {
  int first, count;
};
__device__ inline Fours fours_of(const Task& task, const Place& place) {
  const int all = (task.swiglu ? 1 : 2) * task.box_rows / 4, unit = task.swiglu ? 1 : 2;
  const int first = all / unit * place.part / task.parts * unit;
  return {first, all / unit * (place.part + 1) / task.parts * unit - first};
}
template <typename T>
__device__ Share share_of(const Task& task, const Place& place) {
  const int thread = threadIdx.x;
  const auto [first, fours] = fours_of(task, place);
  if (fours == 0) return {};
  const int step = T::kComputing / fours;  // rows
  const int m = (first + thread % fours) * 4, output = place.W_row + m;
  if (thread >= step * fours || output >= task.outputs) return {};
  return {m,
          output,
          min(4, task.outputs - output),
          thread / fours,
          step,
          min(task.rows - place.x_row, task.x_rows)};
}

__device__ inline bool convolved(const Task& task, int output) {
  return task.conv.state != nullptr && output >= task.conv_first &&
         output < task.conv_first + task.conv.D;
}

// The state of four channels, from d on, of the sequence that a row is.
__device__ inline float* conv_state(const CausalConv1dArgs& a, int row, int d) {
  return a.state + (static_cast<int64_t>(a.seqs.slot[row]) * a.D + d) * sm80::FourChannels::kPast;
}

// Whether a tiling is for so few rows that the convolution may be done too.
constexpr int kMostConvolved = 16;
template <typename T>
constexpr bool kConvolves = T::kRows <= kMostConvolved;
// And whether a thread has the registers for its states and weights while products are made.
template <typename T>
constexpr bool kHoldsConvolution = kIsForFew<T>&& T::kBlocks* T::kComputing <= 512;

// The convolution's channels and states of a thread's row.
struct Convolution {
  sm80::FourChannels channels;
  float4 past[sm80::FourChannels::kPast];

  __device__ void load_past(const float* state) {
#pragma unroll
    for (int i = 0; i < sm80::FourChannels::kPast; ++i) {
      past[i] = sm80::load4<true>(state + 4 * i, 4);
    }
  }
  // x: what comes to it of a row.
  __device__ void end(const CausalConv1dArgs& a, int row, int d, const float4& x, float* state) {
    channels.take_past(past);
    sm80::put_four(a, row, d, channels.advance(x, a.silu));
    channels.give_past(past);
#pragma unroll
    for (int i = 0; i < sm80::FourChannels::kPast; ++i) {
      sm80::store4<true>(state + 4 * i, past[i], 4);
    }
  }
};

// What the end reads beside the sums: on its way while these are made, where there are few rows.
template <typename T>
struct Ahead {
  static constexpr int kWarps = T::kComputing / kWarpSize;
  static constexpr int kRowsOfWarp = (kFewRows + kWarps - 1) / kWarps;
  Share share;
  float scale;                          // of the tile's row that is this thread's number
  RowSquares<16> squares[kRowsOfWarp];  // of rows of this warp
  float4 bias, up_bias, next_norm;      // of the thread's columns, and
  float4 residual;                      // of its one row
  Convolution conv;

  __device__ bool convolves(const Task& task) const {
    return kConvolves<T> && share.count > 0 && convolved(task, share.output);
  }

  // What no kernel writes.
  __device__ Ahead(const Task& task, const Place& place) : share(share_of<T>(task, place)) {
    bias = up_bias = make_float4(0, 0, 0, 0);
    if (task.bias != nullptr && share.count > 0) {
      bias = load4(task.bias + share.output, share.count, task.vector);
      if (task.swiglu) {
        up_bias = load4(task.bias + share.output + task.box_offset, share.count, task.vector);
      }
    }
    if constexpr (kConvolves<T>) {
      if (convolves(task)) {
        prefetch_conv(task, place);
        const int d = share.output - task.conv_first;
        if (kHoldsConvolution<T>) conv.channels.load_weights(task.conv, d);
      }
    }
    if (kIsForFew<T> && share.count > 0 && task.next.x != nullptr) {
      next_norm = load4(task.next_norm + share.output, 4, true);
    }
  }

  // Of many rows the L2 cache has to do.
  __device__ void prefetch_conv(const Task& task, const Place& place) const {
    const int d = share.output - task.conv_first;
    sm80::prefetch_to_l2(task.conv.w + int64_t{d} * sm80::FourChannels::kWidth);
    for (int row = share.begin; row < share.rows; row += share.step) {
      sm80::prefetch_to_l2(conv_state(task.conv, place.x_row + row, d));
    }
  }

  // The rest.
  __device__ void load(const Task& task, const Place& place) {
    const int rows = min(task.rows - place.x_row, task.x_rows), thread = threadIdx.x;
    if (task.scales != nullptr && thread < rows) scale = task.scales[place.x_row + thread];
    if constexpr (kIsForFew<T>) {
      if (task.squares != nullptr) {
#pragma unroll
        for (int j = 0; j < kRowsOfWarp; ++j) {
          const int row = j * kWarps + thread / kWarpSize;
          if (row < rows) squares[j].load(squares_at(task, place, row), task.K);
        }
      }
      if (share.count == 0 || share.begin >= share.rows) return;
      if (convolves(task)) {
        const int d = share.output - task.conv_first;
        if (kHoldsConvolution<T>)
          conv.load_past(conv_state(task.conv, place.x_row + share.begin, d));
      } else if (task.residual != nullptr) {
        const int64_t at = static_cast<int64_t>(place.x_row + share.begin) * task.outputs;
        residual = load4(task.residual + at + share.output, share.count, task.vector);
      }
    }
  }

  // Where all threads find the scales of all rows.
  __device__ void put_scales(const Shared<T>& shared, const Task& task) const {
    const int thread = threadIdx.x;
    if (task.scales != nullptr && thread < task.x_rows) shared.scales[thread] = scale;
  }
  // Likewise, of few rows, once the products are made: not to be waited for before.
  __device__ void find_scales(const Shared<T>& shared, const Task& task, const Place& place) const {
    put_scales(shared, task);
    if (task.squares == nullptr) return;
    const int rows = min(task.rows - place.x_row, task.x_rows), thread = threadIdx.x;
#pragma unroll
    for (int j = 0; j < kRowsOfWarp; ++j) {
      const int row = j * kWarps + thread / kWarpSize;
      if (row >= rows) break;
      const float found = squares[j].scale(squares_at(task, place, row), task.K, task.norm_eps);
      if (thread % kWarpSize == 0) shared.scales[row] = found;
    }
  }

 private:
  static __device__ const float* squares_at(const Task& task, const Place& place, int row) {
    return task.squares + static_cast<int64_t>(place.x_row + row) * (task.K / BegunNorm::kSquares);
  }
};

// Rows whose reads a thread has on their way at once: as many as there are registers for. Of wide
// tiles few come here, and what is short is fetched soon.
template <typename T>
constexpr int kReads = T::kWide || T::kBlocks == 3 ? 2 : 4;
template <typename T, int kParts>
constexpr int kAtOnce = std::max(1, kReads<T> / kParts);

// Instead of finish, of columns that go through the convolution.
template <typename T, int kParts>
__device__ void convolve(const Task& task, const Place& place, const Shared<T>& shared,
                         Ahead<T>& ahead, int in_tile) {
  const Share& share = ahead.share;
  const int d = share.output - task.conv_first;
  if (!kHoldsConvolution<T>) ahead.conv.channels.load_weights(task.conv, d);
  for (int row = share.begin; row < share.rows; row += share.step) {
    float* state = conv_state(task.conv, place.x_row + row, d);
    if (!kHoldsConvolution<T>) ahead.conv.load_past(state);
    float4 x = sum_of_parts<kParts>(&shared.sums()[row][in_tile], 0);
    if (task.scaled()) x = x * shared.scales[row];
    ahead.conv.end(task.conv, place.x_row + row, d, x + ahead.bias, state);
  }
}

// Begins the norm of what reads y: of the four outputs at `at`, with the thread that has those
// beside them.
__device__ inline void begin_norm(const Task& task, int64_t at, const float4& y, const float4& w) {
  store4_bf16(task.next.x + at,
              make_float4(__fmul_rn(y.x, w.x), __fmul_rn(y.y, w.y), __fmul_rn(y.z, w.z),
                          __fmul_rn(y.w, w.w)),
              4, true);
  const float squares = sum_of_eight(squares_of(y));
  if (at % BegunNorm::kSquares == 0) task.next.squares[at / BegunNorm::kSquares] = squares;
}

// This block's share of the tile's outputs. All computing threads. A thread reads several of its
// rows before it writes one, as the residual may stand where they go.
template <typename T, int kParts>
__device__ void finish(const Task& task, const Place& place, const Shared<T>& shared,
                       Ahead<T>& ahead) {
  const typename Shared<T>::Sums& sums = shared.sums();
  const Share& share = ahead.share;
  if (share.count == 0) return;
  const int m = share.m, output = share.output, count = share.count, step = share.step;
  const int in_tile = m < task.box_rows ? m : m - task.box_rows + task.second;
  const int64_t start = static_cast<int64_t>(place.x_row) * task.outputs + output;
  if constexpr (kConvolves<T>) {
    if (ahead.convolves(task)) return convolve<T, kParts>(task, place, shared, ahead, in_tile);
  }
  constexpr int kRows = kIsForFew<T> ? 1 : kAtOnce<T, kParts>;
  for (int begin = share.begin; begin < share.rows; begin += kRows * step) {
    float4 y[kRows], up[kRows], residual[kRows];
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int row = begin + j * step;
      if (row >= share.rows) break;
      if (kIsForFew<T>) {
        residual[j] = ahead.residual;
      } else if (task.residual != nullptr) {
        const float* from = task.residual + start + static_cast<int64_t>(row) * task.outputs;
        residual[j] = load4(from, count, task.vector);
      }
      y[j] = sum_of_parts<kParts>(&sums[row][in_tile], place.first_rank);
      if (task.swiglu) up[j] = sum_of_parts<kParts>(&sums[row][task.second + m], place.first_rank);
    }
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int row = begin + j * step;
      if (row >= share.rows) break;
      if (task.scaled() && !scales_first<T>(task)) {
        y[j] = y[j] * shared.scales[row];
        if (task.swiglu) up[j] = up[j] * shared.scales[row];
      }
      float4 out = y[j] + ahead.bias;
      if (task.swiglu) {
        const float4 u = up[j] + ahead.up_bias;
        out =
            make_float4(swish(out.x, u.x), swish(out.y, u.y), swish(out.z, u.z), swish(out.w, u.w));
      }
      if (task.soft_cap > 0) {
        out = make_float4(soft_cap(out.x, task.soft_cap), soft_cap(out.y, task.soft_cap),
                          soft_cap(out.z, task.soft_cap), soft_cap(out.w, task.soft_cap));
      }
      if (task.residual != nullptr) out = out + residual[j];
      const int64_t at = start + static_cast<int64_t>(row) * task.outputs;
      if (task.y_bf16 != nullptr) {
        store4_bf16(task.y_bf16 + at, out, count, task.vector);
      } else {
        store4(task.y + at, out, count, task.vector);
      }
      if constexpr (kIsForFew<T>) {
        if (task.next.x != nullptr) begin_norm(task, at, out, ahead.next_norm);
      }
    }
  }
}

// The end of a wide tile whose outputs go where the copy engine can write them, and are added to
// what is there if there is a residual: the L2 cache adds, each output once. (It makes zeros of
// numbers below 2^-126.)
template <typename T>
__device__ bool copies_out(const Task& task) {
  return T::kWide && task.vector && !task.swiglu && task.y_bf16 == nullptr &&
         (task.residual == nullptr || task.residual == task.y);
}

// What is done to sums before, in place. The other blocks of the tile read other columns.
template <typename T, int kParts>
__device__ void change_sums(const Task& task, const Place& place, const Shared<T>& shared,
                            const Ahead<T>& ahead) {
  const Share& share = ahead.share;
  if (share.count == 0) return;
#pragma unroll 4
  for (int row = share.begin; row < share.rows; row += share.step) {
    float* at = &shared.sums()[row][share.m];
    float4 y = sum_of_parts<kParts>(at, place.first_rank);
    if (task.scaled() && kParts > 1) y = y * shared.scales[row];
    y = y + ahead.bias;
    if (task.soft_cap > 0) {
      y = make_float4(soft_cap(y.x, task.soft_cap), soft_cap(y.y, task.soft_cap),
                      soft_cap(y.z, task.soft_cap), soft_cap(y.w, task.soft_cap));
    }
    *reinterpret_cast<float4*>(at) = y;
  }
}

// Likewise in bf16, gated: half of the columns, which the threads write.
template <typename T>
__device__ bool gates_out(const Task& task) {
  return T::kWide && task.vector && task.swiglu && task.y_bf16 != nullptr &&
         task.residual == nullptr && task.soft_cap == 0;
}
template <typename T, int kParts>
__device__ void gate_out(const Task& task, const Place& place, const Shared<T>& shared,
                         const Ahead<T>& ahead) {
  const Share& share = ahead.share;
  if (share.count == 0) return;
  uint16_t* to = task.y_bf16 + static_cast<int64_t>(place.x_row) * task.outputs + share.output;
#pragma unroll 2
  for (int row = share.begin; row < share.rows; row += share.step) {
    const float* at = &shared.sums()[row][share.m];
    float4 gate = sum_of_parts<kParts>(at, place.first_rank);
    float4 up = sum_of_parts<kParts>(at + task.second, place.first_rank);
    if (task.scaled() && kParts > 1) {
      gate = gate * shared.scales[row];
      up = up * shared.scales[row];
    }
    gate = gate + ahead.bias;
    up = up + ahead.up_bias;
    store4_bf16(to + static_cast<int64_t>(row) * task.outputs,
                make_float4(swish(gate.x, up.x), swish(gate.y, up.y), swish(gate.z, up.z),
                            swish(gate.w, up.w)),
                4, true);
  }
}

// A thread a row.
template <typename T>
__device__ void copy_out(const Task& task, const Place& place, const Shared<T>& shared,
                         const Ahead<T>& ahead) {
  if (task.parts > 1) {
    change_sums<T, 2>(task, place, shared, ahead);
  } else if (task.bias != nullptr || task.soft_cap > 0) {
    change_sums<T, 1>(task, place, shared, ahead);
  }
  show_to_copies();
  sync_computing<T>();
  const int row = threadIdx.x;
  const Fours fours = fours_of(task, place);
  const int first = 4 * fours.first;
  const int there = min(4 * fours.count, task.outputs - place.W_row - first);
  if (row >= min(task.rows - place.x_row, task.x_rows) || there <= 0) return;
  float* to = task.y + static_cast<int64_t>(place.x_row + row) * task.outputs + place.W_row + first;
  const float* from = &shared.sums()[row][first];
  const int bytes = there * static_cast<int>(sizeof(float));
  if (task.residual != nullptr) {
    bulk_add(to, from, bytes);
  } else {
    bulk_store(to, from, bytes);
  }
  commit_stores();
  wait_for_stores();
}

template <typename T>
__device__ void finish(const Task& task, const Place& place, const Shared<T>& shared,
                       Ahead<T>& ahead) {
  if constexpr (T::kWide) {
    if (copies_out<T>(task)) return copy_out<T>(task, place, shared, ahead);
    if (gates_out<T>(task) && task.parts == 1) return gate_out<T, 1>(task, place, shared, ahead);
    if (gates_out<T>(task)) return gate_out<T, 2>(task, place, shared, ahead);
  }
  if (task.parts == 1) return finish<T, 1>(task, place, shared, ahead);
  if (T::kWide || task.parts == 2) return finish<T, 2>(task, place, shared, ahead);
  if constexpr (!T::kWide) {  // a power of two, at most 8
    if (task.parts == 4) return finish<T, 4>(task, place, shared, ahead);
    finish<T, 8>(task, place, shared, ahead);
  }
}

}  // namespace recurve::cuda::sm90
