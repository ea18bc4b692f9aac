// What every implementation of the recurrences of Mamba keeps: close to the reference, and the same
// bits whatever the cut on the grid, the neighbours, the slots and the threads.
#include <gtest/gtest.h>

#include "tests/support/ssm_ops.h"

namespace recurve::testing {
namespace {

// Two float programs, each within 3e-5 of the exact sum (ssm_reference_test.cc).
constexpr Tolerance kTolerance = {.absolute = 6e-5, .relative = 6e-5};

// Sizes that fill vectors, leave rests, and are small.
std::vector<RecurrenceOp> ops(std::mt19937_64& random) {
  std::vector<RecurrenceOp> all;
  for (const ConvSize& c :
       {ConvSize{1, 2}, {40, 4}, {37, 4}, {19, 3, false}, {8, 2, true, false}}) {
    all.push_back(conv_op(c, random));
  }
  for (const ScanSize& c :
       {ScanSize{1, 1}, {7, 16, 8}, {40, 16, 16}, {5, 3, 8}, {4, 33, 8, false}}) {
    all.push_back(scan_op(c, random));
  }
  for (const SsdSize& c : {SsdSize{1, 1, 1},
                           {4, 8, 16, 1, 8},
                           {6, 5, 33, 3, 16},
                           {2, 16, 32, 2, 64},
                           {3, 7, 3, 1, 1},
                           {4, 4, 8, 2, 8, 0.1f, 0.3f}}) {
    all.push_back(ssd_op(c, random));
  }
  for (const LinearRecurrenceSize& c : {LinearRecurrenceSize{1}, {37, 8}, {64, 16}}) {
    all.push_back(linear_recurrence_op(c));
  }
  return all;
}

class SsmTest : public DeviceTest {};

TEST_P(SsmTest, MatchesTheReference) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(1);
  for (const RecurrenceOp& op : ops(random)) {
    for (const int L : {1, 2, 5, 16, 70}) {
      const std::vector<float> x = op.inputs(L, random), start = normal_floats(random, op.state);
      expect_close(run_alone(device, op, x, start), run_alone(reference, op, x, start), kTolerance,
                   op.name + " L " + std::to_string(L));
    }
  }
}

TEST_P(SsmTest, MatchesTheReferenceAtExtremeTimeSteps) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(2);
  constexpr float kNoLimit = std::numeric_limits<float>::infinity();
  for (const float dt : {-100.0f, -20.0f, 20.0f, 100.0f}) {
    for (const RecurrenceOp& op : {scan_op({20, 16, 8, true, dt, 1}, random),
                                   ssd_op({2, 16, 16, 1, 16, 0, kNoLimit, dt, 1}, random)}) {
      const std::vector<float> x = op.inputs(35, random), start = normal_floats(random, op.state);
      // Large steps put in large values.
      const float unit = std::max(1.0f, dt);
      expect_close(run_alone(device, op, x, start), run_alone(reference, op, x, start),
                   {.absolute = kTolerance.absolute * unit, .relative = kTolerance.relative},
                   op.name + " dt " + std::to_string(dt));
    }
  }
}

TEST_P(SsmTest, NanStaysWithItsTime) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(3);
  for (const RecurrenceOp& op : ops(random)) {
    const int L = 16, row = 9;
    for (const int column : {0, op.in / 3, op.in / 2, op.in - 1}) {
      std::vector<float> x = op.inputs(L, random);
      x[row * op.in + column] = NAN;
      const std::vector<float> start = normal_floats(random, op.state);
      const RecurrenceResult found = run_alone(device, op, x, start);
      const std::string what = op.name + " column " + std::to_string(column);
      expect_close(found, run_alone(reference, op, x, start), kTolerance, what);
      for (int i = 0; i < row * op.out; ++i) ASSERT_TRUE(std::isfinite(found.y[i])) << what;
    }
  }
}

TEST_P(SsmTest, AnySplitOnTheGridIsTheSame) {
  KernelDevice device = make_device();
  std::mt19937_64 random(4);
  for (const RecurrenceOp& op : ops(random)) {
    const int g = op.grid;
    const std::vector<float> x = op.inputs(5 * g + 3, random);
    const std::vector<float> start = normal_floats(random, op.state);
    const RecurrenceResult whole = run_alone(device, op, x, start);
    for (const std::vector<int>& sizes : std::vector<std::vector<int>>{
             {g, g, g, g, g, 3}, {2 * g, 3 * g + 3}, {5 * g, 3}, {g, 3 * g, g + 3}}) {
      expect_same_bits(run_split(device, op, x, start, sizes), whole,
                       op.name + ", " + std::to_string(sizes.size()) + " parts");
    }
  }
}

// A decode is the same whether its sequence brought one row or its chunk had one left.
TEST_P(SsmTest, AChunkOfOneRowIsAStep) {
  KernelDevice device = make_device();
  std::mt19937_64 random(5);
  const auto at = [&](int chunk) {
    std::mt19937_64 same(50);
    return std::vector<RecurrenceOp>{ssd_op({2, 16, 40, 1, chunk}, same),
                                     scan_op({40, 16, chunk}, same)};
  };
  for (size_t i = 0; i < 2; ++i) {
    const RecurrenceOp op = at(8)[i], step = at(1)[i];
    const std::vector<float> x = op.inputs(9, random), start = normal_floats(random, op.state);
    const RecurrenceResult whole = run_alone(device, op, x, start);
    const RecurrenceResult first = run_alone(device, op, {x.begin(), x.begin() + 8 * op.in}, start);
    const RecurrenceResult last =
        run_alone(device, step, {x.begin() + 8 * op.in, x.end()}, first.state);
    EXPECT_TRUE(bit_equal(last.state, whole.state)) << op.name;
    EXPECT_TRUE(bit_equal(last.y, std::span(whole.y).last(last.y.size()))) << op.name;
  }
}

// Decodes and prompts in one call, in any order and in any slots, are what each is alone.
TEST_P(SsmTest, NeighboursAndSlotsChangeNothing) {
  KernelDevice device = make_device();
  std::mt19937_64 random(6);
  for (const RecurrenceOp& op : ops(random)) {
    std::vector<RecurrenceSequence> batch;
    std::vector<RecurrenceResult> alone;
    for (const int L : {1, 37, 1, 16, 2, 1, 64}) {
      batch.push_back({op.inputs(L, random), normal_floats(random, op.state)});
      alone.push_back(run_alone(device, op, batch.back().x, batch.back().state));
    }
    std::vector<int> order = {0, 1, 2, 3, 4, 5, 6}, slots = {9, 1, 4, 7, 2, 0, 5};
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

// Large enough to be split over threads.
TEST_P(SsmTest, ThreadsChangeNothing) {
  KernelDevice device = make_device(), alone(GetParam().device, 1);
  std::mt19937_64 random(7);
  const std::vector<RecurrenceOp> large = {
      conv_op({1030, 4}, random), scan_op({500, 16, 32}, random),
      ssd_op({5, 40, 64, 1, 32}, random), ssd_op({1, 150, 64, 1, 32}, random),
      linear_recurrence_op({3000, 32})};
  for (const RecurrenceOp& op : large) {
    for (const int L : {1, 40}) {
      const std::vector<float> x = op.inputs(L, random), start = normal_floats(random, op.state);
      expect_same_bits(run_alone(device, op, x, start), run_alone(alone, op, x, start),
                       op.name + " L " + std::to_string(L));
    }
  }
}

RECURVE_ON_EACH_DEVICE(SsmTest);
INSTANTIATE_TEST_SUITE_P(Reference, SsmTest,
                         ::testing::Values(DeviceUnderTest{"reference", 1, 0, "reference"}),
                         name_of_device);

}  // namespace
}  // namespace recurve::testing
