#include "server/startup/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "kernels/dry_run_backend.h"
#include "model/load_model.h"
#include "server/object_store/remote_sessions.h"
#include "server/startup/engine_options.h"
#include "server/startup/model_list.h"

namespace recurve::memory_plan_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kGiB = size_t{1} << 30;

// 10 GiB of weights, 1 GiB a state, 0.25 GiB a slot for the rest, 1 GiB kept back.
MemoryPlan plan_with(size_t free) {
  return {.free = free,
          .host_free = 100 * kGiB,
          .weights = 10 * kGiB,
          .state = kGiB,
          .reserve = kGiB,
          .steps = [](int slots) {
            return StepMemory{.buffers = static_cast<size_t>(slots) * kGiB / 4};
          }};
}

Options options_with(int slots, const char* device) {
  Options options;
  options.slots = slots;
  options.device = device;
  return options;
}

std::string refusal(const Options& options, const MemoryPlan& plan) {
  try {
    choose_slots(options, plan);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(MemoryPlanTest, MostSlotsAreThoseThatFitAndOneMoreDoesNot) {
  for (const size_t free : {13 * kGiB, 14 * kGiB, 20 * kGiB, 137 * kGiB, 1000 * kGiB}) {
    const MemoryPlan plan = plan_with(free);
    const int most = plan.most_slots(500);
    if (most > 0) {
      EXPECT_LE(plan.total(most), free);
    }
    if (most < 500) {
      EXPECT_GT(plan.total(most + 1), free);
    }
  }
  // 12 + 1.25 slots <= 137
  EXPECT_EQ(plan_with(137 * kGiB).most_slots(500), 100);
  EXPECT_EQ(plan_with(137 * kGiB).most_slots(64), 64);
  EXPECT_EQ(plan_with(13 * kGiB).most_slots(500), 0);
}

TEST(MemoryPlanTest, AutomaticSlotsFillAGpuAndAreFewElsewhere) {
  EXPECT_EQ(choose_slots(options_with(0, "cuda:0"), plan_with(137 * kGiB)), 100);
  EXPECT_EQ(choose_slots(options_with(0, "cuda:0"), plan_with(1000 * kGiB)), kMaxSlotsOfGpu);
  EXPECT_EQ(choose_slots(options_with(0, "cpu"), plan_with(137 * kGiB)), kMaxSlotsOfHost);
  EXPECT_EQ(choose_slots(options_with(0, "cpu"), plan_with(17 * kGiB)), 4);
  EXPECT_EQ(choose_slots(options_with(77, "cuda:0"), plan_with(137 * kGiB)), 77);
}

// Of a model behind the first there are none: its sessions are not in the store.
TEST(MemoryPlanTest, StatesOnTheirWayToAStoreArePlanned) {
  Options options = options_with(1, "reference");
  options.model = std::string(RECURVE_SOURCE_DIR) + "/tests/golden/xlstm/single";
  const auto backend = make_backend("reference");
  EXPECT_EQ(plan_memory(options, *backend).transfers, 0);
  const size_t without = plan_memory(options, *backend).total(1);
  options.state_store = "s3://bucket/states";
  const MemoryPlan plan = plan_memory(options, *backend);
  EXPECT_EQ(plan.transfers, 2 * kStoreThreads * plan.state);
  EXPECT_EQ(plan.total(1), without + plan.transfers);
  EXPECT_THAT(plan.arithmetic(1), HasSubstr("+ states to and from the store 0.00"));
  EXPECT_EQ(plan.prefix_transfers, 0);
  options.prefix_store = 1 << 30;
  const MemoryPlan with_prefixes = plan_memory(options, *backend);
  EXPECT_GE(with_prefixes.prefix_transfers, 3 * plan.state) << "read, opened and sealed";
  EXPECT_EQ(with_prefixes.total(1), plan.total(1) + with_prefixes.prefix_transfers);
  options.sharing = {.index = 1, .count = 2};
  EXPECT_EQ(plan_memory(options, *backend).transfers, 0);
  EXPECT_EQ(transfer_bytes(int64_t{100} << 20), int64_t{256} << 20) << "no more";
  EXPECT_EQ(transfer_bytes(int64_t{1} << 30), int64_t{2} << 30) << "but one state always";
}

// The same as plan_with(), and 1 MiB a page; the model has a context of 6,400 tokens.
MemoryPlan growing_with(size_t free) {
  MemoryPlan plan = plan_with(free);
  plan.page = size_t{1} << 20;
  plan.most_tokens = 6400;
  return plan;
}

TEST(MemoryPlanTest, AdaptersAreInTheMemoryOfTheDevice) {
  for (const bool on_host : {true, false}) {
    MemoryPlan plan = plan_with(100 * kGiB);
    plan.on_host = on_host;
    const size_t before = plan.total(4);
    plan.adapters = 3 * kGiB;
    EXPECT_EQ(plan.total(4), before + 3 * kGiB);
    EXPECT_EQ(plan.of_host(), 0);
    EXPECT_THAT(plan.arithmetic(4), HasSubstr(" + adapters 3.00"));
  }
}

TEST(MemoryPlanTest, PagesTakeWhatRemainsOnAGpuAndAnEighthOnTheHost) {
  constexpr size_t kMiB = size_t{1} << 20;
  MemoryPlan plan = growing_with(100 * kGiB);  // 16 slots: 12 + 1.25 x 16 = 32
  plan.on_host = false;
  plan_pages(options_with(16, "cuda:0"), 16, &plan);
  EXPECT_EQ(plan.pages, 16 * 100 * kMiB) << "no more than all slots can use";
  EXPECT_EQ(plan.preempted, plan.pages);
  plan.most_tokens = 1 << 20;
  plan_pages(options_with(16, "cuda:0"), 16, &plan);
  EXPECT_EQ(plan.pages, 68 * kGiB);
  EXPECT_EQ(plan.total(16), 100 * kGiB);
  EXPECT_EQ(plan.preempted, 50 * kGiB - (size_t{32} << 20)) << "half of the host";
  EXPECT_THAT(plan.arithmetic(16), HasSubstr("+ pages 68.00"));

  plan = growing_with(100 * kGiB);
  plan.most_tokens = 1 << 20;
  plan_pages(options_with(16, "cpu"), 16, &plan);
  EXPECT_EQ(plan.pages, 68 * kGiB / 8);
  EXPECT_EQ(plan.total(16), 32 * kGiB + 2 * plan.pages);
  EXPECT_EQ(plan.page_limits().pages, 8704);
  EXPECT_EQ(plan.page_limits().most_tokens, 1 << 20);
}

TEST(MemoryPlanTest, PagesThatDoNotFitOrAreTooFewAreRefused) {
  const auto refused = [](uint64_t kv_memory, MemoryPlan plan) -> std::string {
    Options options = options_with(16, "cpu");
    options.kv_memory = kv_memory;
    try {
      plan_pages(options, 16, &plan);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused(34 * kGiB, growing_with(100 * kGiB)), "");
  EXPECT_THAT(refused(35 * kGiB, growing_with(100 * kGiB)),
              AllOf(HasSubstr("+ pages 35.00"), HasSubstr("+ preempted 35.00"),
                    HasSubstr("--kv-memory 36507222016 or less fits")));
  EXPECT_THAT(refused(15 << 20, growing_with(100 * kGiB)),
              HasSubstr("each of 16 slots needs a page of 1048576 bytes: --kv-memory 16777216"));
  EXPECT_THAT(refused(kGiB, plan_with(100 * kGiB)), HasSubstr("does not have: leave it out"));
}

TEST(MemoryPlanTest, RefusalsShowTheArithmeticAndWhatFits) {
  EXPECT_THAT(refusal(options_with(101, "cuda:3"), plan_with(137 * kGiB)),
              AllOf(HasSubstr("device 'cuda:3'"), HasSubstr("weights 10.00"),
                    HasSubstr("states (101 + 1) x 1.0000 = 102.00"),
                    HasSubstr("sampling 25.25 = 138.25 GiB"), HasSubstr("137.00 GiB are free"),
                    HasSubstr("--slots 100 fits")));
  EXPECT_THAT(refusal(options_with(1000000, "cpu"), plan_with(137 * kGiB)),
              AllOf(HasSubstr("before activations"), HasSubstr("--slots 100 fits")));
  EXPECT_THAT(refusal(options_with(0, "cuda:0"), plan_with(9 * kGiB)),
              HasSubstr("not even --slots 1 fits"));
}

TEST(MemoryPlanTest, WeightsAreMappedWhereTheyTakeMoreThanHalfOfTheMemory) {
  for (const auto& [wanted, weights, maps] : {std::tuple{MapWeights::kAuto, 5 * kGiB, false},
                                              {MapWeights::kAuto, 5 * kGiB + 1, true},
                                              {MapWeights::kOn, kGiB, true},
                                              {MapWeights::kOff, 9 * kGiB, false}}) {
    EXPECT_EQ(choose_mapping(wanted, weights, 10 * kGiB), maps) << weights;
  }
}

// They are not in the sums, and stay in memory next to what the server sizes itself.
TEST(MemoryPlanTest, MappedWeightsAreCountedApart) {
  Options options = options_with(16, "cpu");
  MemoryPlan plan = plan_with(100 * kGiB);  // 16 slots: 12 + 1.25 x 16 = 32
  plan.mapped = 20 * kGiB;
  EXPECT_EQ(plan.total(16), 32 * kGiB);
  EXPECT_THAT(plan.arithmetic(16),
              HasSubstr("100.00 GiB are free, for 20.00 of mapped weights too"));
  plan_sessions(options, 16, &plan);
  EXPECT_EQ(plan.sessions, (68 - 20) * kGiB / 2);
  plan_prefixes(options, 16, &plan);
  EXPECT_EQ(plan.prefixes, plan.sessions + (44 - 20) * kGiB / 4);
  plan.mapped = 90 * kGiB;
  plan_sessions(options, 16, &plan);
  EXPECT_EQ(plan.sessions, 68 * kGiB / 4 / 2) << "a quarter of what remains without them";
  options.session_memory = 60 * kGiB;
  plan_sessions(options, 16, &plan);
  EXPECT_EQ(plan.sessions, 60 * kGiB) << "as it was set";

  plan = growing_with(100 * kGiB);
  plan.most_tokens = 1 << 20;
  plan.mapped = 20 * kGiB;
  plan_pages(options_with(16, "cpu"), 16, &plan);
  EXPECT_EQ(plan.pages, (68 - 20) * kGiB / 8);
}

TEST(MemoryPlanTest, WhatIsPlannedToBeMappedIsMapped) {
  Options options = options_with(3, "reference");
  options.model = std::string(RECURVE_SOURCE_DIR) + "/tests/golden/weight_formats/int4/qwen3_5";
  const auto backend = make_backend("reference");
  options.map_weights = MapWeights::kOff;
  const MemoryPlan copied = plan_memory(options, *backend);
  EXPECT_EQ(copied.mapped, 0u);
  options.map_weights = MapWeights::kOn;
  const MemoryPlan plan = plan_memory(options, *backend);
  EXPECT_GT(plan.mapped, 0u);
  EXPECT_EQ(plan.weights + plan.mapped, copied.weights);
  const size_t before = backend->allocated();
  Checkpoint checkpoint = open_checkpoint(options);
  checkpoint.map_weights();
  const auto loaded = load_model(checkpoint, *backend, load_options(options));
  EXPECT_EQ(backend->allocated() - before, plan.weights);
  EXPECT_EQ(checkpoint.mapped_bytes(), plan.mapped);
}

// Where the model is on the host too, it has gone from what the host has.
TEST(MemoryPlanTest, SessionsHaveHalfOfWhatIsLeft) {
  MemoryPlan plan = plan_with(100 * kGiB);  // 16 slots: 12 + 1.25 x 16 = 32
  plan_sessions(options_with(16, "cpu"), 16, &plan);
  EXPECT_EQ(plan.sessions, 34 * kGiB);
  EXPECT_EQ(plan.total(16), 66 * kGiB);
  EXPECT_THAT(plan.arithmetic(16), HasSubstr("+ sessions and prefixes 34.00"));

  plan = plan_with(100 * kGiB);
  plan.on_host = false;
  plan_sessions(options_with(16, "cuda:0"), 16, &plan);
  EXPECT_EQ(plan.sessions, 50 * kGiB - (size_t{32} << 20));
  EXPECT_EQ(plan.total(16), 32 * kGiB) << "of the device";
}

TEST(MemoryPlanTest, SessionsThatDoNotFitAreRefused) {
  for (const char* device : {"cpu", "cuda:0"}) {
    Options options = options_with(16, device);
    MemoryPlan plan = plan_with(100 * kGiB);
    plan.on_host = !options.on_gpu();
    options.session_memory = 60 * kGiB;
    plan_sessions(options, 16, &plan);
    EXPECT_EQ(plan.sessions, 60 * kGiB);
    options.session_memory = 120 * kGiB;
    try {
      plan_sessions(options, 16, &plan);
      ADD_FAILURE() << device;
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("--session-memory 120.00"),
                                      HasSubstr("100.00 GiB are free"), HasSubstr("or less fits")));
    }
  }
}

// Sessions and states of prompts share the larger of the two: that alone is planned.
TEST(MemoryPlanTest, StatesOfPromptsHaveAQuarterOfWhatIsLeftAndWhatSessionsLeave) {
  Options options = options_with(16, "cpu");
  MemoryPlan plan = plan_with(100 * kGiB);
  plan_sessions(options, 16, &plan);
  const size_t left = 100 * kGiB - plan.total(16), sessions = plan.sessions;
  plan_prefixes(options, 16, &plan);
  const size_t own = std::min(left / 4, kMaxPrefixStates * plan.state);
  EXPECT_EQ(plan.prefixes, sessions + own);
  EXPECT_EQ(plan.total(16), 100 * kGiB - left + own);
  options.prefix_memory = 0;
  plan_prefixes(options, 16, &plan);
  EXPECT_EQ(plan.prefixes, 0u);
  options.prefix_memory = sessions;
  plan_prefixes(options, 16, &plan);
  EXPECT_EQ(plan.total(16), 100 * kGiB - left);
  options.prefix_memory = sessions + left;
  plan_prefixes(options, 16, &plan);
  EXPECT_EQ(plan.total(16), 100 * kGiB);
  options.prefix_memory = sessions + left + kGiB;
  try {
    plan_prefixes(options, 16, &plan);
    ADD_FAILURE();
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("--prefix-memory"), HasSubstr("or less fits")));
  }
}

// Notes what is really allocated, of an engine and a model on the reference backend.
TEST(MemoryPlanTest, WhatIsPlannedIsWhatIsTaken) {
  const std::string golden = std::string(RECURVE_SOURCE_DIR) + "/tests/golden/";
  for (const char* model :
       {"xlstm/single", "mamba/hf", "mamba2/groups", "gla/retnet", "xlstm_blocks/vanilla",
        "rnn/slstm", "rwkv7/heads", "delta_net/gated_groups", "recurrent_gemma/pattern"}) {
    Options options = options_with(3, "reference");
    options.model = golden + model;
    const auto backend = make_backend("reference");
    const MemoryPlan plan = plan_memory(options, *backend);
    const size_t before = backend->allocated();
    Checkpoint checkpoint = open_checkpoint(options);
    const auto loaded = load_model(checkpoint, *backend, load_options(options));
    EXPECT_EQ(backend->allocated() - before, plan.weights) << model;
    AdmissionQueue queue(1);
    PublishedStats stats;
    EngineMetrics metrics;
    const auto vocab = static_cast<int32_t>(loaded->info().vocab);
    const Engine engine(*loaded, *backend, {.rows = vocab, .usable = vocab, .eos_ids = {}}, queue,
                        stats, metrics, engine_options(options, 3, 0));
    EXPECT_EQ(backend->allocated() - before + plan.reserve + plan.constraints,
              plan.total(3) - plan.steps(3).scratch)
        << model;
  }
}

TEST(MemoryPlanTest, ScratchOfEachThreadIsPlannedAndShown) {
  Options options = options_with(3, "cpu");
  options.model = std::string(RECURVE_SOURCE_DIR) + "/tests/golden/qwen3_5_moe/pattern";
  const MemoryPlan one = plan_memory(options, *make_backend("cpu", 1));
  const MemoryPlan four = plan_memory(options, *make_backend("cpu", 4));
  EXPECT_GT(one.steps(3).scratch, 0u);
  EXPECT_GT(four.steps(3).scratch, one.steps(3).scratch);
  EXPECT_EQ(four.steps(3).buffers, one.steps(3).buffers);
  EXPECT_EQ(four.total(3) - one.total(3), four.steps(3).scratch - one.steps(3).scratch);
  EXPECT_THAT(one.arithmetic(3), HasSubstr(" + scratch of kernels 0.0"));
}

TEST(MemoryPlanTest, WhatIsPlannedForPagesIsWhatIsTaken) {
  for (const char* model : {"qwen3_5/pattern", "qwen3_next/bf16", "granite_hybrid/groups",
                            "granite_hybrid/experts", "nemotron_h/groups", "falcon_h1/pattern"}) {
    Options options = options_with(3, "reference");
    options.model = std::string(RECURVE_SOURCE_DIR) + "/tests/golden/" + model;
    options.kv_memory = 1 << 20;
    const auto backend = make_backend("reference");
    MemoryPlan plan = plan_memory(options, *backend);
    plan_pages(options, 3, &plan);
    const size_t before = backend->allocated();
    Checkpoint checkpoint = open_checkpoint(options);
    const auto loaded = load_model(checkpoint, *backend, load_options(options));
    AdmissionQueue queue(1);
    PublishedStats stats;
    EngineMetrics metrics;
    const auto vocab = static_cast<int32_t>(loaded->info().vocab);
    const Engine engine(*loaded, *backend, {.rows = vocab, .usable = vocab, .eos_ids = {}}, queue,
                        stats, metrics, engine_options(options, 3, 0, 0, plan.page_limits()));
    EXPECT_EQ(stats.read().pages, static_cast<int64_t>(plan.pages / plan.page));
    EXPECT_EQ(backend->allocated() - before + plan.reserve + plan.constraints + plan.preempted,
              plan.total(3) - plan.steps(3).scratch)
        << model;
  }
}

// Two models of a folder, on one backend each.
struct TwoModels {
  explicit TwoModels(Options options) {
    options.models = {{.name = "a", .path = options.model}, {.name = "b", .path = options.model}};
    models = options_of_models(options);
    for (int i = 0; i < 2; ++i) backends.push_back(make_backend("cpu", 1));
  }
  std::vector<PlannedModel> plan() const { return plan_models(models, backends); }
  std::vector<Options> models;
  std::vector<std::unique_ptr<Backend>> backends;
};

Options of_golden() {
  Options options = options_with(2, "cpu");
  options.model = std::string(RECURVE_SOURCE_DIR) + "/tests/golden/xlstm/single";
  return options;
}

TEST(MemoryPlanTest, SeveralModelsArePlannedInSum) {
  const TwoModels two(of_golden());
  const std::vector<PlannedModel> planned = two.plan();
  for (int i = 0; i < 2; ++i) {
    const MemoryPlan& plan = planned[i].plan;
    const MemoryPlan& other = planned[1 - i].plan;
    EXPECT_EQ(planned[i].slots, 2);
    EXPECT_EQ(plan.others, other.total(2) - other.others);
    EXPECT_LE(plan.total(2), plan.free);
    EXPECT_THAT(plan.arithmetic(2), HasSubstr("other models"));
  }
  // Each has half of what one would have.
  const double part =
      static_cast<double>(planned[0].plan.sessions) / static_cast<double>(planned[1].plan.sessions);
  EXPECT_NEAR(part, 1, 0.01);
}

TEST(MemoryPlanTest, ASizeThatIsGivenComesBeforeThoseThatAreChosen) {
  TwoModels two(of_golden());
  const size_t free = two.plan()[0].plan.host_free;
  two.models[1].session_memory = free / 100 * 85;
  const std::vector<PlannedModel> planned = two.plan();
  EXPECT_EQ(planned[1].plan.sessions, two.models[1].session_memory);
  EXPECT_GT(planned[0].plan.sessions, 0u);
  EXPECT_LE(planned[0].plan.total(2), planned[0].plan.free);
}

TEST(MemoryPlanTest, ASecondModelThatDoesNotFitIsRefusedWithTheSum) {
  Options options = of_golden();
  TwoModels two(options);
  two.models[1].slots = 1 << 24;
  try {
    two.plan();
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("model \"b\": not enough memory on device 'cpu': "
                                              "other models"),
                                    HasSubstr("GiB are free")));
  }
}

}  // namespace recurve::memory_plan_test
