#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/kernel_device.h"

namespace recurve::testing {

// An op over ragged rows with a state by slot, seen from outside: rows in, rows out.
struct RecurrenceOp {
  std::string name;
  int in = 0;     // floats of a row of inputs, all of them side by side
  int out = 0;    // floats of a row of outputs
  int state = 0;  // floats of the state of a slot
  int grid = 1;   // rows where a sequence may be cut
  std::vector<std::vector<float>> weights;
  // Rows of one sequence: (L, in).
  std::function<std::vector<float>(int L, std::mt19937_64&)> inputs;
  // stride: floats from a row of x to the next. weights: those above, in device memory.
  std::function<void(KernelDevice&, const Ragged&, const float* x /* (rows, in) */, int stride,
                     const std::vector<const float*>& weights, float* state /* (slots, state) */,
                     float* y /* (rows, out) */)>
      run;
};

// One sequence of a batch, and the slot its state is in.
struct RecurrenceSequence {
  std::vector<float> x;      // (L, in)
  std::vector<float> state;  // (state)
  int slot = 1;
  int L(const RecurrenceOp& op) const { return static_cast<int>(x.size()) / op.in; }
};

struct RecurrenceResult {
  std::vector<float> y;      // (L, out)
  std::vector<float> state;  // (state)
};

// Runs the sequences as one batch. Slots nobody owns are NaN and must stay as they are, and so must
// the bytes around every output.
inline std::vector<RecurrenceResult> run_recurrence(KernelDevice& device, const RecurrenceOp& op,
                                                    const std::vector<RecurrenceSequence>& batch) {
  const size_t S = static_cast<size_t>(op.state), gap = 3, stride = op.in + gap;
  std::vector<int32_t> begin = {0}, slot;
  std::vector<float> x;
  int slots = 1, max_len = 0;
  for (const RecurrenceSequence& seq : batch) {
    begin.push_back(begin.back() + seq.L(op));
    slot.push_back(seq.slot);
    slots = std::max(slots, seq.slot + 1);
    max_len = std::max(max_len, seq.L(op));
    for (int t = 0; t < seq.L(op); ++t) {
      x.insert(x.end(), seq.x.begin() + t * op.in, seq.x.begin() + (t + 1) * op.in);
      x.insert(x.end(), gap, NAN);
    }
  }
  std::vector<float> states(slots * S, NAN);
  for (const RecurrenceSequence& seq : batch) {
    std::copy(seq.state.begin(), seq.state.end(), states.begin() + seq.slot * S);
  }
  const auto begins = device.array(begin), slot_ids = device.array(slot);
  const auto x_array = device.array(x), state_array = device.array(states);
  const auto y_array = device.floats(static_cast<size_t>(begin.back()) * op.out);
  std::vector<DeviceArray<float>> weight_arrays;
  std::vector<const float*> weights;
  for (const std::vector<float>& values : op.weights) weight_arrays.push_back(device.array(values));
  for (const DeviceArray<float>& array : weight_arrays) {
    weights.push_back(array.size() == 0 ? nullptr : array.data());
  }
  op.run(device,
         {.num_seqs = static_cast<int>(batch.size()),
          .rows = begin.back(),
          .max_len = max_len,
          .begin = begins.data(),
          .slot = slot_ids.data()},
         x_array.data(), static_cast<int>(stride), weights, state_array.data(), y_array.data());

  EXPECT_TRUE(state_array.guards_intact()) << op.name;
  EXPECT_TRUE(y_array.guards_intact()) << op.name;
  const std::vector<float> y = y_array.read();
  states = state_array.read();
  std::vector<bool> owned(slots, false);
  std::vector<RecurrenceResult> results;
  for (size_t b = 0; b < batch.size(); ++b) {
    owned[batch[b].slot] = true;
    const auto state = states.begin() + batch[b].slot * S;
    results.push_back(
        {{y.begin() + begin[b] * op.out, y.begin() + begin[b + 1] * op.out}, {state, state + S}});
  }
  for (int s = 0; s < slots; ++s) {
    for (size_t i = 0; i < S && !owned[s]; ++i) EXPECT_TRUE(std::isnan(states[s * S + i])) << s;
  }
  return results;
}

inline RecurrenceResult run_alone(KernelDevice& device, const RecurrenceOp& op,
                                  const std::vector<float>& x, const std::vector<float>& state) {
  return run_recurrence(device, op, {{x, state, 1}})[0];
}

// Runs parts of the given sizes one after the other, and joins their outputs.
inline RecurrenceResult run_split(KernelDevice& device, const RecurrenceOp& op,
                                  const std::vector<float>& x, std::vector<float> state,
                                  const std::vector<int>& sizes) {
  RecurrenceResult joined;
  auto at = x.begin();
  for (const int size : sizes) {
    const auto end = at + size * op.in;
    RecurrenceResult part = run_alone(device, op, {at, end}, state);
    at = end;
    joined.y.insert(joined.y.end(), part.y.begin(), part.y.end());
    state = part.state;
  }
  joined.state = state;
  return joined;
}

inline void expect_same_bits(const RecurrenceResult& found, const RecurrenceResult& wanted,
                             const std::string& what) {
  EXPECT_TRUE(bit_equal(found.y, wanted.y)) << what << ": y";
  EXPECT_TRUE(bit_equal(found.state, wanted.state)) << what << ": state";
}

inline void expect_close(const RecurrenceResult& found, const RecurrenceResult& wanted,
                         Tolerance tolerance, const std::string& what) {
  EXPECT_TRUE(close(found.y, wanted.y, tolerance)) << what << ": y";
  EXPECT_TRUE(close(found.state, wanted.state, tolerance)) << what << ": state";
}

}  // namespace recurve::testing
