// Memory that the system does not give, and a device that fails, at every single point of a day's
// work: who is refused for it, and that nothing is lost, told twice or left waiting.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "tests/support/engine/engine_harness.h"
#include "tests/support/engine/failing_backend.h"

namespace {

// Allocations of this thread until one fails, once; -1: none will.
thread_local int64_t left_until_failure = -1;

void* allocate(size_t bytes, size_t alignment) {
  if (left_until_failure >= 0 && left_until_failure-- == 0) throw std::bad_alloc();
  const size_t room = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, room == 0 ? alignment : room);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Not inlined: g++ would take free() in the place of delete for a mistake.
[[gnu::noinline]] void* operator new(size_t bytes) {
  return allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace recurve::testing::failure_test {

using ::testing::HasSubstr;
using Kind = SessionCommand::Kind;

constexpr int32_t kVocab = NullHarness::kVocab;

// What became of one thing that was asked for.
struct Outcome {
  std::string what;
  bool ok = false;
  EndReason reason = EndReason::kDone;
  std::vector<TokenBits> bits = {};
  int64_t position = 0;  // of the session afterwards
};

Request request(size_t length, int max_tokens, uint64_t seed, const std::string& session = "") {
  Request request = NullHarness::request(length, max_tokens, seed, session);
  request.sampling.temperature = 1;
  request.sampling.seed = seed;
  request.sampling.repetition_penalty = 1.2f;
  return request;
}

// Two slots, so that sessions move and choices wait; all that requests and commands can be.
class Day {
 public:
  explicit Day(Backend& backend)
      : harness_(model_, backend, {.slots = 2, .on_failure = [this](const char* what) {
                                     ++failures_;
                                     said_ = what;
                                   }}) {
    harness_.start();
  }

  // From now on, on the engine's thread.
  void fail_after(int64_t allocations) {
    on_thread([allocations] { left_until_failure = allocations; });
  }
  // Allocations since then.
  int64_t stop_failing(int64_t allowed) {
    int64_t left = -1;
    on_thread([&] { left = std::exchange(left_until_failure, -1); });
    return allowed - left;
  }

  std::vector<Outcome> run() {
    std::vector<Outcome> day;
    for (const char* name : {"a", "b"}) day.push_back(command(Kind::kOpen, name));
    day.push_back(ask(request(20, 5, 1, "a")));
    day.push_back(command(Kind::kMark, "a", "m"));
    day.push_back(command(Kind::kFork, "a", "c"));
    // Three slots wanted of two, while sessions are in them.
    std::vector<AnswerPtr> choices = harness_.submit(request(21, 4, 2), 2);
    Request scored = request(12, 3, 3);
    scored.sampling.prompt_logprobs = 1;
    AnswerPtr plain = harness_.submit(scored);
    for (AnswerPtr& choice : choices) day.push_back(outcome("choice", *choice));
    day.push_back(outcome("plain", *plain));
    day.push_back(ask(request(3, 4, 4, "c")));
    day.push_back(ask(request(3, 4, 5, "b")));
    day.push_back(ask(request(3, 4, 6, "a")));
    day.push_back(command(Kind::kRewind, "a", "m"));
    day.push_back(ask(request(3, 4, 7, "a")));
    day.push_back(command(Kind::kUnmark, "a", "m"));
    day.push_back(command(Kind::kList, ""));
    for (const char* name : {"a", "b", "c"}) day.push_back(command(Kind::kClose, name));
    return day;
  }

  int failures() const { return failures_; }
  const std::string& said() const { return said_; }
  EngineHarness& harness() { return harness_; }

 private:
  void on_thread(std::function<void()> job) {
    std::promise<void> done;
    SessionCommand command{.kind = Kind::kList};
    command.done = [&](const SessionResult&) { job(), done.set_value(); };
    if (harness_.queue().post(std::move(command)) != AdmissionQueue::Admission::kAccepted) return;
    done.get_future().get();
  }

  Outcome command(Kind kind, const std::string& name, const std::string& other = "") {
    const SessionResult result = harness_.command(kind, name, other);
    Outcome outcome{.what = "command " + std::to_string(static_cast<int>(kind)) + " " + name,
                    .ok = result.reason == EndReason::kDone,
                    .reason = result.reason};
    if (outcome.ok && kind != Kind::kList) outcome.position = result.sessions.at(0).position;
    return outcome;
  }
  Outcome ask(Request request) {
    const std::string what = "request on " + request.session;
    return outcome(what, *harness_.submit(std::move(request)));
  }
  static Outcome outcome(const std::string& what, Answer& answer) {
    if (answer.admission == AdmissionQueue::Admission::kClosed) {
      return {.what = what, .reason = EndReason::kFailed};
    }
    answer.wait_for_end();
    return {.what = what,
            .ok = answer.reason() == EndReason::kLength,
            .reason = answer.reason(),
            .bits = answer.bits(),
            .position = answer.ending ? answer.ending->session_position : 0};
  }

  NullModel model_{kVocab, {.chunk = NullHarness::kChunk}};
  std::string said_;
  int failures_ = 0;
  EngineHarness harness_;
};

bool refused_for_memory(const Outcome& outcome) {
  return outcome.reason == EndReason::kNoMemory || outcome.reason == EndReason::kExhausted;
}

// What was served before the first refusal was served as on a day without one, plain requests and
// choices at any time; a request that failed ends with the reason.
void expect_like(const std::vector<Outcome>& day, const std::vector<Outcome>& good, bool failed) {
  bool all_ok = true;
  int refused = 0;
  for (size_t i = 0; i < day.size(); ++i) {
    const Outcome& outcome = day[i];
    refused += refused_for_memory(outcome);
    if (outcome.ok && (all_ok || outcome.what == "plain" || outcome.what == "choice")) {
      EXPECT_EQ(outcome.bits, good[i].bits) << i << " " << outcome.what;
      EXPECT_EQ(outcome.position, good[i].position) << i << " " << outcome.what;
    }
    const bool told = outcome.ok || refused_for_memory(outcome) ||
                      (failed && (outcome.reason == EndReason::kFailed ||
                                  outcome.reason == EndReason::kDraining)) ||
                      (refused > 0 && row_of(outcome.reason).code == Code::kNotFound);
    EXPECT_TRUE(told) << i << " " << outcome.what << " " << row_of(outcome.reason).name;
    all_ok &= outcome.ok;
  }
  EXPECT_LE(refused, 2) << "one allocation failed: one command or request, or two choices";
}

TEST(EngineFailure, AnAllocationThatFailsIsOneRefusalOrTheEnd) {
  const auto backend = make_backend("reference");
  int64_t allocations = 0;
  std::vector<Outcome> good;
  {
    constexpr int64_t kMany = int64_t{1} << 40;
    Day day(*backend);
    day.fail_after(kMany);
    good = day.run();
    allocations = day.stop_failing(kMany);
    ASSERT_EQ(day.failures(), 0);
    for (const Outcome& outcome : good) ASSERT_TRUE(outcome.ok) << outcome.what;
  }
  int refusals = 0, failures = 0;
  for (int64_t n = 0; n < allocations && !::testing::Test::HasFailure(); ++n) {
    SCOPED_TRACE(n);
    Day day(*backend);
    day.fail_after(n);
    const std::vector<Outcome> outcomes = day.run();
    day.stop_failing(n);
    AnswerPtr after = day.harness().submit(request(21, 4, 2));
    if (after->admission == AdmissionQueue::Admission::kAccepted) after->wait_for_end();
    // Those whose Close was refused; the others are not there any more.
    for (const char* name : {"a", "b", "c"}) day.harness().command(Kind::kClose, name);
    day.harness().join();
    expect_like(outcomes, good, day.failures() > 0);
    ASSERT_LE(day.failures(), 1);
    failures += day.failures();
    if (day.failures() > 0) continue;
    refusals += static_cast<int>(std::ranges::count_if(outcomes, refused_for_memory));
    // As if nothing had been.
    EXPECT_EQ(after->bits(), good[5].bits);
    EXPECT_EQ(day.harness().stats().slots_free, 2);
    EXPECT_EQ(day.harness().stats().host_bytes, 0);
    EXPECT_EQ(day.harness().queue().waiting(), 0);
  }
  std::printf("%lld allocations: %d refusals, %d failures of the engine\n",
              static_cast<long long>(allocations), refusals, failures);
  EXPECT_GE(refusals, 30) << "or the test says nothing";
}

TEST(EngineFailure, ADeviceThatFailsEndsEveryStreamAndIsReportedOnce) {
  int failures = 0;
  for (int64_t n = 0;; ++n) {
    FailingBackend backend(make_backend("reference"));
    Day day(backend);
    backend.fail_after(n);
    const std::vector<Outcome> outcomes = day.run();
    day.harness().join();
    ASSERT_LE(day.failures(), 1);
    if (day.failures() == 0) break;
    ++failures;
    EXPECT_THAT(day.said(), HasSubstr("fallen off the bus"));
    EXPECT_FALSE(outcomes.back().ok);
    for (const Outcome& outcome : outcomes) {
      EXPECT_TRUE(outcome.ok || outcome.reason == EndReason::kFailed ||
                  outcome.reason == EndReason::kDraining)
          << n << " " << outcome.what;
    }
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GE(failures, 100);
}

}  // namespace recurve::testing::failure_test
