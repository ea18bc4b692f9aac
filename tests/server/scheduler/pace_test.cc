// The pace against machines that are known: how long their steps take is a formula.
#include "server/scheduler/pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace recurve::pace_test {

constexpr int kMostRows = 2048, kChunk = 64;

struct Machine {
  double base;        // seconds of a step
  double per_decode;  // and for each sequence that decodes
  double per_row;     // and for each row of a prompt
  double noise = 0;   // of the whole, standard deviation
  double seconds(const StepShape& step) const {
    return base + per_decode * step.decodes + per_row * step.prompt_rows;
  }
};

// Steps of an endless prompt with `decodes` decodes; the seconds of the last ones, without noise.
std::vector<double> run(Pace& pace, const Machine& machine, int decodes, int steps,
                        uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(1, machine.noise);
  std::vector<double> last;
  for (int i = 0; i < steps; ++i) {
    const int rows = std::max(pace.prompt_rows(decodes) / kChunk * kChunk, kChunk);
    const StepShape step{.decodes = decodes, .prompt_rows = rows};
    pace.observe(step, machine.seconds(step) * std::max(0.1, noise(random)));
    if (i >= steps / 2) last.push_back(machine.seconds(step));
  }
  return last;
}

// Like one of 7 B parameters on a large GPU, and one of 7 M on two CPU cores.
constexpr Machine kLarge{.base = 4e-3, .per_decode = 7e-5, .per_row = 5e-5};
constexpr Machine kSmall{.base = 1e-4, .per_decode = 1e-4, .per_row = 5e-5};

TEST(Pace, KnowsNothingAtFirstAndThenLetsPromptsHaveAll) {
  const Pace pace(kMostRows, 0.03);
  EXPECT_EQ(pace.prompt_rows(10), kMostRows);
  EXPECT_EQ(pace.prompt_rate(10), 0);
  EXPECT_EQ(pace.step_seconds(), 0);
}

TEST(Pace, StepsFillTheirTimeAndNoMore) {
  for (const Machine& machine : {kLarge, kSmall}) {
    for (const double noise : {0.0, 0.1}) {
      Machine noisy = machine;
      noisy.noise = noise;
      Pace pace(kMostRows, 0.03);
      for (const double seconds : run(pace, noisy, 64, 200)) {
        EXPECT_LE(seconds, 0.03 * (1 + noise));
        EXPECT_GE(seconds, 0.0235 * (1 - 2 * noise)) << "prompts could have had a chunk more";
      }
    }
  }
}

TEST(Pace, FollowsWhatChanges) {
  Pace pace(kMostRows, 0.03);
  run(pace, kLarge, 8, 100);
  for (const double seconds : run(pace, kLarge, 256, 100)) EXPECT_LE(seconds, 0.03);
  for (const double seconds : run(pace, kLarge, 8, 100)) EXPECT_GE(seconds, 0.0235);
}

// A first step that was slow, as first steps are, and a base that many decodes left behind: all
// that follows are steps without prompts, and chunks, as it lets prompts have no more.
TEST(Pace, ForgetsSlowBeginningsFromSmallSteps) {
  Pace pace(kMostRows, 0.03);
  pace.observe({.decodes = 0, .prompt_rows = 16}, 0.5);
  for (int i = 0; i < 50; ++i) {
    const StepShape decodes{.decodes = 256};
    pace.observe(decodes, kLarge.seconds(decodes));
  }
  for (int i = 0; i < 50; ++i) {
    const int rows = i % 2 == 0 ? std::max(pace.prompt_rows(8) / kChunk * kChunk, kChunk) : 0;
    const StepShape step{.decodes = 8, .prompt_rows = rows};
    pace.observe(step, kLarge.seconds(step));
  }
  EXPECT_GE(pace.prompt_rows(8), 350);  // 0.9 x 30 ms less 4.6, of 50 us each: 449
  EXPECT_LE(pace.prompt_rows(8), 500);
}

TEST(Pace, NoRoomIsNoRows) {
  Pace pace(kMostRows, 0.02);
  run(pace, kLarge, 300, 50);  // the decodes alone take 25 ms
  EXPECT_LT(pace.prompt_rows(300), kChunk);
}

TEST(Pace, WithoutDecodesOrALimitPromptsHaveAllRows) {
  Pace pace(kMostRows, 0.02);
  run(pace, kLarge, 300, 50);
  EXPECT_EQ(pace.prompt_rows(0), kMostRows);
  Pace free(kMostRows, 0);
  run(free, kLarge, 300, 50);
  EXPECT_EQ(free.prompt_rows(300), kMostRows);
  EXPECT_EQ(free.max_prompt_rows_with_decodes(), std::numeric_limits<int>::max());
}

// Somebody else's request may come any time, and then it waits for the end of the step.
TEST(Pace, StepsAreShorterWhereSeveralTenantsShareThem) {
  Pace small(kMostRows, 0.03);
  run(small, kSmall, 8, 200);
  const int rows = small.prompt_rows(8, true);
  EXPECT_NEAR(kSmall.seconds({.decodes = 8, .prompt_rows = rows}), 0.9 * 0.01, 0.001);
  EXPECT_NEAR(small.prompt_rows(0, true), rows, 1);
  Pace large(kMostRows, 0.03);
  for (int i = 0; i < 200; ++i) {  // 8.5 ms without prompts, which may take as long
    const StepShape step{.decodes = 64, .prompt_rows = i % 2 * 6 * kChunk};
    large.observe(step, kLarge.seconds(step));
  }
  EXPECT_NEAR(kLarge.seconds({.decodes = 64, .prompt_rows = large.prompt_rows(64, true)}),
              0.9 * 2 * 0.0085, 0.001);
}

// For prompts in separate steps it also knows how long they take compared to decodes.
TEST(Pace, KnowsWhatPromptsTakeLongerThanDecodes) {
  for (const bool apart : {false, true}) {
    Pace pace(kMostRows, 0.03);
    EXPECT_EQ(pace.max_prompt_rows_with_decodes(), std::numeric_limits<int>::max());
    for (int i = 0; i < 200; ++i) {
      StepShape step{.decodes = 16, .prompt_rows = i % 2 * kChunk};
      double seconds = kSmall.seconds(step);
      if (apart && step.prompt_rows > 0) {
        step = {.decodes = 0, .prompt_rows = kChunk, .prompts_only = true};
        seconds = kSmall.per_row * kChunk;
      }
      pace.observe(step, seconds);
    }
    EXPECT_NEAR(pace.max_prompt_rows_with_decodes(), 34, 2) << "1.7 ms of 50 us each";
    EXPECT_NEAR(pace.step_seconds(), 0.0033, 0.0005);
  }
}

// One of 7 M on a CPU hardly has a base; one of 7 B on a GPU has little else.
TEST(Pace, KnowsWhetherDecodesAreMostOfAStep) {
  for (const Machine& machine : {kSmall, kLarge}) {
    Pace pace(kMostRows, 0.03), free(kMostRows, 0);
    EXPECT_FALSE(pace.decodes_are_most()) << "nothing is known";
    for (const int decodes : {1, 14}) {
      for (int i = 0; i < 50; ++i) {
        const StepShape step{.decodes = decodes, .prompt_rows = 0};
        pace.observe(step, machine.seconds(step));
        free.observe(step, machine.seconds(step));
      }
    }
    EXPECT_EQ(pace.decodes_are_most(), machine.base == kSmall.base);
    EXPECT_FALSE(free.decodes_are_most()) << "steps may take however long";
  }
}

TEST(Pace, KnowsHowFastPromptsAreAbsorbed) {
  Pace pace(kMostRows, 0.03);
  run(pace, kLarge, 64, 200);
  // 27 ms less 4 ms and 64 decodes, of which each row takes 50 us; the step takes 27 ms.
  const double rows = (0.027 - kLarge.seconds({.decodes = 64})) / kLarge.per_row;
  EXPECT_NEAR(pace.prompt_rate(64), rows / 0.027, 0.1 * rows / 0.027);
  EXPECT_NEAR(pace.step_seconds(), 0.027, 0.003);
}

TEST(Pace, AStepThatWasHeldUpIsForgotten) {
  Pace pace(kMostRows, 0.03);
  run(pace, kLarge, 64, 100);
  pace.observe({.decodes = 64, .prompt_rows = 256}, 1.0);
  for (const double seconds : run(pace, kLarge, 64, 100)) EXPECT_GE(seconds, 0.0235);
}

}  // namespace recurve::pace_test
