// Thousands of random operations, against an engine to whom the same happens one thing at a time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tests/support/engine/engine_harness.h"
#include "tests/support/engine/held_copies.h"

namespace recurve::testing::stress_test {

using Kind = SessionCommand::Kind;

constexpr int32_t kBos = 7, kEos = 9, kPoison = NullHarness::kVocab - 1;
constexpr int kSessions = 6;  // names in use

struct StressCase {
  bool launch_ahead, concurrent_copies;
};

class Stress {
 public:
  Stress(uint32_t seed, const StressCase& of)
      : random_(seed),
        slots_(between(1, 6)),
        busy_({.slots = slots_,
               .rows_per_step = between(0, 60),
               .max_queue = between(1, 12),
               .host_bytes = between(2, 14) * session_bytes(),
               .eos = {kEos},
               .launch_ahead = of.launch_ahead},
              kPoison, backend_for(of)),
        quiet_({.slots = 40, .eos = {kEos}}, kPoison) {}

  void run(int operations) {
    for (int i = 0; i < operations && !::testing::Test::HasFailure(); ++i) {
      switch (between(0, 9)) {
        case 0:
        case 1:
        case 2:
          submit();
          break;
        case 3:
          command();
          break;
        case 4:
          interfere();
          break;
        default:
          step();
      }
    }
    finish();
  }

 private:
  // A request under way in the busy engine.
  struct Running {
    Request request;
    std::vector<AnswerPtr> answers = {};
    std::vector<int64_t> looked_at = {};  // tokens acknowledged, by choice
  };

  static std::unique_ptr<Backend> backend_for(const StressCase& of) {
    auto backend = make_backend("reference");
    if (!of.concurrent_copies) return backend;
    return std::make_unique<HeldCopies>(std::move(backend));
  }
  static int64_t session_bytes() {
    return SessionStore::bytes_each(NullModel(NullHarness::kVocab).state_layout(),
                                    NullHarness::kVocab);
  }
  int between(int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random_);
  }
  bool one_in(int n) { return between(1, n) == 1; }
  std::string a_name() { return "s" + std::to_string(between(1, kSessions)); }
  std::string a_mark() { return "m" + std::to_string(between(1, 2)); }

  Request a_request() {
    Request request = NullHarness::request(
        static_cast<size_t>(one_in(4) ? between(0, 60) : between(1, 9)), between(0, 8), random_());
    SamplingParams& sampling = request.sampling;
    if (one_in(2)) sampling.temperature = 0.8f;
    sampling.seed = random_();
    if (one_in(3)) sampling.repetition_penalty = 1.3f;
    if (one_in(4)) sampling.prompt_logprobs = 1;
    if (one_in(6)) sampling.logit_bias = {{kEos, 8.0f}};
    if (one_in(20) && !request.prompt.ids.empty()) request.prompt.ids.back() = kPoison;
    if (one_in(3)) request.wait_for_acknowledgement = true;
    if (one_in(2)) {
      request.continued_prompt = request.prompt;
      request.prompt.ids.insert(request.prompt.ids.begin(), kBos);
    }
    return request;
  }

  void submit() {
    Running running{.request = a_request()};
    int choices = 1;
    if (one_in(2)) {
      running.request.session = a_name();
    } else if (one_in(3)) {
      choices = between(1, slots_) + (one_in(8) ? 1 : 0);
    }
    Request request = running.request;
    if (one_in(15)) request.deadline = Clock::now();  // passes in the queue
    running.answers = busy_->submit(std::move(request), choices);
    running.looked_at.assign(running.answers.size(), 0);
    if (running.answers[0]->admission != AdmissionQueue::Admission::kAccepted) {
      EXPECT_GE(busy_->queue().waiting(), busy_->queue().max_waiting());
      return;
    }
    under_way_.push_back(std::move(running));
  }

  // Carried out by both; a session that is in use in the busy engine is left alone there.
  void command() {
    SessionCommand command{.name = a_name(), .other = a_mark()};
    constexpr Kind kKinds[] = {Kind::kOpen, Kind::kOpen, Kind::kFork,   Kind::kMark, Kind::kUnmark,
                               Kind::kGet,  Kind::kList, Kind::kRewind, Kind::kClose};
    command.kind = kKinds[between(0, 8)];
    if (command.kind == Kind::kFork) command.other = a_name();
    SessionResult busy = busy_->command(command);
    compare(command, busy);
    collect();  // what ended in the step that followed the command
  }

  void compare(const SessionCommand& command, const SessionResult& busy) {
    if (busy.reason == EndReason::kSessionBusy || busy.reason == EndReason::kExhausted) return;
    const SessionResult quiet = quiet_->command(command);
    ASSERT_EQ(busy.reason, quiet.reason) << busy.message;
    if (command.kind == Kind::kList || busy.reason != EndReason::kDone || busy.sessions[0].busy)
      return;
    EXPECT_EQ(busy.sessions[0].position, quiet.sessions[0].position);
    EXPECT_EQ(busy.sessions[0].pending_token, quiet.sessions[0].pending_token);
    EXPECT_EQ(busy.sessions[0].marks.size(), quiet.sessions[0].marks.size());
  }

  // Cancels, acknowledges and finds stop strings.
  void interfere() {
    if (under_way_.empty()) return;
    Running& running =
        under_way_[static_cast<size_t>(between(0, static_cast<int>(under_way_.size()) - 1))];
    const auto c = static_cast<size_t>(between(0, static_cast<int>(running.answers.size()) - 1));
    TokenStream& stream = *running.answers[c]->stream();
    if (one_in(3)) {
      for (AnswerPtr& answer : running.answers) answer->stream()->cancel();
    } else if (one_in(3)) {
      stream.stop_after(running.looked_at[c] + between(0, 2));
    } else {
      stream.cancel();
    }
  }

  void step() {
    busy_->step();
    collect();
  }

  void collect() {
    for (Running& running : under_way_) {
      for (size_t c = 0; c < running.answers.size(); ++c) look(running, c);
    }
    std::erase_if(under_way_, [&](Running& running) {
      const auto ended = [](const AnswerPtr& answer) { return answer->ended(); };
      if (!std::all_of(running.answers.begin(), running.answers.end(), ended)) return false;
      check(running);
      return true;
    });
  }

  void look(Running& running, size_t c) {
    Answer& answer = *running.answers[c];
    answer.take();
    const auto got = static_cast<int64_t>(answer.tokens.size());
    if (!running.request.wait_for_acknowledgement) return;
    EXPECT_LE(got, running.looked_at[c] + 1) << "went on without an acknowledgement";
    if (got > running.looked_at[c] && one_in(2)) {
      if (one_in(8)) answer.stream()->stop_after(got);
      answer.stream()->acknowledge(running.looked_at[c] = got);
    }
  }

  // Does in the quiet engine what has been done in the busy one, and compares.
  void check(Running& running) {
    for (size_t c = 0; c < running.answers.size(); ++c) {
      Answer& answer = *running.answers[c];
      ++ended_[answer.reason()];
      const StreamEnd& ending = *answer.ending;
      EXPECT_EQ(ending.generated_tokens, static_cast<int64_t>(answer.tokens.size()));
      if (!answer.accepted) continue;  // refused
      Request same = running.request;
      same.wait_for_acknowledgement = false;
      same.sampling.seed += c;
      const int64_t absorbed = cut(same, answer);
      AnswerPtr want;
      if (absorbed > 0) {
        want = quiet_->ask(same);
        EXPECT_EQ(answer.bits(), want->bits());
        if (c == 0 && same.sampling.prompt_logprobs >= 0) {
          EXPECT_EQ(answer.prompt_bits(), want->prompt_bits());
        }
      }
      if (same.session.empty() || ::testing::Test::HasFailure()) continue;
      EXPECT_EQ(ending.session_position, quiet_->get(same.session).position);
    }
  }

  // Makes of a request that was broken off one that asks for just what was done. Returns how much
  // of the prompt that is.
  static int64_t cut(Request& request, const Answer& answer) {
    const StreamEnd& ending = *answer.ending;
    const int64_t before = answer.accepted->session_position;
    const bool whole = ending.reason == EndReason::kLength || ending.reason == EndReason::kEos ||
                       (ending.reason == EndReason::kInternal && ending.generated_tokens > 0);
    if (whole) return answer.accepted->prompt_tokens;
    request.sampling.max_tokens = static_cast<int32_t>(ending.generated_tokens);
    if (ending.generated_tokens > 0) return answer.accepted->prompt_tokens;
    const int64_t absorbed = std::max<int64_t>(ending.session_position - before, 0);
    const int64_t left = answer.accepted->prompt_tokens - absorbed;
    EXPECT_TRUE(left == 0 || absorbed % NullHarness::kChunk == 0);
    std::vector<int32_t>& ids = before == 0 || !request.continued_prompt
                                    ? request.prompt.ids
                                    : request.continued_prompt->ids;
    if (left <= static_cast<int64_t>(ids.size()))
      ids.resize(ids.size() - static_cast<size_t>(left));
    request.sampling.prompt_logprobs = -1;
    return absorbed;
  }

  void finish() {
    for (int round = 0; round < 10000 && !under_way_.empty(); ++round) {
      step();
      busy_->wait_for_copies();
    }
    EXPECT_TRUE(under_way_.empty()) << "some requests never end";
    busy_->run_until_idle();  // a step may be under way whose answers have all ended
    EXPECT_FALSE(busy_->step());
    EngineStats stats = busy_->stats();
    EXPECT_EQ(stats.running, 0);
    EXPECT_EQ(busy_->queue().waiting(), 0);
    EXPECT_EQ(stats.slots_free + stats.slots_idle, slots_);
    for (int i = 1; i <= kSessions; ++i) {
      busy_->command(Kind::kClose, "s" + std::to_string(i));
    }
    busy_->run_until_idle();
    stats = busy_->stats();
    EXPECT_EQ(stats.sessions, 0);
    EXPECT_EQ(stats.host_bytes, 0);
    EXPECT_EQ(stats.slots_free, slots_);
  }

 public:
  const std::map<EndReason, int>& ended() const { return ended_; }

 private:
  std::mt19937 random_;
  const int slots_;
  NullHarness busy_, quiet_;
  std::vector<Running> under_way_;
  std::map<EndReason, int> ended_;
};

class EngineStress : public ::testing::TestWithParam<StressCase> {};

TEST_P(EngineStress, RandomOperationsGiveWhatAQuietEngineGives) {
  std::map<EndReason, int> ended;
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    Stress stress(seed, GetParam());
    stress.run(500);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    for (const auto& [reason, count] : stress.ended()) ended[reason] += count;
  }
  // Each kind of ending has been met, or the test says little.
  for (const EndReason reason :
       {EndReason::kLength, EndReason::kEos, EndReason::kStopString, EndReason::kCancelled,
        EndReason::kDeadline, EndReason::kNoSession, EndReason::kSessionBusy, EndReason::kInvalid,
        EndReason::kInternal}) {
    EXPECT_GE(ended[reason], 10) << static_cast<int>(reason);
  }
}

INSTANTIATE_TEST_SUITE_P(Launches, EngineStress,
                         ::testing::Values(StressCase{false, false}, StressCase{true, false},
                                           StressCase{false, true}, StressCase{true, true}),
                         [](const auto& info) {
                           return std::string(info.param.launch_ahead ? "Ahead" : "OneByOne") +
                                  (info.param.concurrent_copies ? "ConcurrentCopies" : "");
                         });

}  // namespace recurve::testing::stress_test
