#pragma once
#include <cmath>
#include <random>
#include <vector>

#include "tests/support/kernel_device.h"

namespace recurve::testing {

// What the cell is and what numbers it meets.
struct MlstmConfig {
  int H = 2, DK = 8, DV = 8;
  int chunk = 4;
  float gate_soft_cap = 15;
  float eps = 1e-6f;
  float i_mean = 0, i_deviation = 3;
  float f_mean = 3, f_deviation = 2;
};

// State of one slot: C (H, DK, DV), n (H, DK), m (H).
struct MlstmState {
  std::vector<float> C, n, m;
};

// Rows of one sequence: q, k (L, H, DK), v (L, H, DV), i, f (L, H).
struct MlstmRows {
  int L = 0;
  std::vector<float> q, k, v, i, f;
};

struct MlstmResult {
  std::vector<float> h;  // (L, H, DV)
  MlstmState state;
};

inline MlstmState zero_state(const MlstmConfig& c) {
  return {std::vector<float>(static_cast<size_t>(c.H) * c.DK * c.DV),
          std::vector<float>(static_cast<size_t>(c.H) * c.DK), std::vector<float>(c.H)};
}

inline MlstmState random_state(const MlstmConfig& c, std::mt19937_64& random) {
  MlstmState state = zero_state(c);
  state.C = normal_floats(random, state.C.size());
  state.n = normal_floats(random, state.n.size());
  state.m = normal_floats(random, state.m.size(), 3);
  return state;
}

inline MlstmRows random_rows(const MlstmConfig& c, int L, std::mt19937_64& random) {
  const size_t heads = static_cast<size_t>(L) * c.H;
  MlstmRows rows;
  rows.L = L;
  rows.q = normal_floats(random, heads * c.DK);
  rows.k = normal_floats(random, heads * c.DK);
  rows.v = normal_floats(random, heads * c.DV);
  rows.i = normal_floats(random, heads, c.i_deviation, c.i_mean);
  rows.f = normal_floats(random, heads, c.f_deviation, c.f_mean);
  return rows;
}

// Rows [first, first + count).
inline MlstmRows part_of(const MlstmConfig& c, const MlstmRows& rows, int first, int count) {
  const auto cut = [&](const std::vector<float>& values, int width) {
    const auto begin = values.begin() + static_cast<ptrdiff_t>(first) * width;
    return std::vector<float>(begin, begin + static_cast<ptrdiff_t>(count) * width);
  };
  return {count,
          cut(rows.q, c.H * c.DK),
          cut(rows.k, c.H * c.DK),
          cut(rows.v, c.H * c.DV),
          cut(rows.i, c.H),
          cut(rows.f, c.H)};
}

// One sequence of a batch, and the slot its state is in.
struct MlstmSequence {
  MlstmRows rows;
  MlstmState state;
  int slot = 0;
};

// The inputs as the fused projection leaves them: a row has q, k, v, a gap, i, f.
inline std::vector<float> fused_rows(const MlstmConfig& c, const std::vector<MlstmSequence>& batch,
                                     int stride) {
  std::vector<float> x;
  for (const MlstmSequence& seq : batch) {
    for (int t = 0; t < seq.rows.L; ++t) {
      const size_t row = x.size();
      const auto append = [&](const std::vector<float>& values, int width) {
        const auto begin = values.begin() + static_cast<ptrdiff_t>(t) * width;
        x.insert(x.end(), begin, begin + width);
      };
      append(seq.rows.q, c.H * c.DK);
      append(seq.rows.k, c.H * c.DK);
      append(seq.rows.v, c.H * c.DV);
      x.resize(row + stride - 2 * c.H, NAN);
      append(seq.rows.i, c.H);
      append(seq.rows.f, c.H);
    }
  }
  return x;
}

// Runs the sequences as one batch. Slots nobody owns are NaN and must stay as they are.
inline std::vector<MlstmResult> run_mlstm(KernelDevice& device, const MlstmConfig& c,
                                          const std::vector<MlstmSequence>& batch) {
  const size_t C_size = static_cast<size_t>(c.H) * c.DK * c.DV, n_size = C_size / c.DV;
  std::vector<int32_t> begin = {0}, slot;
  int slots = 1, max_len = 0;
  for (const MlstmSequence& seq : batch) {
    begin.push_back(begin.back() + seq.rows.L);
    slot.push_back(seq.slot);
    slots = std::max(slots, seq.slot + 1);
    max_len = std::max(max_len, seq.rows.L);
  }
  std::vector<float> C(slots * C_size, NAN), n(slots * n_size, NAN), m(slots * c.H, NAN);
  for (const MlstmSequence& seq : batch) {
    std::copy(seq.state.C.begin(), seq.state.C.end(), C.begin() + seq.slot * C_size);
    std::copy(seq.state.n.begin(), seq.state.n.end(), n.begin() + seq.slot * n_size);
    std::copy(seq.state.m.begin(), seq.state.m.end(), m.begin() + seq.slot * c.H);
  }
  const int gap = 3, stride = c.H * (2 * c.DK + c.DV + 2) + gap;
  const auto x = device.array(fused_rows(c, batch, stride));
  const auto begins = device.array(begin), slot_ids = device.array(slot);
  const auto C_array = device.array(C), n_array = device.array(n), m_array = device.array(m);
  const auto h_array = device.floats(static_cast<size_t>(begin.back()) * c.H * c.DV);

  MlstmArgs args;
  args.seqs = {static_cast<int>(batch.size()), begin.back(), max_len, begins.data(),
               slot_ids.data()};
  args.H = c.H;
  args.DK = c.DK;
  args.DV = c.DV;
  args.chunk = c.chunk;
  args.gate_soft_cap = c.gate_soft_cap;
  args.eps = c.eps;
  args.stride = stride;
  args.q = x.data();
  args.k = args.q + c.H * c.DK;
  args.v = args.k + c.H * c.DK;
  args.i = args.q + stride - 2 * c.H;
  args.f = args.i + c.H;
  args.C = C_array.data();
  args.n = n_array.data();
  args.m = m_array.data();
  args.h = h_array.data();
  device.kernels().mlstm(args, *device.stream);

  for (const auto* array : {&C_array, &n_array, &m_array, &h_array}) {
    EXPECT_TRUE(array->guards_intact());
  }
  const std::vector<float> h = h_array.read();
  C = C_array.read();
  n = n_array.read();
  m = m_array.read();
  const auto cut = [](const std::vector<float>& values, size_t first, size_t count) {
    return std::vector<float>(values.begin() + static_cast<ptrdiff_t>(first),
                              values.begin() + static_cast<ptrdiff_t>(first + count));
  };
  std::vector<MlstmResult> results;
  std::vector<bool> owned(slots, false);
  for (size_t b = 0; b < batch.size(); ++b) {
    const size_t s = batch[b].slot, width = static_cast<size_t>(c.H) * c.DV;
    owned[s] = true;
    results.push_back(
        {cut(h, begin[b] * width, batch[b].rows.L * width),
         {cut(C, s * C_size, C_size), cut(n, s * n_size, n_size), cut(m, s * c.H, c.H)}});
  }
  for (int s = 0; s < slots; ++s) {
    const bool untouched = std::isnan(C[s * C_size]) && std::isnan(m[s * c.H]);
    EXPECT_TRUE(owned[s] || untouched) << "slot " << s;
  }
  return results;
}

inline MlstmResult run_alone(KernelDevice& device, const MlstmConfig& c, const MlstmRows& rows,
                             const MlstmState& state) {
  return run_mlstm(device, c, {{rows, state, 1}})[0];
}

// Runs parts of the given sizes one after the other, and joins their outputs.
inline MlstmResult run_split(KernelDevice& device, const MlstmConfig& c, const MlstmRows& rows,
                             MlstmState state, const std::vector<int>& sizes) {
  MlstmResult joined;
  int first = 0;
  for (const int size : sizes) {
    MlstmResult part = run_alone(device, c, part_of(c, rows, first, size), state);
    joined.h.insert(joined.h.end(), part.h.begin(), part.h.end());
    state = part.state;
    first += size;
  }
  joined.state = state;
  return joined;
}

}  // namespace recurve::testing
