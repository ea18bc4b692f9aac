// What a request gives depends on the request alone: to the bit, over families and backends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/support/engine/engine_harness.h"
#include "tests/support/engine/model_runner.h"
#include "tests/support/engine/timed_model.h"

namespace recurve::testing::invariants_test {

using Param = std::tuple<ModelCase, std::string /* device */>;
using Kind = SessionCommand::Kind;

// Around the edges of the chunk grid, which is 64 in the golden checkpoints.
constexpr size_t kLengths[] = {1, 63, 64, 65, 128, 150};
constexpr int kTokens = 5;

class Invariants : public ::testing::TestWithParam<Param> {
 protected:
  using Answers = std::vector<std::vector<TokenBits>>;
  struct AnswersAlone {
    Answers all_lengths, talk;  // see all_lengths_alone and quiet_talk
  };

  static LoadedModel& loaded() {
    const auto& [model_case, device] = GetParam();
    return loaded_model(model_case, device);
  }
  // Of this model, computed once.
  static AnswersAlone& known_answers() {
    static std::map<const Model*, AnswersAlone> all;
    return all[&model()];
  }
  static const Model& model() { return *loaded().model; }

  void SetUp() override {
    const auto& [model_case, device] = GetParam();
    const std::string why = why_unusable(model_case, device);
    if (!why.empty()) GTEST_SKIP() << why;
  }

  // The reference's steps are launched ahead, as those of devices that work on their own.
  static EngineHarness engine(int slots, int rows_per_step = 0) {
    HarnessOptions options;
    options.slots = slots;
    options.rows_per_step = rows_per_step;
    options.launch_ahead = std::get<1>(GetParam()) != "cpu";
    return EngineHarness(model(), *loaded().backend, options);
  }

  // Number `seed` of the requests: greedy and drawn ones in turn, with log-probabilities.
  static Request request(size_t length, uint64_t seed, const std::string& session = "") {
    Request request{.session = session};
    request.prompt = some_prompt(length, seed, static_cast<int32_t>(model().info().vocab));
    request.sampling.temperature = seed % 2 ? 0.9f : 0.0f;
    request.sampling.repetition_penalty = seed % 3 ? 1.0f : 1.2f;
    request.sampling.seed = 1000 + seed;
    request.sampling.max_tokens = kTokens;
    request.sampling.logprobs = 2;
    return request;
  }
  static std::vector<Request> all_lengths() {
    std::vector<Request> requests;
    for (const size_t length : kLengths) requests.push_back(request(length, length));
    return requests;
  }

  // What an engine of its own says to each.
  static Answers alone(const std::vector<Request>& requests) {
    Answers bits;
    for (const Request& request : requests) bits.push_back(engine(1).ask(request)->bits());
    return bits;
  }
  // Asked once for all tests of a model, as the next is.
  static const Answers& all_lengths_alone() {
    Answers& answers = known_answers().all_lengths;
    if (answers.empty()) answers = alone(all_lengths());
    return answers;
  }

  // A talk of several turns on one session, in a separate engine.
  static std::vector<Request> talk(const std::string& session) {
    return {request(65, 1, session), request(1, 2, session), request(64, 3, session),
            request(0, 4, session)};
  }
  static const Answers& quiet_talk() {
    Answers& turns = known_answers().talk;
    if (!turns.empty()) return turns;
    EngineHarness quiet = engine(1);
    quiet.open("s");
    for (const Request& turn : talk("s")) turns.push_back(quiet.ask(turn)->bits());
    return turns;
  }

  static void traffic(EngineHarness& harness, int requests, uint64_t seed) {
    for (int i = 0; i < requests; ++i) {
      harness.submit(request(1 + 37 * static_cast<size_t>(i), seed + static_cast<uint64_t>(i)));
    }
  }
};

TEST_P(Invariants, Scheduling) {
  struct Schedule {
    int slots, rows_per_step, steps_between;
    bool reversed;
  };
  const std::vector<Request> requests = all_lengths();
  const Answers& want = all_lengths_alone();
  for (const auto& [element, name] : std::vector<std::pair<Schedule, const char*>>{
           {{1, 0, 0, false}, "one after the other"},
           {{3, 0, 0, false}, "least rows"},
           {{6, 200, 0, true}, "three chunks a step, in reverse"},
           {{6, 1000, 0, false}, "all at once"},
           {{4, 0, 2, true}, "arriving one by one"}}) {
    EngineHarness harness = engine(element.slots, element.rows_per_step);
    std::vector<AnswerPtr> answers(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      const size_t at = element.reversed ? requests.size() - 1 - i : i;
      answers[at] = harness.submit(requests[at]);
      for (int s = 0; s < element.steps_between; ++s) harness.step();
    }
    harness.run_until_idle();
    for (size_t i = 0; i < requests.size(); ++i) {
      answers[i]->take();
      EXPECT_EQ(answers[i]->bits(), want[i]) << name << ", prompt of " << kLengths[i];
    }
  }
}

TEST_P(Invariants, Neighbours) {
  const Request target = request(150, 7);
  const auto want = alone({target})[0];
  for (const int neighbours : {1, 4}) {
    EngineHarness harness = engine(5, 260);
    traffic(harness, neighbours / 2, 100);
    harness.step();
    AnswerPtr answer = harness.submit(target);
    traffic(harness, neighbours - neighbours / 2, 200);
    harness.run_until_idle();
    answer->take();
    EXPECT_EQ(answer->bits(), want) << neighbours;
  }
}

// Where tenants share steps and a prompt takes longer than the decodes, it has separate steps.
TEST_P(Invariants, StepsOfPromptsApartFromDecodes) {
  const std::vector<Request> requests = all_lengths();
  Request decoding = request(1, 21);
  decoding.sampling.max_tokens = 100;
  decoding.caller.tenant = 1;
  const Answers& want = all_lengths_alone();
  const auto want_decoding = alone({decoding})[0];
  for (const bool apart : {false, true}) {
    const HeldClock held;
    const TimedModel timed(model(), [](const StepBatch& batch) {
      const int prompt_rows = batch.seqs.rows - batch.seqs.num_seqs;
      Clock::pass(std::chrono::microseconds(100 + 50 * prompt_rows));
    });
    EngineHarness harness(timed, *loaded().backend,
                          {.slots = 8,
                           .step_seconds = apart ? 0.03 : 0,
                           .launch_ahead = std::get<1>(GetParam()) != "cpu"});
    AnswerPtr decode = harness.submit(decoding);
    harness.step(3);
    std::vector<AnswerPtr> answers;
    for (Request of_another : requests) {
      of_another.caller.tenant = 2;
      answers.push_back(harness.submit(std::move(of_another)));
    }
    int without_decode = 0;  // steps
    for (decode->take(); !decode->ended(); decode->take()) {
      const size_t before = decode->tokens.size();
      harness.step();
      decode->take();
      if (decode->tokens.size() == before) ++without_decode;
    }
    harness.run_until_idle();
    for (size_t i = 0; i < requests.size(); ++i) {
      answers[i]->take();
      EXPECT_EQ(answers[i]->bits(), want[i]) << "prompt of " << kLengths[i] << ", apart " << apart;
    }
    EXPECT_EQ(decode->bits(), want_decoding) << "apart " << apart;
    EXPECT_EQ(without_decode > 2, apart) << without_decode << " steps";
  }
}

TEST_P(Invariants, CancelledNeighbour) {
  const Request target = request(128, 9);
  const auto want = alone({target})[0];
  for (const int steps : {0, 1, 2, 4}) {
    EngineHarness harness = engine(2);
    AnswerPtr neighbour = harness.submit(request(130, 50));
    AnswerPtr answer = harness.submit(target);
    for (int s = 0; s < steps; ++s) harness.step();
    neighbour->stream()->cancel();
    harness.run_until_idle();
    neighbour->take();
    ASSERT_EQ(neighbour->reason(), EndReason::kCancelled);
    answer->take();
    EXPECT_EQ(answer->bits(), want) << "after " << steps << " steps";
  }
}

TEST_P(Invariants, DirtySlots) {
  const Request target = request(65, 11);
  const auto want = alone({target})[0];
  EngineHarness harness = engine(1);
  harness.ask(request(100, 60));
  EXPECT_EQ(harness.ask(target)->bits(), want) << "after a request";
  AnswerPtr cancelled = harness.submit(request(100, 61));
  harness.step();
  cancelled->stream()->cancel();
  EXPECT_EQ(harness.ask(target)->bits(), want) << "after half a prompt";
  harness.open("s");
  harness.ask(request(30, 62, "s"));
  harness.command(Kind::kClose, "s");
  EXPECT_EQ(harness.ask(target)->bits(), want) << "after a session";
}

// A session that stays in its slot, and one that has to leave it before each turn.
TEST_P(Invariants, SessionContinues) {
  const Answers& want = quiet_talk();
  for (const bool moves : {false, true}) {
    EngineHarness harness = engine(moves ? 2 : 4);
    harness.open("s");
    const std::vector<Request> turns = talk("s");
    for (size_t t = 0; t < turns.size(); ++t) {
      traffic(harness, 2, 300 + 10 * t);
      AnswerPtr answer = harness.submit(turns[t]);
      harness.run_until_idle();
      answer->take();
      EXPECT_EQ(answer->bits(), want[t]) << "turn " << t << (moves ? ", moved" : "");
      traffic(harness, 2, 400 + 10 * t);
      harness.run_until_idle();
      ASSERT_EQ(harness.get("s").tier, moves ? Tier::kHost : Tier::kSlot);
    }
  }
}

// Of a session in its slot, in host memory, and of an empty one; the original goes on too.
TEST_P(Invariants, ForkThenContinue) {
  const Answers& want = quiet_talk();
  for (const size_t at : {0, 1, 2}) {
    for (const bool in_host : {false, true}) {
      EngineHarness harness = engine(2);
      harness.open("s");
      for (size_t t = 0; t < at; ++t) harness.ask(talk("s")[t]);
      if (in_host) {
        traffic(harness, 2, 500);
        harness.run_until_idle();
      }
      const Tier tier = at == 0 ? Tier::kEmpty : in_host ? Tier::kHost : Tier::kSlot;
      ASSERT_EQ(harness.get("s").tier, tier);
      harness.command(Kind::kFork, "s", "f");
      for (size_t t = at; t < want.size(); ++t) {
        AnswerPtr original = harness.submit(talk("s")[t]);
        AnswerPtr fork = harness.submit(talk("f")[t]);
        harness.run_until_idle();
        original->take(), fork->take();
        EXPECT_EQ(original->bits(), want[t]) << "original, turn " << t << ", forked at " << at;
        EXPECT_EQ(fork->bits(), want[t]) << "fork, turn " << t << ", forked at " << at;
      }
    }
  }
}

TEST_P(Invariants, RewindThenTheSameAgain) {
  const Answers& want = quiet_talk();
  EngineHarness harness = engine(1);
  harness.open("s");
  const auto say = [&](size_t from, size_t to) {
    for (size_t t = from; t < to; ++t) {
      EXPECT_EQ(harness.ask(talk("s")[t])->bits(), want[t]) << "turn " << t;
    }
  };
  harness.command(Kind::kMark, "s", "start");
  say(0, 2);
  harness.command(Kind::kMark, "s", "two");
  say(2, 4);
  for (int round = 0; round < 2; ++round) {
    harness.command(Kind::kRewind, "s", "two");
    say(2, 3);
    harness.ask(request(70, 71));  // takes the only slot
    say(3, 4);
  }
  harness.command(Kind::kRewind, "s", "start");
  say(0, 2);
}

// To each kind of token, with and without a mark before it, while others run.
TEST_P(Invariants, ARewindToAnyTokenIsATextThatEndsThere) {
  EngineHarness harness = engine(4);
  harness.command({.kind = Kind::kOpen, .name = "s", .rewind_tokens = 1000});
  const std::vector<Request> turns = talk("s");
  const Answers& want = quiet_talk();
  std::vector<int64_t> begins;
  for (size_t t = 0; t < turns.size(); ++t) {
    if (t == 2) harness.command(Kind::kMark, "s", "two");
    begins.push_back(harness.get("s").position);
    EXPECT_EQ(harness.ask(turns[t])->bits(), want[t]);
  }
  harness.command(Kind::kMark, "s", "end");
  const int64_t end = harness.get("s").position;
  const std::vector<int64_t> targets = {
      30,              // in the first prompt
      begins[1] - 2,   // in the first answer
      begins[1],       // where the second turn began
      begins[2] - 1,   // in the second answer
      begins[2] + 1,   // behind the token that was pending at the mark
      begins[2] + 40,  // in the third prompt
      begins[3] + 2,   // in the last answer
  };
  for (const int64_t target : targets) {
    SCOPED_TRACE(target);
    EngineHarness quiet = engine(1);
    quiet.open("s");
    for (size_t t = 0; t < turns.size() && begins[t] < target; ++t) {
      Request turn = turns[t];
      const bool pends = quiet.get("s").pending_token.has_value();
      const int64_t prompt = static_cast<int64_t>(turn.prompt.ids.size()) + pends;
      if (begins[t] + prompt >= target) {  // ends within it
        turn.prompt.ids.resize(static_cast<size_t>(target - begins[t]) - pends);
        turn.sampling.max_tokens = begins[t] + prompt == target ? 1 : 0;
      } else {
        turn.sampling.max_tokens =
            static_cast<int32_t>(std::min<int64_t>(target - begins[t] - prompt + 1, kTokens));
      }
      quiet.ask(turn);
    }
    traffic(harness, 2, 900);
    const int64_t absorbed_before = harness.stats().prompt_tokens;
    const SessionResult rewound =
        harness.command({.kind = Kind::kRewind, .name = "s", .position = target});
    ASSERT_EQ(rewound.reason, EndReason::kDone) << rewound.message;
    EXPECT_EQ(rewound.absorbed, target > begins[2] ? target - begins[2] : target);
    EXPECT_GE(harness.stats().prompt_tokens - absorbed_before, rewound.absorbed);
    const SessionInfo now = harness.get("s"), like = quiet.get("s");
    EXPECT_EQ(now.position, target);
    ASSERT_EQ(like.position, target);
    EXPECT_EQ(now.pending_token, like.pending_token);
    const Request next = request(now.pending_token ? 0 : 7, 5, "s");
    EXPECT_EQ(harness.ask(next)->bits(), quiet.ask(next)->bits());
    ASSERT_EQ(harness.command(Kind::kRewind, "s", "end").reason, EndReason::kDone);
    EXPECT_EQ(harness.get("s").position, end);
  }
}

// With a slot for each where the prompt ends, and where some of them have to wait for theirs.
TEST_P(Invariants, EachChoiceIsTheRequestWithItsSeed) {
  constexpr int kChoices = 3;
  Request target = request(65, 13);
  target.sampling.temperature = 20;  // or a model with random weights says one token only
  std::vector<Request> seeds(kChoices, target);
  for (int i = 0; i < kChoices; ++i) seeds[i].sampling.seed += i;
  const Answers want = alone(seeds);
  for (const int slots : {5, 3}) {
    EngineHarness harness = engine(slots);
    traffic(harness, 2, 600);
    std::vector<AnswerPtr> choices = harness.submit(target, kChoices);
    harness.run_until_idle();
    for (int i = 0; i < kChoices; ++i) {
      choices[i]->take();
      EXPECT_EQ(choices[i]->bits(), want[i]) << slots << " slots, choice " << i;
    }
    EXPECT_NE(choices[0]->ids(), choices[1]->ids()) << "or the test says nothing";
  }
}

TEST_P(Invariants, PromptLogprobs) {
  std::vector<Request> requests = all_lengths();
  for (Request& request : requests) request.sampling.prompt_logprobs = 3;
  Answers want;
  for (const Request& request : requests) want.push_back(engine(1).ask(request)->prompt_bits());
  EngineHarness harness = engine(4, 150);
  traffic(harness, 1, 700);
  std::vector<AnswerPtr> answers;
  for (const Request& request : requests) answers.push_back(harness.submit(request));
  harness.run_until_idle();
  const Answers& plain = all_lengths_alone();
  for (size_t i = 0; i < requests.size(); ++i) {
    answers[i]->take();
    ASSERT_EQ(want[i].size(), kLengths[i] - 1);
    for (size_t t = 0; t < want[i].size(); ++t) {
      ASSERT_EQ(want[i][t].id, requests[i].prompt.ids[t + 1]) << "token " << t;
    }
    EXPECT_EQ(answers[i]->prompt_bits(), want[i]) << "prompt of " << kLengths[i];
    EXPECT_EQ(answers[i]->bits(), plain[i]) << "scoring changes nothing that is generated";
  }
}

// The two forms are two float programs: each is within 2e-5 of the exact result (golden_test.cc),
// so they are within twice that of each other.
TEST_P(Invariants, ChunkFormAgainstStepForm) {
  constexpr double kTolerance = 4e-5;  // of the largest logit
  const auto& [model_case, device] = GetParam();
  if (device.starts_with("cuda")) GTEST_SKIP() << "rounds to bf16 in between";
  ModelRunner chunks(model_case, device), steps(model_case, device, 1);
  ASSERT_GT(chunks.model().info().chunk, 1);
  ASSERT_EQ(steps.model().info().chunk, 1);
  const std::vector<int32_t> ids = some_prompt(200, 5, static_cast<int32_t>(model().info().vocab));
  const StateSlot a = *chunks.pool().acquire(), b = *steps.pool().acquire();
  const std::vector<float> got = chunks.forward({{&a, ids}}), want = steps.forward({{&b, ids}});
  ASSERT_EQ(got.size(), want.size());
  double largest = 0, difference = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(std::isfinite(got[i]));
    largest = std::max(largest, std::abs(static_cast<double>(want[i])));
    difference = std::max(difference, std::abs(static_cast<double>(got[i]) - want[i]));
  }
  EXPECT_LE(difference, kTolerance * largest);
}

std::string name_of_case(const ::testing::TestParamInfo<Param>& info) {
  std::string name = std::get<0>(info.param).directory + "_" + test_name(std::get<1>(info.param));
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Families, Invariants,
                         ::testing::Combine(::testing::ValuesIn(model_cases()),
                                            ::testing::ValuesIn(all_devices())),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(HeldRows, Invariants,
                         ::testing::Combine(::testing::ValuesIn(held_model_cases()),
                                            ::testing::ValuesIn(holding_devices())),
                         name_of_case);

}  // namespace recurve::testing::invariants_test
