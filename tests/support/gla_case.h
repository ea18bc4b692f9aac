#pragma once
#include <cmath>
#include <random>
#include <vector>

#include "tests/support/kernel_device.h"

namespace recurve::testing {

// What the recurrence is and what numbers it meets.
struct GlaConfig {
  int H = 2, DK = 8, DV = 8;
  int chunk = 4;
  GlaDecay decay = GlaDecay::kChannel;
  bool input_gate = false;
  bool normaliser = false;
  float g_mean = -0.1f, g_deviation = 0.1f;  // of the log decay, which is cut at 0
  float scale = 0.35f;
  float eps = 1e-6f;
  bool bounded = false;

  int g_width() const { return decay == GlaDecay::kChannel ? H * DK : H; }
};

// State of one slot: S (H, DK, DV), z (H, DK).
struct GlaState {
  std::vector<float> S, z;
};

// Rows of one sequence: q, k (L, H, DK), v (L, H, DV), g (L, g_width), i (L, H).
struct GlaRows {
  int L = 0;
  std::vector<float> q, k, v, g, i;
};

struct GlaResult {
  std::vector<float> o;  // (L, H, DV)
  GlaState state;
};

inline GlaState zero_state(const GlaConfig& c) {
  return {std::vector<float>(static_cast<size_t>(c.H) * c.DK * c.DV),
          std::vector<float>(static_cast<size_t>(c.H) * c.DK)};
}

// With a normaliser all is positive, as its keys and queries are; a bounded one takes any.
inline std::vector<float> gla_values(const GlaConfig& c, size_t count, std::mt19937_64& random) {
  std::vector<float> values = normal_floats(random, count);
  for (float& value : values) value = c.normaliser && !c.bounded ? std::fabs(value) : value;
  return values;
}

inline GlaState random_state(const GlaConfig& c, std::mt19937_64& random) {
  GlaState state = zero_state(c);
  state.S = normal_floats(random, state.S.size());
  state.z = gla_values(c, state.z.size(), random);
  return state;
}

inline GlaRows random_rows(const GlaConfig& c, int L, std::mt19937_64& random) {
  const size_t heads = static_cast<size_t>(L) * c.H;
  GlaRows rows;
  rows.L = L;
  rows.q = gla_values(c, heads * c.DK, random);
  rows.k = gla_values(c, heads * c.DK, random);
  rows.v = normal_floats(random, heads * c.DV);
  rows.g = normal_floats(random, static_cast<size_t>(L) * c.g_width(), c.g_deviation, c.g_mean);
  for (float& g : rows.g) g = std::fmin(g, 0.0f);
  if (c.decay == GlaDecay::kNone) std::fill(rows.g.begin(), rows.g.end(), 0.0f);
  for (size_t at = c.H; c.decay == GlaDecay::kHead && at < rows.g.size(); ++at) {
    rows.g[at] = rows.g[at % c.H];  // the same at every row
  }
  rows.i.assign(heads, 0.0f);
  if (c.input_gate) {
    for (float& i : rows.i) i = -std::fabs(normal_floats(random, 1, 2)[0]);
  }
  return rows;
}

// Rows [first, first + count).
inline GlaRows part_of(const GlaConfig& c, const GlaRows& rows, int first, int count) {
  const auto cut = [&](const std::vector<float>& values, int width) {
    const auto begin = values.begin() + static_cast<ptrdiff_t>(first) * width;
    return std::vector<float>(begin, begin + static_cast<ptrdiff_t>(count) * width);
  };
  return {count,
          cut(rows.q, c.H * c.DK),
          cut(rows.k, c.H * c.DK),
          cut(rows.v, c.H * c.DV),
          cut(rows.g, c.g_width()),
          cut(rows.i, c.H)};
}

// One sequence of a batch, and the slot its state is in.
struct GlaSequence {
  GlaRows rows;
  GlaState state;
  int slot = 0;
};

// Runs the sequences as one batch. q, k and v lie in rows with a gap, g and i in others. Slots
// nobody owns are NaN and must stay as they are.
inline std::vector<GlaResult> run_gla(KernelDevice& device, const GlaConfig& c,
                                      const std::vector<GlaSequence>& batch) {
  const size_t S_size = static_cast<size_t>(c.H) * c.DK * c.DV, z_size = S_size / c.DV;
  std::vector<int32_t> begin = {0}, slot;
  int slots = 1, max_len = 0;
  for (const GlaSequence& seq : batch) {
    begin.push_back(begin.back() + seq.rows.L);
    slot.push_back(seq.slot);
    slots = std::max(slots, seq.slot + 1);
    max_len = std::max(max_len, seq.rows.L);
  }
  std::vector<float> S(slots * S_size, NAN), z(slots * z_size, NAN), qkv, gates;
  const int gap = 3, stride = c.H * (2 * c.DK + c.DV) + gap, g_stride = c.g_width() + c.H + 1;
  for (const GlaSequence& seq : batch) {
    std::copy(seq.state.S.begin(), seq.state.S.end(), S.begin() + seq.slot * S_size);
    std::copy(seq.state.z.begin(), seq.state.z.end(), z.begin() + seq.slot * z_size);
    for (int t = 0; t < seq.rows.L; ++t) {
      const auto append = [&](std::vector<float>& to, const std::vector<float>& from, int width) {
        const auto first = from.begin() + static_cast<ptrdiff_t>(t) * width;
        to.insert(to.end(), first, first + width);
      };
      append(qkv, seq.rows.q, c.H * c.DK);
      append(qkv, seq.rows.k, c.H * c.DK);
      append(qkv, seq.rows.v, c.H * c.DV);
      qkv.resize(qkv.size() + gap, NAN);
      append(gates, seq.rows.g, c.g_width());
      append(gates, seq.rows.i, c.H);
      gates.push_back(NAN);
    }
  }
  const auto x = device.array(qkv), gate_array = device.array(gates);
  const auto begins = device.array(begin), slot_ids = device.array(slot);
  const auto S_array = device.array(S), z_array = device.array(z);
  const auto o_array = device.floats(static_cast<size_t>(begin.back()) * c.H * c.DV);
  device.kernels().gla({.seqs = {static_cast<int>(batch.size()), begin.back(), max_len,
                                 begins.data(), slot_ids.data()},
                        .H = c.H,
                        .DK = c.DK,
                        .DV = c.DV,
                        .chunk = c.chunk,
                        .decay = c.decay,
                        .scale = c.scale,
                        .eps = c.eps,
                        .bounded = c.bounded,
                        .q_stride = stride,
                        .k_stride = stride,
                        .v_stride = stride,
                        .g_stride = g_stride,
                        .q = x.data(),
                        .k = x.data() + c.H * c.DK,
                        .v = x.data() + 2 * c.H * c.DK,
                        .g = c.decay == GlaDecay::kNone ? nullptr : gate_array.data(),
                        .i = c.input_gate ? gate_array.data() + c.g_width() : nullptr,
                        .S = S_array.data(),
                        .z = c.normaliser ? z_array.data() : nullptr,
                        .o = o_array.data()},
                       *device.stream);

  for (const auto* array : {&S_array, &z_array, &o_array}) EXPECT_TRUE(array->guards_intact());
  const std::vector<float> o = o_array.read();
  S = S_array.read();
  z = z_array.read();
  const auto cut = [](const std::vector<float>& values, size_t first, size_t count) {
    return std::vector<float>(values.begin() + static_cast<ptrdiff_t>(first),
                              values.begin() + static_cast<ptrdiff_t>(first + count));
  };
  std::vector<GlaResult> results;
  std::vector<bool> owned(slots, false);
  for (size_t b = 0; b < batch.size(); ++b) {
    const size_t at = batch[b].slot, width = static_cast<size_t>(c.H) * c.DV;
    owned[at] = true;
    results.push_back({cut(o, begin[b] * width, batch[b].rows.L * width),
                       {cut(S, at * S_size, S_size), cut(z, at * z_size, z_size)}});
  }
  for (int s = 0; s < slots; ++s) {
    const bool untouched = std::isnan(S[s * S_size]) && std::isnan(z[s * z_size]);
    EXPECT_TRUE(owned[s] || untouched) << "slot " << s;
  }
  return results;
}

inline GlaResult run_alone(KernelDevice& device, const GlaConfig& c, const GlaRows& rows,
                           const GlaState& state) {
  return run_gla(device, c, {{rows, state, 1}})[0];
}

// Runs parts of the given sizes one after the other, and joins their outputs.
inline GlaResult run_split(KernelDevice& device, const GlaConfig& c, const GlaRows& rows,
                           GlaState state, const std::vector<int>& sizes) {
  GlaResult joined;
  int first = 0;
  for (const int size : sizes) {
    const GlaResult part = run_alone(device, c, part_of(c, rows, first, size), state);
    joined.o.insert(joined.o.end(), part.o.begin(), part.o.end());
    state = part.state;
    first += size;
  }
  joined.state = state;
  return joined;
}

}  // namespace recurve::testing
