// What a sequence gives depends on the sequence alone: to the bit, over families and devices. The
// engine's invariants (tests/server/engine) see the same from further up, on machines with gRPC.
#include <gtest/gtest.h>

#include <map>

#include "tests/support/engine/model_runner.h"
#include "tests/support/kernels/compare.h"

namespace recurve::testing::batching_test {

using Param = std::tuple<ModelCase, std::string /* device */>;
using Floats = std::vector<float>;

std::vector<int32_t> some_tokens(size_t count, int32_t seed, int64_t vocab) {
  std::vector<int32_t> tokens;
  for (size_t t = 0; t < count; ++t) {
    tokens.push_back(
        static_cast<int32_t>((int64_t{seed} * 131 + static_cast<int64_t>(t) * 7919) % vocab));
  }
  return tokens;
}

// The logits of a sequence's rows and the state it leaves.
struct Outcome {
  Floats logits;
  StateBytes state;
};

void expect_same_bits(const Outcome& found, const Outcome& wanted, const std::string& what) {
  EXPECT_TRUE(bit_equal(found.logits, wanted.logits)) << what << ": logits";
  EXPECT_TRUE(found.state == wanted.state) << what << ": state";
}

class BatchingTest : public ::testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    const auto& [model_case, device] = GetParam();
    if (const std::string why = why_unusable(model_case, device); !why.empty()) GTEST_SKIP() << why;
    runner_ = std::make_unique<ModelRunner>(model_case, device);
  }
  ModelRunner& runner() { return *runner_; }
  size_t vocab() { return static_cast<size_t>(runner().model().info().vocab); }
  std::vector<int32_t> tokens(size_t count, int32_t seed) {
    return some_tokens(count, seed, static_cast<int64_t>(vocab()));
  }

  // The tokens in parts of the given sizes, one call each, in a new slot.
  Outcome alone(const std::vector<int32_t>& tokens, const std::vector<size_t>& sizes) {
    const StateSlot slot = *runner().pool().acquire();
    Floats logits;
    auto at = tokens.begin();
    for (const size_t size : sizes) {
      const auto end = at + static_cast<ptrdiff_t>(size);
      const Floats part = runner().forward({{&slot, {at, end}}});
      logits.insert(logits.end(), part.begin(), part.end());
      at = end;
    }
    return {logits, state_in(runner().pool(), slot)};
  }

  std::unique_ptr<ModelRunner> runner_;
};

// The grid is 64 in the golden checkpoints.
TEST_P(BatchingTest, CutsOnTheGridChangeNothing) {
  const std::vector<int32_t> prompt = tokens(150, 1);
  const Outcome whole = alone(prompt, {150});
  for (const std::vector<size_t>& sizes :
       std::vector<std::vector<size_t>>{{64, 64, 22}, {128, 22}, {64, 86}}) {
    expect_same_bits(alone(prompt, sizes), whole, std::to_string(sizes.size()) + " parts");
  }
}

// Decodes and prompts in one call, in other slots than when alone.
TEST_P(BatchingTest, NeighboursAndSlotsChangeNothing) {
  const std::vector<size_t> lengths = {1, 100, 65, 1, 2};
  std::vector<std::vector<int32_t>> prompts;
  std::vector<Outcome> wanted;
  for (size_t b = 0; b < lengths.size(); ++b) {
    prompts.push_back(tokens(lengths[b], static_cast<int32_t>(b)));
    wanted.push_back(alone(prompts[b], {lengths[b]}));
  }
  std::vector<StateSlot> slots;
  for (size_t b = 0; b < lengths.size(); ++b) slots.push_back(*runner().pool().acquire());
  std::vector<ModelRunner::Part> parts;
  for (const size_t b : {2, 0, 4, 1, 3}) parts.push_back({&slots[b], prompts[b]});
  const Floats logits = runner().forward(parts);
  auto at = logits.begin();
  for (const size_t b : {2, 0, 4, 1, 3}) {
    const auto end = at + static_cast<ptrdiff_t>(lengths[b] * vocab());
    expect_same_bits({{at, end}, state_in(runner().pool(), slots[b])}, wanted[b],
                     "sequence of " + std::to_string(lengths[b]));
    at = end;
  }
}

std::string name_of_case(const ::testing::TestParamInfo<BatchingTest::ParamType>& info) {
  std::string name = std::get<0>(info.param).directory + "_" + std::get<1>(info.param);
  for (char& c : name) c = c == '/' || c == ':' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Families, BatchingTest,
                         ::testing::Combine(::testing::ValuesIn(model_cases()),
                                            ::testing::ValuesIn(all_devices())),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(HeldRows, BatchingTest,
                         ::testing::Combine(::testing::ValuesIn(held_model_cases()),
                                            ::testing::ValuesIn(holding_devices())),
                         name_of_case);

}  // namespace recurve::testing::batching_test
