// What every implementation of a recurrence keeps: close to the reference, and the same bits
// whatever the cut on the grid, the neighbours, the slots and the threads.
#include <gtest/gtest.h>

#include "tests/kernels/recurrence/recurrence_families.h"

namespace recurve::testing::recurrence_test {

struct Case {
  Family family;
  DeviceUnderTest device;
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.family.name; }
};

class RecurrenceTest : public DeviceTestWith<Case> {
 protected:
  const DeviceUnderTest& device_under_test() const override { return GetParam().device; }
  const Family& family() const { return GetParam().family; }
  Ops ops(std::mt19937_64& random) const { return draws_.ops(random, family().ops); }
  Ops large_ops(std::mt19937_64& random) const { return draws_.ops(random, family().large); }
  Ops ops_with_chunk(int chunk, std::mt19937_64& random) const {
    return draws_.ops(random,
                      [&](std::mt19937_64& from) { return family().with_chunk(chunk, from); });
  }

 private:
  static std::string test_without_device() {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    return name.substr(0, name.find('/'));
  }
  FamilyDraws& draws_ = FamilyDraws::of(test_without_device() + " " + family().name);
};

// What would compare the reference with itself.
class AgainstReference : public RecurrenceTest {};

TEST_P(AgainstReference, MatchesTheReference) {
  KernelDevice device = make_device();
  KeptReference reference;
  std::mt19937_64 random(1);
  for (const RecurrenceOp& op : ops(random)) {
    for (const int L : {1, 2, 5, 16, 70}) {
      const std::vector<float> x = op.inputs(L, random), start = op.start(random);
      expect_as_reference(device, reference, op, x, start, op.name + " L " + std::to_string(L));
    }
  }
}

TEST_P(RecurrenceTest, NanStaysWithItsTime) {
  KernelDevice device = make_device();
  KeptReference reference;
  std::mt19937_64 random(3);
  for (const RecurrenceOp& op : ops(random)) {
    const int L = 20, row = 9, width = op.width();
    for (const int column : {0, width / 4, width / 3, width / 2, width * 3 / 4, width - 1}) {
      std::vector<float> x = op.inputs(L, random);
      x[row * width + column] = NAN;
      const std::vector<float> start = op.start(random);
      const std::string what = op.name + " column " + std::to_string(column);
      const RecurrenceResult found = expect_as_reference(device, reference, op, x, start, what);
      for (int i = 0; i < row * op.out; ++i) ASSERT_TRUE(std::isfinite(found.y[i])) << what;
    }
  }
}

TEST_P(RecurrenceTest, AnySplitOnTheGridIsTheSame) {
  KernelDevice device = make_device();
  std::mt19937_64 random(4);
  for (const RecurrenceOp& op : ops(random)) {
    const int g = op.grid;
    const std::vector<float> x = op.inputs(5 * g + 3, random), start = op.start(random);
    const RecurrenceResult whole = run_alone(device, op, x, start);
    for (const std::vector<int>& sizes : std::vector<std::vector<int>>{
             {g, g, g, g, g, 3}, {2 * g, 3 * g + 3}, {5 * g, 3}, {g, 3 * g, g + 3}}) {
      expect_same_bits(run_split(device, op, x, start, sizes), whole,
                       op.name + ", " + std::to_string(sizes.size()) + " parts");
    }
  }
}

// A decode is the same whether its sequence brought one row or its chunk had one left.
TEST_P(RecurrenceTest, AChunkOfOneRowIsAStep) {
  if (family().with_chunk == nullptr) return;
  KernelDevice device = make_device();
  std::mt19937_64 random(5), random_of_chunks(50), random_of_steps(50);
  const Ops chunks = ops_with_chunk(8, random_of_chunks);
  const Ops steps = ops_with_chunk(1, random_of_steps);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const RecurrenceOp& op = chunks[i];
    const std::vector<float> x = op.inputs(9, random), start = op.start(random);
    const auto last_row = x.begin() + 8 * op.width();
    const RecurrenceResult whole = run_alone(device, op, x, start);
    const RecurrenceResult first = run_alone(device, op, {x.begin(), last_row}, start);
    const RecurrenceResult last = run_alone(device, steps[i], {last_row, x.end()}, first.state);
    EXPECT_TRUE(bit_equal(last.state, whole.state)) << op.name;
    EXPECT_TRUE(bit_equal(last.y, std::span(whole.y).last(last.y.size()))) << op.name;
  }
}

// Decodes and prompts in one call, in any order and in any slots, are what each is alone.
TEST_P(RecurrenceTest, NeighboursAndSlotsChangeNothing) {
  KernelDevice device = make_device();
  std::mt19937_64 random(6);
  for (const RecurrenceOp& op : ops(random)) {
    std::vector<RecurrenceSequence> batch;
    std::vector<RecurrenceResult> alone;
    for (const int L : {1, 37, 1, 16, 2, 1, 64, 1, 3, 1}) {
      batch.push_back({op.inputs(L, random), op.start(random)});
      alone.push_back(run_alone(device, op, batch.back().x, batch.back().state));
    }
    std::vector<int> order = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    std::vector<int> slots = {9, 1, 4, 7, 2, 0, 5, 12, 3, 11};
    for (int round = 0; round < 2; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      std::shuffle(slots.begin(), slots.end(), random);
      std::vector<RecurrenceSequence> shuffled;
      for (size_t b = 0; b < order.size(); ++b) {
        shuffled.push_back(batch[order[b]]);
        shuffled.back().slot = slots[b];
      }
      const std::vector<RecurrenceResult> found = run_recurrence(device, op, shuffled);
      for (size_t b = 0; b < order.size(); ++b) {
        expect_same_bits(found[b], alone[order[b]],
                         op.name + ", sequence " + std::to_string(order[b]));
      }
    }
  }
}

TEST_P(AgainstReference, LargeSizesMatchTheReference) {
  KernelDevice device = make_device();
  KeptReference reference;
  std::mt19937_64 random(8);
  for (const RecurrenceOp& op : large_ops(random)) {
    for (const int L : {1, 20}) {
      const std::vector<float> x = op.inputs(L, random), start = op.start(random);
      expect_as_reference(device, reference, op, x, start, op.name + " L " + std::to_string(L));
    }
  }
}

// As many decodes at once as make an implementation change its ways.
TEST_P(RecurrenceTest, ManyDecodesAreWhatEachIsAlone) {
  KernelDevice device = make_device();
  std::mt19937_64 random(9);
  constexpr size_t kSmall = 1 << 14;  // values of a state: kernels may take several together
  for (const RecurrenceOp& op : large_ops(random)) {
    std::vector<RecurrenceSequence> batch;
    std::vector<float> start = op.start(random);
    const int slots = static_cast<size_t>(op.state[0]) < kSmall ? 131 : 40;
    for (int slot = 1; slot <= slots; ++slot) {
      for (float& value : start) value *= 1.01f;  // another state in each slot
      batch.push_back({op.inputs(1, random), start, slot});
    }
    expect_as_alone(device, op, batch, batch.size() / 40);
  }
}

// Prompts together with decodes, so many that an implementation takes them in turns, of which each
// is what it is row by row: for ops that may be cut anywhere.
TEST_P(RecurrenceTest, LargePromptsAreTheirSteps) {
  KernelDevice device = make_device();
  std::mt19937_64 random(10);
  for (const RecurrenceOp& op : large_ops(random)) {
    if (op.grid != 1) continue;
    std::vector<RecurrenceSequence> batch;
    for (int slot = 1; slot <= 33; ++slot) {
      batch.push_back({op.inputs(1 + slot * 5 % 9, random), op.start(random), slot});
    }
    const std::vector<RecurrenceResult> found = run_recurrence(device, op, batch);
    for (const size_t b : {0, 6, 8, 31, 32}) {
      const std::vector<int> steps(batch[b].x.size() / op.width(), 1);
      expect_same_bits(run_split(device, op, batch[b].x, batch[b].state, steps), found[b],
                       op.name + ", sequence " + std::to_string(b));
    }
  }
}

TEST_P(AgainstReference, ThreadsChangeNothing) {
  KernelDevice device = make_device(), alone(GetParam().device.device, 1);
  std::mt19937_64 random(7);
  for (const RecurrenceOp& op : large_ops(random)) {
    for (const int L : {1, 40}) {
      const std::vector<float> x = op.inputs(L, random), start = op.start(random);
      expect_same_bits(run_alone(device, op, x, start), run_alone(alone, op, x, start),
                       op.name + " L " + std::to_string(L));
    }
  }
}

// The first array of states, rounded.
void round_state(const RecurrenceOp& op, std::vector<float>& state) {
  const auto end = state.begin() + op.state[0];
  const std::vector<float> bf16 = rounded({state.begin(), end}, DType::kBF16);
  std::copy(bf16.begin(), bf16.end(), state.begin());
}

// Values of the first array of states of which BF16 keeps less, or which only just stay finite.
void put_extremes(const RecurrenceOp& op, std::vector<float>& state) {
  size_t at = 0;
  for (const float value : {NAN, INFINITY, 0x1p-140f, -0x1.8p-133f, 0x1.fep127f, -0.0f}) {
    if (at < static_cast<size_t>(op.state[0])) state[at] = value;
    at += 37;
  }
}

// The same, with the first array of states kept in BF16.
Ops in_bf16(Ops ops) {
  for (RecurrenceOp& op : ops) op.bf16 = true;
  return ops;
}

// So it does not depend on the split either.
TEST_P(RecurrenceTest, ABf16StateIsTheFp32OneRoundedAfterEachChunk) {
  if (family().with_chunk == nullptr) return;
  KernelDevice device = make_device();
  std::mt19937_64 random(10);
  for (const Ops& all : {ops_with_chunk(8, random), ops_with_chunk(1, random), large_ops(random)}) {
    for (const RecurrenceOp& op : in_bf16(all)) {
      if (!op.keeps_bf16(device.kernels())) GTEST_SKIP() << "its states are in fp32 only";
      const int g = op.grid;
      const int L = 3 * g + 1;  // the last row by itself, as a decode is
      const std::vector<float> x = op.inputs(L, random);
      std::vector<float> start = op.start(random);
      if (op.taken_in) start = op.taken_in(start);  // rounds once more than after each chunk
      put_extremes(op, start);
      round_state(op, start);
      RecurrenceResult wanted{{}, start};
      RecurrenceOp plain = op;
      plain.bf16 = false;
      for (int row = 0; row < L; row += g) {
        const auto first = x.begin() + row * op.width();
        const auto end = std::min(first + g * op.width(), x.end());
        RecurrenceResult chunk = run_alone(device, plain, {first, end}, wanted.state);
        wanted.y.insert(wanted.y.end(), chunk.y.begin(), chunk.y.end());
        wanted.state = std::move(chunk.state);
        round_state(op, wanted.state);
      }
      expect_same_bits(run_alone(device, op, x, start), wanted, op.name);
      expect_same_bits(run_split(device, op, x, start, {g, 2 * g, 1}), wanted, op.name + " split");
    }
  }
}

TEST_P(RecurrenceTest, DecodesWithBf16StatesAreWhatEachIsAlone) {
  if (family().with_chunk == nullptr) return;
  KernelDevice device = make_device();
  std::mt19937_64 random(11);
  for (const RecurrenceOp& op : in_bf16(large_ops(random))) {
    if (!op.keeps_bf16(device.kernels())) GTEST_SKIP() << "its states are in fp32 only";
    std::vector<RecurrenceSequence> batch;
    for (int slot = 1; slot <= 12; ++slot) {
      batch.push_back({op.inputs(1, random), op.start(random), slot});
    }
    expect_as_alone(device, op, batch);
  }
}

// States that a GPU's cache has no room for, which it may bring and send as a few are not.
class OutgrownStatesTest : public DeviceTest {};

TEST_P(OutgrownStatesTest, DecodesAreWhatEachIsAlone) {
  KernelDevice device = make_device();
  std::mt19937_64 random(12);
  constexpr size_t kBytes = size_t{200} << 20;
  const Ops all = {
      mlstm_op({8, 256, 512, 64}), gla_op({4, 256, 512, 32}, random),
      ssd_op({80, 64, 128, 1, 64, 0, 1, -2, 2, true, true}, random),
      ssd_op({80, 64, 128, 1, 64, 0, 1, -2, 2, true, true, 8}, random),
      delta_rule_op({4, 1, 256, 512, 32, DeltaDecay::kToken, DeltaRows::kUsual, true})};
  for (const bool bf16 : {false, true}) {
    for (const RecurrenceOp& op : bf16 ? in_bf16(all) : all) {
      const size_t value = bf16 ? sizeof(uint16_t) : sizeof(float);
      const int slots = static_cast<int>(kBytes / (value * static_cast<size_t>(op.state[0]))) + 1;
      std::vector<RecurrenceSequence> batch;
      std::vector<float> start = op.start(random);
      for (int slot = 1; slot <= slots; ++slot) {
        std::rotate(start.begin(), start.begin() + 4, start.begin() + op.state[0]);
        batch.push_back({op.inputs(1, random), start, slot});
      }
      expect_as_alone(device, op, batch, batch.size() / 2);
    }
  }
}

// A prompt whose tiles a GPU has no room for at once: where it goes on is no cut.
TEST_P(OutgrownStatesTest, AnySplitOfALongPromptIsTheSame) {
  KernelDevice device = make_device();
  std::mt19937_64 random(13);
  constexpr int kRows = 8192 + 67, kFirst = 1024;
  for (const RecurrenceOp& op :
       {ssd_op({16, 64, 128, 16, 64, 0, 1, -2, 2, true, true}, random),
        delta_rule_op({8, 4, 64, 64, 64, DeltaDecay::kToken, DeltaRows::kUsual, true})}) {
    const std::vector<float> x = op.inputs(kRows, random), start = op.start(random);
    expect_same_bits(run_split(device, op, x, start, {kFirst, kRows - kFirst}),
                     run_alone(device, op, x, start), op.name);
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OutgrownStatesTest);
RECURVE_ON_CUDA(OutgrownStatesTest);

// Recurrences of channels that do not know each other, over prompts of which a GPU takes a part at
// a time, by threads that go through the rows and others that prepare them.
class ChannelScanTest : public DeviceTest {
 protected:
  static Ops ops(int aligned, int odd, std::mt19937_64& random) {
    Ops ops = {rg_lru_op(aligned, random), linear_recurrence_op({aligned, 1})};
    for (RecurrenceOp& op : ops) op.aligned = true;
    ops.push_back(rg_lru_op(odd, random));
    ops.push_back(linear_recurrence_op({odd, 1}));
    return ops;
  }
};

TEST_P(ChannelScanTest, APromptIsItsParts) {
  KernelDevice device = make_device();
  KeptReference reference;
  std::mt19937_64 random(14);
  constexpr int kRows = 643;
  for (const RecurrenceOp& op : ops(2560, 1023, random)) {
    const std::vector<float> x = op.inputs(kRows, random), start = op.start(random);
    const RecurrenceResult whole = expect_as_reference(device, reference, op, x, start, op.name);
    for (const std::vector<int>& sizes :
         std::vector<std::vector<int>>{{1, 2, 120, 1, kRows - 124}, {320, 240, kRows - 560}}) {
      expect_same_bits(run_split(device, op, x, start, sizes), whole, op.name);
    }
  }
}

TEST_P(ChannelScanTest, PromptsAndDecodesAreWhatEachIsAlone) {
  KernelDevice device = make_device();
  std::mt19937_64 random(15);
  for (const RecurrenceOp& op : ops(320, 37, random)) {
    std::vector<RecurrenceSequence> batch;
    for (int slot = 1; slot <= 40; ++slot) {
      const int rows = slot % 3 == 0 ? 1 : 1 + slot * 37 % 150;
      batch.push_back({op.inputs(rows, random), op.start(random), slot});
    }
    expect_as_alone(device, op, batch, 7);
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ChannelScanTest);
RECURVE_ON_CUDA(ChannelScanTest);

std::vector<Case> cases(const std::vector<DeviceUnderTest>& devices) {
  std::vector<Case> all;
  for (const Family& family : families()) {
    for (const DeviceUnderTest& device : devices) {
      if (family.holds_rows && std::string_view(device.device).starts_with("cpu")) continue;
      all.push_back({family, device});
    }
  }
  return all;
}

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  return info.param.family.name + "_" + info.param.device.name;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RecurrenceTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AgainstReference);
INSTANTIATE_TEST_SUITE_P(Devices, RecurrenceTest, ::testing::ValuesIn(cases(devices_under_test())),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Devices, AgainstReference,
                         ::testing::ValuesIn(cases(devices_under_test())), name_of_case);
INSTANTIATE_TEST_SUITE_P(Reference, RecurrenceTest,
                         ::testing::ValuesIn(cases({{"reference", 1, 0, "reference"}})),
                         name_of_case);
#if RECURVE_CUDA
INSTANTIATE_TEST_SUITE_P(Cuda, RecurrenceTest,
                         ::testing::ValuesIn(cases({{"cuda:0", 1, 0, "cuda"}})), name_of_case);
INSTANTIATE_TEST_SUITE_P(Cuda, AgainstReference,
                         ::testing::ValuesIn(cases({{"cuda:0", 1, 0, "cuda"}})), name_of_case);
#endif

}  // namespace recurve::testing::recurrence_test
