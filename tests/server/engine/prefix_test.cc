// A prompt that begins with the state of another one gives the tokens of one that was absorbed from
// its first token on, to the bit: against an engine that keeps no such states.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/amount.h"
#include "tests/support/engine/engine_harness.h"
#include "tests/support/engine/engine_on_disk.h"
#include "tests/support/engine/model_runner.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::prefix_test {

using Kind = SessionCommand::Kind;

constexpr int64_t kPlenty = int64_t{1} << 28;

std::vector<std::string> fast_devices() {
  std::vector<std::string> devices = all_devices();
  std::erase(devices, "reference");
  return devices;
}

std::vector<int32_t> joined(std::vector<int32_t> ids, const std::vector<int32_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

class PrefixOfFamilies
    : public ::testing::TestWithParam<std::tuple<ModelCase, std::string /* device */>> {
 protected:
  void SetUp() override {
    const auto& [model_case, device] = GetParam();
    const std::string why = why_unusable(model_case, device);
    if (!why.empty()) GTEST_SKIP() << why;
    backend_ = make_backend(device, 2);
    model_ = ModelRunner::load(model_case, *backend_, 0);
    vocab_ = static_cast<int32_t>(model_->info().vocab);
  }

  std::unique_ptr<EngineHarness> engine(int slots, int64_t prefix_bytes, int rows = 0) const {
    HarnessOptions options{.slots = slots, .rows_per_step = rows};
    options.prefix = {.bytes = prefix_bytes};
    return std::make_unique<EngineHarness>(*model_, *backend_, options);
  }

  // Penalties see the whole prompt, what was not absorbed anew too.
  Request request(std::vector<int32_t> ids, uint64_t seed) const {
    Request request{.prompt = std::move(ids)};
    request.sampling.temperature = seed % 2 ? 0.9f : 0.0f;
    request.sampling.repetition_penalty = 1.3f;
    request.sampling.seed = seed;
    request.sampling.max_tokens = 4;
    request.sampling.logprobs = 2;
    return request;
  }

  std::unique_ptr<OnDisk> served(const TempDir& folder, const HarnessOptions& options) const {
    return std::make_unique<OnDisk>(open_folder(folder.path()), options, [&](const auto& of) {
      return std::make_unique<EngineHarness>(*model_, *backend_, of);
    });
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<const Model> model_;
  int32_t vocab_ = 0;
};

// The same again, longer ones, and such as part from it within and between chunks; alone, and with
// neighbours in steps of other sizes.
TEST_P(PrefixOfFamilies, EqualsAColdRun) {
  const std::vector<int32_t> first = some_prompt(200, 1, vocab_);
  const std::span<const int32_t> of = first;
  const auto begins = [&](size_t tokens, size_t then, uint64_t seed) {
    return joined({of.begin(), of.begin() + static_cast<ptrdiff_t>(tokens)},
                  some_prompt(then, seed, vocab_));
  };
  const std::vector<std::vector<int32_t>> prompts = {first,
                                                     first,
                                                     begins(200, 70, 2),
                                                     begins(200, 1, 3),
                                                     begins(64, 80, 4),
                                                     begins(64, 9, 5),
                                                     begins(100, 60, 6),
                                                     begins(130, 0, 7),
                                                     begins(130, 90, 8),
                                                     begins(128, 0, 9)};
  std::vector<std::vector<TokenBits>> want;
  for (size_t p = 0; p < prompts.size(); ++p) {
    want.push_back(engine(1, 0)->ask(request(prompts[p], p))->bits());
  }
  for (const int rows : {0, 300}) {
    const auto warm = engine(3, kPlenty, rows);
    std::vector<int64_t> spared;
    for (size_t p = 0; p < prompts.size(); ++p) {
      AnswerPtr neighbour = warm->submit(request(some_prompt(90, 100 + p, vocab_), 1));
      AnswerPtr answer = warm->submit(request(prompts[p], p));
      warm->run_until_idle();
      answer->take();
      EXPECT_EQ(answer->bits(), want[p]) << "prompt " << p << ", " << rows << " rows a step";
      ASSERT_TRUE(answer->ending);
      EXPECT_EQ(answer->ending->prompt_tokens, static_cast<int64_t>(prompts[p].size()));
      spared.push_back(answer->ending->prefix.tokens);
    }
    // 192 is where the first ends on the grid; that prompts part at 64 is seen when the first one
    // does so.
    EXPECT_THAT(spared, ::testing::ElementsAre(0, 192, 192, 192, 0, 64, 64, 64, 128, 64));
  }
}

// With room for two states, so that most make room for others before they are used.
TEST_P(PrefixOfFamilies, EqualsAColdRunWhateverHadToMakeRoom) {
  const std::vector<int32_t> first = some_prompt(200, 1, vocab_),
                             other = some_prompt(200, 2, vocab_);
  const int64_t each = PrefixCache::bytes_each(model_->state_layout(), model_->info().chunk, 300);
  const auto warm = engine(2, 2 * each);
  int64_t spared = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const auto& begins = seed % 3 == 2 ? other : first;
    const auto asked = [&] {
      return request(joined(begins, some_prompt(70, seed / 2, vocab_)), seed);
    };
    const AnswerPtr answer = warm->ask(asked());
    EXPECT_EQ(answer->bits(), engine(1, 0)->ask(asked())->bits()) << "prompt " << seed;
    spared += answer->ending->prefix.tokens;
  }
  EXPECT_GT(spared, 0);
  EXPECT_LT(warm->stats().prefix_states, 6) << "of more than that which were kept";
}

// What had to make room is read from the disk, by those whose it is; by this server and the next.
TEST_P(PrefixOfFamilies, EqualsAColdRunFromTheDisk) {
  const TempDir folder;
  const int64_t each = PrefixCache::bytes_each(model_->state_layout(), model_->info().chunk, 300);
  const std::vector<int32_t> first = some_prompt(200, 1, vocab_);
  const auto again = [&] {
    Request asked = request(joined(first, some_prompt(70, 9, vocab_)), 3);
    asked.prefix = PrefixMode::kUse;
    return asked;
  };
  for (const bool restarted : {false, true}) {
    HarnessOptions options{.slots = 2};
    // Of states that are smaller than what leads to them there is room for more.
    options.prefix = {.bytes = 2 * each + 24 * PrefixIndex::node_bytes(model_->info().chunk) +
                               40 * StoredPrefixes::entry_bytes(),
                      .disk_time = 1};
    const auto warm = served(folder, options);
    if (!restarted) {
      for (uint64_t seed = 1; seed < 8; ++seed) {
        warm->ask(request(some_prompt(200, seed, vocab_), seed));
      }
    }
    Request others = again();
    others.caller = caller_of("other");
    EXPECT_EQ(warm->ask(std::move(others))->ending->prefix.tokens, 0) << "it is another tenant's";
    const AnswerPtr answer = warm->ask(again());
    EXPECT_EQ(answer->ending->prefix.tokens, 192) << restarted;
    EXPECT_EQ(answer->bits(), engine(1, 0)->ask(again())->bits());
  }
}

// All at once, over one prompt's beginning, with a session among them that goes on then.
TEST_P(PrefixOfFamilies, EqualsAColdRunWithOthersConcurrent) {
  const std::vector<int32_t> first = some_prompt(130, 1, vocab_);
  const auto turn = [&](uint64_t seed, const std::string& session) {
    Request asked = request(joined(first, some_prompt(20, seed, vocab_)), seed);
    asked.session = session;
    return asked;
  };
  const auto cold = engine(1, 0);
  cold->open("s");
  const auto want = cold->ask(turn(2, "s"))->bits();
  const auto want_next = cold->ask(turn(3, "s"))->bits();
  const auto warm = engine(2, kPlenty);
  warm->open("s");
  warm->ask(request(first, 9));
  std::vector<AnswerPtr> answers;
  for (int i = 0; i < 4; ++i) answers.push_back(warm->submit(turn(2, "")));
  answers.push_back(warm->submit(turn(2, "s")));
  warm->run_until_idle();
  for (const AnswerPtr& answer : answers) {
    answer->take();
    EXPECT_EQ(answer->bits(), want);
    EXPECT_EQ(answer->ending->prefix.tokens, 128);
  }
  EXPECT_EQ(answers.back()->ending->session_position, 153) << "all but the last token said";
  const AnswerPtr next = warm->ask(turn(3, "s"));
  EXPECT_EQ(next->bits(), want_next);
  EXPECT_EQ(next->ending->prefix.miss, PrefixMiss::kContinues);
}

std::vector<ModelCase> some_model_cases() {
  std::vector<ModelCase> some;
  for (size_t i = 0; i < model_cases().size(); i += amount(1, 3)) {
    some.push_back(model_cases()[i]);
  }
  return some;
}

INSTANTIATE_TEST_SUITE_P(Families, PrefixOfFamilies,
                         ::testing::Combine(::testing::ValuesIn(some_model_cases()),
                                            ::testing::ValuesIn(fast_devices())),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param).directory + "_" +
                                              test_name(std::get<1>(info.param));
                           std::replace(name.begin(), name.end(), '/', '_');
                           return name;
                         });

// With a model whose steps can be looked at: its grid is 8.
class Prefix : public ::testing::Test {
 protected:
  static HarnessOptions options(int64_t bytes = kPlenty, bool shared = false) {
    HarnessOptions options{.slots = 4};
    options.prefix = {.bytes = bytes, .shared = shared};
    return options;
  }
  static Request request(size_t length, uint64_t seed = 0) {
    return NullHarness::request(length, 2, seed);
  }
  static PrefixUse use(NullHarness& harness, Request request) {
    return harness->ask(std::move(request))->ending.value().prefix;
  }
};

TEST_F(Prefix, SaysWhyThereIsNone) {
  NullHarness harness(options());
  EXPECT_EQ(use(harness, request(8)).miss, PrefixMiss::kShort);
  EXPECT_EQ(use(harness, request(30)).miss, PrefixMiss::kNew);
  EXPECT_EQ(use(harness, request(30)).miss, PrefixMiss::kNone);
  Request off = request(30);
  off.prefix = PrefixMode::kOff;
  EXPECT_EQ(use(harness, off).miss, PrefixMiss::kOff);
  Request scored = request(30);
  scored.sampling.prompt_logprobs = 0;
  EXPECT_EQ(use(harness, scored).miss, PrefixMiss::kScored);
  NullHarness without(options(0));
  EXPECT_EQ(use(without, request(30)).miss, PrefixMiss::kOff);
}

TEST_F(Prefix, UseLeavesNothing) {
  NullHarness harness(options());
  Request look = request(30);
  look.prefix = PrefixMode::kUse;
  EXPECT_EQ(use(harness, look).miss, PrefixMiss::kNew);
  EXPECT_EQ(use(harness, look).miss, PrefixMiss::kNew) << "the first has left nothing";
  use(harness, request(30));
  EXPECT_EQ(use(harness, look).tokens, 24);
}

// Behind the client's place, on the grid; the prompt is cut there all the same.
TEST_F(Prefix, LeavesStatesWhereItsClientSays) {
  NullHarness harness(options());
  const auto ends_in = [](uint64_t seed) {
    Request asked = request(60);
    for (size_t i = 35; i < 60; ++i) asked.prompt.ids[i] = static_cast<int32_t>((i + seed) % 40);
    return asked;
  };
  Request named = ends_in(1);
  named.prompt.prefix_points.named = {35, 3, 60};
  EXPECT_EQ(harness->ask(named)->bits(), harness.alone(ends_in(1))->bits());
  AnswerPtr other = harness->ask(ends_in(2));
  EXPECT_EQ(other->ending->prefix.tokens, 32);
  EXPECT_EQ(other->bits(), harness.alone(ends_in(2))->bits());
}

TEST_F(Prefix, SaysWhatWasLostAndWhatIsReplayed) {
  NullHarness harness(options());
  const auto parts_at = [](size_t at, uint64_t seed) {
    Request asked = request(60);
    for (size_t i = at; i < 60; ++i) asked.prompt.ids[i] = static_cast<int32_t>((i + seed) % 40);
    return asked;
  };
  use(harness, parts_at(60, 0));
  const PrefixUse parted = use(harness, parts_at(40, 1));
  EXPECT_EQ(parted.tokens, 0);
  EXPECT_EQ(parted.replayed, 40) << "a state is kept there from now on";
  EXPECT_EQ(parted.lost, 0);
  const PrefixUse behind = use(harness, parts_at(50, 2));
  EXPECT_EQ(behind.tokens, 40);
  EXPECT_EQ(behind.replayed, 8);
}

// What is not absorbed anew takes no rows of any step.
TEST_F(Prefix, AHitAbsorbsTheRestAlone) {
  NullHarness harness(options());
  const auto rows = [&](const Request& request) {
    const size_t before = harness.steps().size();
    harness->ask(request);
    int sum = 0;
    for (size_t s = before; s < harness.steps().size(); ++s) {
      for (const int count : harness.steps()[s]) sum += count;
    }
    return sum;
  };
  EXPECT_EQ(rows(request(1000)), 1000 + 1);
  EXPECT_EQ(rows(request(1000)), 8 + 1) << "the last chunk, and the token that is absorbed last";
}

// The duration does not tell a tenant what others have asked.
TEST_F(Prefix, TenantsHaveTheirOwn) {
  const auto asked_by = [](TenantId tenant) {
    Request asked = request(30);
    asked.caller.tenant = tenant;
    return asked;
  };
  NullHarness apart(options());
  use(apart, asked_by(1));
  EXPECT_EQ(use(apart, asked_by(2)).miss, PrefixMiss::kNew);
  EXPECT_EQ(use(apart, asked_by(1)).tokens, 24);
  EXPECT_EQ(use(apart, asked_by(2)).tokens, 24);
  NullHarness together(options(kPlenty, true));
  use(together, asked_by(1));
  EXPECT_EQ(use(together, asked_by(2)).tokens, 24);
}

// Choices that had to wait for a slot absorb the prompt anew, and need not absorb much of it.
TEST_F(Prefix, LateChoicesBeginThereToo) {
  HarnessOptions few = options();
  few.slots = 2;
  NullHarness harness(few);
  Request asked = request(30);
  asked.sampling.temperature = 1;
  AnswerPtr other = harness->submit(NullHarness::request(5, 40, 3));
  auto choices = harness->submit(asked, 2);
  harness->run_until_idle();
  for (AnswerPtr& choice : choices) {
    choice->take();
    EXPECT_EQ(choice->bits(), harness.alone(asked)->bits());
    ++asked.sampling.seed;
  }
  EXPECT_EQ(choices[1]->ending->prefix.tokens, 24);
}

// A session whose first prompt broke off stands where it stood.
TEST_F(Prefix, APromptThatBreaksOffKeepsItsPosition) {
  NullHarness harness(options());
  harness->ask(request(40));
  harness->open("s");
  Request asked = request(200);
  asked.session = "s";
  AnswerPtr answer = harness->submit(asked);
  harness->step();
  answer->stream()->cancel();
  harness->run_until_idle();
  answer->take();
  ASSERT_EQ(answer->reason(), EndReason::kCancelled);
  EXPECT_EQ(harness->get("s").position, answer->ending->session_position);
  EXPECT_EQ(answer->ending->prefix.tokens, 32);
  EXPECT_GE(answer->ending->session_position, 32);
}

}  // namespace recurve::testing::prefix_test
