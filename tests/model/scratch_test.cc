// The scratch of kernels is known before it is allocated: what ops say of it, counted in a dry run,
// against what they have allocated after steps of a real model.
#include <gtest/gtest.h>

#include <thread>

#include "kernels/dry_run_backend.h"
#include "tests/support/adapter_writer.h"
#include "tests/support/counted_memory.h"
#include "tests/support/engine/model_runner.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::scratch_test {

constexpr int kRows = 200, kSequences = 3, kThreads = 2;
// Of tables that have nothing to do with scratch: pages of slots, say.
constexpr int64_t kSlack = 8 << 10;

struct ScratchCase {
  ModelCase model;
  WeightFormats weights;
  std::string name;
  ActivationType narrowest = ActivationType::kF32;
  bool adapters = false;  // all rows have one
};

std::vector<ScratchCase> cases() {
  std::vector<ScratchCase> all;
  for (const ModelCase& model : model_cases()) {
    std::string name = model.directory;
    std::ranges::replace(name, '/', '_');
    all.push_back({model, model.weights, name});
    all.push_back({model, model.weights, name + "_adapters", ActivationType::kF32, true});
    for (const char* format : {"int8", "int4"}) {
      all.push_back({model, WeightFormats::named(format), name + "_" + format});
    }
    all.push_back({model, WeightFormats::named("bf16"), name + "_x_bf16", ActivationType::kBF16});
    all.push_back({model, WeightFormats::named("int4"), name + "_x_int8", ActivationType::kInt8});
  }
  return all;
}

// What stays allocated after a prompt and single rows. On a new thread, as scratch belongs to the
// threads that compute: this one, and those of the runner's backend.
int64_t allocated_by_steps(const ScratchCase& c) {
  int64_t bytes = 0;
  std::thread([&] {
    ModelRunner runner(golden_dir() / c.model.directory, c.weights, "cpu", 0, kThreads, DType::kF32,
                       false, c.narrowest);
    std::vector<StateSlot> slots;
    std::vector<ModelRunner::Part> singles;
    AdapterPtr adapter;
    if (c.adapters && !runner.targets().tensors().empty()) {
      const TempDir folder;
      AdapterWriter::of_all(runner.targets(), 3, 1, false).write(folder.path());
      adapter = runner.load_adapter(folder.path());
      runner.plan_adapters();
    }
    for (int i = 0; i < kSequences; ++i) slots.push_back(*runner.pool().acquire());
    for (const StateSlot& slot : slots) singles.push_back({&slot, {1}, adapter});
    const std::vector<ModelRunner::Part> prompt = {
        {slots.data(), std::vector<int32_t>(kRows, 1), adapter}};
    const int64_t before = live_bytes;
    runner.forward(prompt);
    runner.forward(singles);
    bytes = live_bytes - before;
  }).join();
  return bytes;
}

int64_t counted_in_a_dry_run(const ScratchCase& c) {
  const auto real = make_backend("cpu", kThreads, c.narrowest);
  DryRunBackend dry_run(*real);
  std::shared_ptr<const AdapterTargets> targets;
  const auto model = ModelRunner::load(golden_dir() / c.model.directory, c.weights, dry_run, 0,
                                       DType::kF32, false, &targets);
  const auto stream = dry_run.make_stream();
  AdapterRows adapters(*targets, dry_run, kRows);
  if (c.adapters) stream->set_adapters(adapters.largest(kRows));
  const StatePool pool(dry_run, model->state_layout(), kSequences, *stream, nullptr,
                       {.pages = 64, .most_tokens = kAttentionPart});
  Arena arena(dry_run, model->arena_bytes({.rows = kRows, .logits = kRows}));
  model->forward(
      {.seqs = {.num_seqs = kSequences, .rows = kRows, .max_len = kRows}, .num_logits = kRows},
      pool, arena, *stream, nullptr);
  return static_cast<int64_t>(dry_run.take_scratch());
}

class ScratchTest : public ::testing::TestWithParam<ScratchCase> {};

TEST_P(ScratchTest, IsCountedBeforeItIsAllocated) {
  if (const std::string why = why_unusable("cpu"); !why.empty()) GTEST_SKIP() << why;
  const int64_t allocated = allocated_by_steps(GetParam());
  const int64_t counted = counted_in_a_dry_run(GetParam());
  EXPECT_LE(allocated, counted + kSlack);
  EXPECT_LE(counted, 4 * allocated + kSlack);
}

INSTANTIATE_TEST_SUITE_P(Models, ScratchTest, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace recurve::testing::scratch_test
