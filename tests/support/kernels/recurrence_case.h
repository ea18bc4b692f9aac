#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/support/kernels/compare.h"
#include "tests/support/kernels/kernel_device.h"

namespace recurve::testing {

// Rows of one array of inputs in device memory.
struct RowArray {
  const float* data;
  int stride;  // floats from a row to the next
};

// An op over ragged rows with a state by slot, seen from outside: rows in, rows out. Its inputs and
// its state may be several arrays; outside they are side by side.
struct RecurrenceOp {
  std::string name;
  std::vector<int> in;     // floats of a row of each array of inputs
  int out = 0;             // floats of a row of outputs
  std::vector<int> state;  // floats of a slot of each array of states
  int grid = 1;            // rows where a sequence may be cut
  bool bf16 = false;       // the first array of states is kept in BF16
  bool aligned = false;    // rows begin at multiples of four floats, if their widths let them
  Tolerance tolerance;     // between two float programs that compute it
  // Of a row, the first columns, which a device may round to bf16 before it multiplies them: if
  // rounds(). null: none does.
  int rounded_columns = 0;
  std::function<bool(const Kernels&)> rounds;
  // How much further from what is wanted that may take it than it takes the reference.
  double rounds_times = 1.5;
  std::vector<std::vector<float>> weights;
  std::vector<float> matrix;  // weights too, which run() brings to the device as they are stored
  // Rows of one sequence: (L, width()).
  std::function<std::vector<float>(int L, std::mt19937_64&)> inputs;
  // A state to start from: (state_size()). Empty: normal values.
  std::function<std::vector<float>(std::mt19937_64&)> some_state;
  // Where rows lie next to a state that is written once in several (held_rows.h): a state that has
  // taken them in. null: none do.
  std::function<std::vector<float>(const std::vector<float>&)> taken_in;
  // Whether the device can keep it so; null: no.
  std::function<bool(const Kernels&)> keeps_bf16;
  // weights: those above, in device memory; null where empty. states: (slots, state[i]) each.
  std::function<void(KernelDevice&, const Ragged&, const std::vector<RowArray>& x,
                     const std::vector<const float*>& weights, const std::vector<StateData>& states,
                     float* y /* (rows, out) */)>
      run;

  int width() const { return std::accumulate(in.begin(), in.end(), 0); }
  int state_size() const { return std::accumulate(state.begin(), state.end(), 0); }
  std::vector<float> start(std::mt19937_64& random) const {
    return some_state ? some_state(random) : normal_floats(random, state_size());
  }
};

// One sequence of a batch, and the slot its state is in.
struct RecurrenceSequence {
  std::vector<float> x;      // (L, width)
  std::vector<float> state;  // (state_size)
  int slot = 1;
  int L(const RecurrenceOp& op) const { return static_cast<int>(x.size()) / op.width(); }
};

struct RecurrenceResult {
  std::vector<float> y;      // (L, out)
  std::vector<float> state;  // (state_size)
};

// Rows of values with the given means and deviations: (L, sum of counts).
struct Column {
  int count;
  float mean = 0, deviation = 1;
};

inline std::vector<float> random_rows(const std::vector<Column>& columns, int L,
                                      std::mt19937_64& random) {
  std::vector<float> rows;
  for (int t = 0; t < L; ++t) {
    for (const Column& column : columns) {
      const auto values = normal_floats(random, column.count, column.deviation, column.mean);
      rows.insert(rows.end(), values.begin(), values.end());
    }
  }
  return rows;
}

// The batch as the op gets it.
struct RecurrenceBatch {
  std::vector<int32_t> begin = {0}, slot;
  int slots = 1, max_len = 0;
  std::vector<std::vector<float>> x, states;
};

// Each array of inputs has a different gap between its rows, so that no two strides are the same.
// Gaps and slots that no sequence owns are NaN.
inline int gap_of(const RecurrenceOp& op, size_t array) {
  const int number = static_cast<int>(array);
  return op.aligned ? 4 + 4 * number : 3 + 2 * number;
}

inline RecurrenceBatch lay_out(const RecurrenceOp& op,
                               const std::vector<RecurrenceSequence>& batch) {
  RecurrenceBatch laid;
  for (const RecurrenceSequence& seq : batch) {
    laid.begin.push_back(laid.begin.back() + seq.L(op));
    laid.slot.push_back(seq.slot);
    laid.slots = std::max(laid.slots, seq.slot + 1);
    laid.max_len = std::max(laid.max_len, seq.L(op));
  }
  int column = 0;
  for (size_t array = 0; array < op.in.size(); column += op.in[array++]) {
    std::vector<float>& x = laid.x.emplace_back();
    for (const RecurrenceSequence& seq : batch) {
      for (int t = 0; t < seq.L(op); ++t) {
        const auto row = seq.x.begin() + t * op.width() + column;
        x.insert(x.end(), row, row + op.in[array]);
        x.insert(x.end(), gap_of(op, array), NAN);
      }
    }
  }
  column = 0;
  for (const int size : op.state) {
    std::vector<float>& states = laid.states.emplace_back(laid.slots * size, NAN);
    for (const RecurrenceSequence& seq : batch) {
      const auto first = seq.state.begin() + column;
      std::copy(first, first + size, states.begin() + seq.slot * size);
    }
    column += size;
  }
  return laid;
}

// One array of states in device memory, F32 or BF16.
class DeviceState {
 public:
  DeviceState(KernelDevice& device, const std::vector<float>& values, DType type) {
    if (type == DType::kBF16) {
      words_.emplace(device.array(stored(values, type)));
    } else {
      floats_.emplace(device.array(values));
    }
  }

  StateData data() const {
    if (floats_) return {floats_->data(), DType::kF32};
    return {words_->data(), DType::kBF16};
  }
  ::testing::AssertionResult guards_intact() const {
    return floats_ ? floats_->guards_intact() : words_->guards_intact();
  }
  std::vector<float> read() const {
    if (floats_) return floats_->read();
    const std::vector<uint16_t> words = words_->read();
    std::vector<float> values(words.size());
    std::transform(words.begin(), words.end(), values.begin(), from_bf16);
    return values;
  }

 private:
  std::optional<DeviceArray<float>> floats_;
  std::optional<DeviceArray<uint16_t>> words_;
};

// Runs the sequences as one batch. Slots that no sequence owns must not change, nor the bytes
// around every output.
inline std::vector<RecurrenceResult> run_recurrence(KernelDevice& device, const RecurrenceOp& op,
                                                    const std::vector<RecurrenceSequence>& batch) {
  const RecurrenceBatch laid = lay_out(op, batch);
  const auto begins = device.array(laid.begin), slot_ids = device.array(laid.slot);
  const auto y_array = device.floats(static_cast<size_t>(laid.begin.back()) * op.out);
  std::vector<DeviceArray<float>> arrays;  // inputs and weights
  std::vector<DeviceState> state_arrays;
  std::vector<RowArray> x;
  std::vector<const float*> weights;
  std::vector<StateData> states;
  for (size_t i = 0; i < laid.x.size(); ++i) {
    arrays.push_back(device.array(laid.x[i]));
    x.push_back({arrays.back().data(), op.in[i] + gap_of(op, i)});
  }
  for (const std::vector<float>& values : op.weights) {
    arrays.push_back(device.array(values));
    weights.push_back(values.empty() ? nullptr : arrays.back().data());
  }
  for (const std::vector<float>& values : laid.states) {
    const bool bf16 = op.bf16 && states.empty();
    state_arrays.emplace_back(device, values, bf16 ? DType::kBF16 : DType::kF32);
    states.push_back(state_arrays.back().data());
  }
  op.run(device,
         {.num_seqs = static_cast<int>(batch.size()),
          .rows = laid.begin.back(),
          .max_len = laid.max_len,
          .begin = begins.data(),
          .slot = slot_ids.data()},
         x, weights, states, y_array.data());

  EXPECT_TRUE(y_array.guards_intact()) << op.name;
  const std::vector<float> y = y_array.read();
  std::vector<bool> owned(laid.slots, false);
  std::vector<RecurrenceResult> results;
  for (size_t b = 0; b < batch.size(); ++b) {
    owned[batch[b].slot] = true;
    results.push_back(
        {{y.begin() + laid.begin[b] * op.out, y.begin() + laid.begin[b + 1] * op.out}, {}});
  }
  for (size_t i = 0; i < state_arrays.size(); ++i) {
    EXPECT_TRUE(state_arrays[i].guards_intact()) << op.name;
    const std::vector<float> values = state_arrays[i].read();
    const int size = op.state[i];
    for (size_t b = 0; b < batch.size(); ++b) {
      const auto first = values.begin() + batch[b].slot * size;
      results[b].state.insert(results[b].state.end(), first, first + size);
    }
    for (int s = 0; s < laid.slots; ++s) {
      const auto first = values.begin() + s * size;
      const bool untouched =
          owned[s] || std::all_of(first, first + size, [](float x) { return std::isnan(x); });
      EXPECT_TRUE(untouched) << op.name << " slot " << s;
    }
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
    const auto end = at + size * op.width();
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

// Of a batch that runs at once every so many'th sequence from the first on, and the last.
inline void expect_as_alone(KernelDevice& device, const RecurrenceOp& op,
                            const std::vector<RecurrenceSequence>& batch, size_t every = 1) {
  const std::vector<RecurrenceResult> found = run_recurrence(device, op, batch);
  const size_t last = batch.size() - 1;
  for (size_t b = 0;; b = std::min(b + every, last)) {
    expect_same_bits(found[b], run_alone(device, op, batch[b].x, batch[b].state), op.name);
    if (b == last) return;
  }
}

// Whether the rows of such heads can be taken by tiles: see Op::rounds_in_tiles.
inline bool fills_tiles(int DK, int DV, int chunk, bool aligned) {
  const bool keys = DK == 32 || DK == 64 || DK == 128 || DK == 256;
  return keys && DV % 64 == 0 && chunk % 64 == 0 && aligned;
}

// The norm of the difference; NaN must stand in equal places.
inline double distance(const std::vector<float>& found, const std::vector<float>& wanted,
                       const std::string& what) {
  double squares = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(std::isnan(found[i]), std::isnan(wanted[i])) << what << " at " << i;
    const double apart = static_cast<double>(found[i]) - wanted[i];
    if (std::isfinite(apart)) squares += apart * apart;
  }
  return std::sqrt(squares);
}

// No further from what is wanted than so many times as far as rounding to bf16 takes the reference.
// `rounded`: its states, from rounded inputs, and its outputs, from rounded inputs and a rounded
// state, which the outputs are multiplied with.
inline void expect_as_rounded(const RecurrenceResult& found, const RecurrenceResult& wanted,
                              const RecurrenceResult& rounded, double times, Tolerance tolerance,
                              const std::string& what) {
  const auto compare = [&](const std::vector<float>& f, const std::vector<float>& w,
                           const std::vector<float>& r, const std::string& part) {
    const double allowed = times * distance(r, w, part) +
                           tolerance.absolute * std::sqrt(static_cast<double>(w.size()));
    EXPECT_LE(distance(f, w, part), allowed) << part;
  };
  compare(found.y, wanted.y, rounded.y, what + ": y");
  compare(found.state, wanted.state, rounded.state, what + ": state");
}

inline void expect_close(const RecurrenceResult& found, const RecurrenceResult& wanted,
                         Tolerance tolerance, const std::string& what) {
  EXPECT_TRUE(close(found.y, wanted.y, tolerance)) << what << ": y";
  EXPECT_TRUE(close(found.state, wanted.state, tolerance)) << what << ": state";
}

// The reference as devices are compared with it. It keeps what it was asked since the first one was
// made, and gives the same again, as long as the next one is asked the same in the same order:
// tests of several devices draw the same.
class KeptReference {
 public:
  RecurrenceResult run_alone(const RecurrenceOp& op, const std::vector<float>& x,
                             const std::vector<float>& start) {
    static std::vector<Asked> kept;
    if (next_ == kept.size() || !kept[next_].is(op, x, start)) {
      kept.resize(next_);
      kept.push_back({op, x, start, testing::run_alone(device_, op, x, start)});
    }
    return kept[next_++].result;
  }

 private:
  struct Asked {
    RecurrenceOp op;
    std::vector<float> x, start;
    RecurrenceResult result;
    bool is(const RecurrenceOp& other, const std::vector<float>& other_x,
            const std::vector<float>& other_start) const {
      return op.name == other.name && op.weights == other.weights && op.matrix == other.matrix &&
             bit_equal(x, other_x) && bit_equal(start, other_start);
    }
  };
  KernelDevice device_{"reference"};
  size_t next_ = 0;
};

// The device gives what the reference does, from the same start. Returns what the device gives.
inline RecurrenceResult expect_as_reference(KernelDevice& device, KeptReference& reference,
                                            const RecurrenceOp& op, const std::vector<float>& x,
                                            const std::vector<float>& start,
                                            const std::string& what) {
  const RecurrenceResult found = run_alone(device, op, x, start);
  const RecurrenceResult wanted = reference.run_alone(op, x, start);
  const bool is_step = op.taken_in && x.size() == static_cast<size_t>(op.width());
  if (is_step || !op.rounds || !op.rounds(device.kernels())) {
    expect_close(found, wanted, op.tolerance, what);
    return found;
  }
  std::vector<float> in_bf16 = rounded(x, DType::kBF16);
  for (size_t i = 0; i < x.size(); ++i) {
    if (static_cast<int>(i) % op.width() >= op.rounded_columns) in_bf16[i] = x[i];
  }
  std::vector<float> start_in_bf16 = op.taken_in ? op.taken_in(start) : start;
  const std::vector<float> matrix =
      rounded({start_in_bf16.begin(), start_in_bf16.begin() + op.state[0]}, DType::kBF16);
  std::copy(matrix.begin(), matrix.end(), start_in_bf16.begin());
  const RecurrenceResult in_rounded{reference.run_alone(op, in_bf16, start_in_bf16).y,
                                    reference.run_alone(op, in_bf16, start).state};
  expect_as_rounded(found, wanted, in_rounded, op.rounds_times, op.tolerance, what);
  return found;
}

}  // namespace recurve::testing
