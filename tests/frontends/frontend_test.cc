// The whole way of a request without a protocol: text, checks, chat template, tokens, queue,
// engine, token stream, text and stop strings, events.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/engine/engine.h"
#include "tests/support/engine/null_model.h"
#include "tests/support/fake_frontend.h"
#include "tests/support/fake_tokenizer.h"

namespace recurve::testing::frontend_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Kind = SessionCommand::Kind;

constexpr int32_t kBos = FakeTokenizer::kBos, kEos = FakeTokenizer::kEos;
constexpr Identity kOther{.tenant = kAnyone.tenant + 1, .tenant_name = "other"};

class FrontendTest : public ::testing::Test {
 protected:
  void TearDown() override {
    core_.drain(Clock::now());
    engine_.abandon();
    if (engine_thread_.joinable()) engine_thread_.join();
  }
  void start() {
    Chat chat{.format = std::make_shared<const ChatTemplate>(
                  "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}|{% endfor %}a:", "",
                  jinja::Template::Variables{}),
              .exists = true,
              .problem = ""};
    core_.serve(*served_, tokenizer_,
                {.model_name = "null",
                 .vocab_rows = tokenizer_->size(),
                 .tokens = {.bos = kBos, .eos = {kEos}},
                 .slots = kSlots},
                std::move(chat));
    engine_thread_ = std::thread([this] { engine_.run(); });
  }

  // Letters alone, the likeliest ones.
  static TextRequest request(const std::string& text, int32_t max_tokens = 30) {
    TextRequest asked{.prompt = text, .max_tokens = max_tokens};
    asked.sampling.temperature = 0;
    for (int32_t id = 'a'; id <= 'z'; ++id) asked.sampling.allowed_ids.push_back(id);
    return asked;
  }
  std::unique_ptr<FakeSink> ask(TextRequest asked) {
    auto sink = std::make_unique<FakeSink>(core_, std::move(asked));
    EXPECT_TRUE(sink->wait_for_end());
    return sink;
  }
  Refusal refusal(TextRequest asked) {
    return ask(std::move(asked))->refusal().value_or(Refusal());
  }
  SessionResult command(SessionCommand command) {
    EXPECT_FALSE(validate(&command));
    std::promise<SessionResult> promise;
    command.done = [&](SessionResult result) { promise.set_value(std::move(result)); };
    EXPECT_FALSE(served_->post(std::move(command)));
    return promise.get_future().get();
  }

  static constexpr int kSlots = 3;
  std::shared_ptr<const FakeTokenizer> tokenizer_ = std::make_shared<FakeTokenizer>();
  std::unique_ptr<Backend> backend_ = make_backend("reference");
  NullModel model_{FakeTokenizer::kSize};
  Metrics metrics_;
  const std::shared_ptr<ServedModel> served_ = std::make_shared<ServedModel>(2);
  AdmissionQueue& queue_ = served_->queue;
  ServerCore core_{{}, {served_}, metrics_};
  Engine engine_{model_,
                 *backend_,
                 {.rows = FakeTokenizer::kSize, .usable = FakeTokenizer::kSize, .eos_ids = {kEos}},
                 queue_,
                 served_->stats,
                 metrics_,
                 {.slots = kSlots, .sessions = {.host_bytes = 1 << 20}}};
  std::thread engine_thread_;
};

TEST_F(FrontendTest, ATextGetsItsAnswer) {
  start();
  TextRequest asked = request("ab");
  asked.logprobs = 1;
  asked.prompt_logprobs = 0;
  asked.id = "mine";
  const auto sink = ask(asked);
  ASSERT_FALSE(sink->refusal()) << sink->refusal()->message;
  EXPECT_EQ(sink->accepted().request_id, "mine");
  EXPECT_EQ(sink->accepted().prompt_tokens, 1 + 2);
  ASSERT_THAT(sink->all<PromptScored>(), SizeIs(1));
  EXPECT_THAT(sink->all<PromptScored>()[0].tokens, SizeIs(2));
  EXPECT_EQ(sink->text(), decode(*tokenizer_, sink->ids()));
  EXPECT_THAT(sink->ids(), SizeIs(30));
  EXPECT_THAT(sink->all<AnswerDelta>()[0].tokens[0].top, SizeIs(1));
  ASSERT_THAT(sink->last().choices, SizeIs(1));
  EXPECT_EQ(sink->last().choices[0].reason, EndReason::kLength);
  EXPECT_EQ(sink->last().usage.generated_tokens, 30);
}

TEST_F(FrontendTest, TheProgressOfAPromptIsSentIfItIsAskedFor) {
  start();
  TextRequest asked = request(std::string(1000, 'a'));
  EXPECT_THAT(ask(asked)->all<PromptProgress>(), SizeIs(0));
  asked = request(std::string(1000, 'b'));
  asked.report_progress = true;
  const auto sink = ask(asked);
  ASSERT_FALSE(sink->refusal()) << sink->refusal()->message;
  int64_t last = 0;
  for (const PromptProgress& progress : sink->all<PromptProgress>()) {
    EXPECT_GT(progress.absorbed_tokens, last);
    last = progress.absorbed_tokens;
  }
  EXPECT_GT(last, 0);
  EXPECT_LT(last, sink->accepted().prompt_tokens);
}

TEST_F(FrontendTest, MessagesAreWrittenByTheTemplate) {
  start();
  TextRequest chat = request("");
  chat.prompt = Conversation{.messages = {{.role = "user", .content = "hi"}}};
  TextRequest spelled = request("u:hi|a:");
  spelled.add_special_tokens = false;
  EXPECT_EQ(ask(chat)->ids(), ask(spelled)->ids());
  spelled.prompt = "other";
  EXPECT_NE(ask(chat)->ids(), ask(spelled)->ids()) << "or the test says nothing";
}

TEST_F(FrontendTest, AStopStringEndsTheTextInFrontOfIt) {
  start();
  const std::string whole = ask(request("stop"))->text();
  TextRequest asked = request("stop");
  asked.stop_strings = {whole.substr(10, 4)};
  const auto sink = ask(asked);
  EXPECT_EQ(sink->text(), whole.substr(0, whole.find(asked.stop_strings[0])));
  EXPECT_EQ(sink->last().choices.at(0).reason, EndReason::kStopString);
  EXPECT_EQ(sink->last().choices[0].stop_string, asked.stop_strings[0]);
}

TEST_F(FrontendTest, ASessionGoesOnWhereItsTextEnded) {
  start();
  ASSERT_EQ(command({.kind = Kind::kOpen, .name = "s"}).reason, EndReason::kDone);
  TextRequest asked = request("once", 5);
  asked.session = "s";
  ask(asked);
  const auto sink = ask(asked);
  EXPECT_EQ(sink->accepted().session_position, 1 + 4 + 4);
  EXPECT_EQ(sink->accepted().prompt_tokens, 1 + 4) << "the pending token, and no BOS";
}

TEST_F(FrontendTest, ChoicesComeSideBySide) {
  start();
  TextRequest asked = request("n");
  asked.choices = 3;
  asked.seed = 7;
  asked.sampling.temperature = 1;
  const auto sink = ask(asked);
  EXPECT_THAT(sink->last().choices, SizeIs(3));
  asked.choices = 1;
  asked.seed = 9;
  EXPECT_EQ(sink->ids(2), ask(asked)->ids());
}

// What comes while a client reads slowly gathers in one event.
TEST_F(FrontendTest, ASlowClientGetsMoreAtOnce) {
  start();
  FakeSink sink(core_, request("slow", 2000), {.held = true});
  while (served_->stats.read().generated_tokens < 2000) std::this_thread::yield();
  sink.let_go();
  ASSERT_TRUE(sink.wait_for_end());
  // Those that came with the acceptance, and all others.
  EXPECT_LE(sink.all<AnswerDelta>().size(), 2u);
  EXPECT_THAT(sink.ids(), SizeIs(2000));
  EXPECT_EQ(sink.text().size(), 2000u);
}

TEST_F(FrontendTest, AClientThatLeavesEndsItsRequest) {
  start();
  FakeSink sink(core_, request("long", 1 << 19));
  ASSERT_TRUE(sink.wait_for(2));
  sink.leave();
  ASSERT_TRUE(sink.wait_for_end());
  ASSERT_TRUE(sink.refusal());
  EXPECT_EQ(sink.refusal()->row().code, Code::kCancelled);
  EXPECT_TRUE(core_.registry.wait_until_empty(Clock::now() + std::chrono::minutes(1)));
}

TEST_F(FrontendTest, AnAbortFindsTheRequestsOfItsTenant) {
  start();
  TextRequest asked = request("long", 1 << 19);
  asked.id = "same";
  FakeSink mine(core_, asked);
  asked.caller = kOther;
  FakeSink others(core_, asked);
  ASSERT_TRUE(mine.wait_for(1) && others.wait_for(1));
  EXPECT_TRUE(core_.registry.abort(kOther.tenant, "same"));
  ASSERT_TRUE(others.wait_for_end());
  EXPECT_EQ(others.refusal()->row().code, Code::kCancelled);
  asked.caller = kAnyone;
  EXPECT_EQ(refusal(asked).row().code, Code::kAlreadyExists);
  EXPECT_TRUE(core_.registry.abort(kAnyone.tenant, "same"));
  ASSERT_TRUE(mine.wait_for_end());
}

TEST_F(FrontendTest, ATenantHasItsOwnSessions) {
  start();
  command({.kind = Kind::kOpen, .name = "s"});
  TextRequest asked = request("x", 3);
  asked.session = "s";
  EXPECT_FALSE(ask(asked)->refusal());
  asked.caller = kOther;
  EXPECT_EQ(refusal(asked).row().code, Code::kNotFound);
}

TEST_F(FrontendTest, ADeadlineEndsIt) {
  start();
  FakeSink sink(core_, request("long", 1 << 19), {.timeout = std::chrono::milliseconds(50)});
  ASSERT_TRUE(sink.wait_for_end());
  EXPECT_EQ(sink.refusal()->row().code, Code::kDeadlineExceeded);
}

TEST_F(FrontendTest, RefusalsSayTheirMeaningAndTheField) {
  const Refusal loading = refusal(request("x"));
  EXPECT_EQ(loading.row().code, Code::kUnavailable);
  start();
  const auto expect = [&](const TextRequest& asked, Code code, const std::string& field) {
    const Refusal refused = refusal(asked);
    EXPECT_EQ(refused.row().code, code) << refused.message;
    EXPECT_EQ(refused.field, field);
    EXPECT_NE(refused.message, "");
  };
  TextRequest asked = request("");
  asked.add_special_tokens = false;
  expect(asked, Code::kInvalidArgument, "prompt");
  asked = request("x");
  asked.session = "unknown";
  expect(asked, Code::kNotFound, "");
  asked.session = "not a name";
  expect(asked, Code::kInvalidArgument, "session");
  asked = request("x", -1);
  expect(asked, Code::kInvalidArgument, "max_tokens");
  asked = request("x");
  asked.prompt = std::vector<int32_t>{FakeTokenizer::kSize};
  expect(asked, Code::kInvalidArgument, "prompt");
  asked = request("x");
  asked.choices = kSlots + 1;
  expect(asked, Code::kInvalidArgument, "n");
}

TEST_F(FrontendTest, AFullServerSaysWhenToComeAgain) {
  start();
  std::vector<std::unique_ptr<FakeSink>> sinks;
  for (int i = 0; i < kSlots; ++i) {
    sinks.push_back(std::make_unique<FakeSink>(core_, request("run", 1 << 19)));
    ASSERT_TRUE(sinks.back()->wait_for(1));
  }
  for (int i = 0; i < queue_.max_waiting(); ++i) {
    sinks.push_back(std::make_unique<FakeSink>(core_, request("wait", 1 << 19)));
    ASSERT_TRUE(sinks.back()->wait_for(1));
  }
  const Refusal full = refusal(request("one too many"));
  EXPECT_EQ(full.row().code, Code::kResourceExhausted);
  ASSERT_TRUE(full.retry_seconds);
  EXPECT_GE(*full.retry_seconds, 0.1);
  for (const auto& sink : sinks) sink->leave();
  for (const auto& sink : sinks) EXPECT_TRUE(sink->wait_for_end());
}

TEST_F(FrontendTest, ATextIsScoredPieceByPiece) {
  start();
  FakeScoreSink sink(core_, {{.options = ScoreOptions{.top = 1}, .content = "on"},
                             {.content = "ce upon"},
                             {.content = " a time"}});
  ASSERT_TRUE(sink.wait_for_end());
  ASSERT_FALSE(sink.refusal()) << sink.refusal()->message;
  const auto& last = std::get<ScoreEnd>(sink.events().back());
  EXPECT_EQ(last.scored_tokens, 16);
  EXPECT_EQ(last.text_bytes, 16);
  EXPECT_LT(last.sum_logprob, 0);
  TextRequest whole = request("once upon a time", 0);
  whole.prompt_logprobs = 1;
  double sum = 0;
  for (const PromptScored& scored : ask(whole)->all<PromptScored>()) {
    for (const SampledToken& token : scored.tokens) sum += static_cast<double>(token.logprob);
  }
  EXPECT_EQ(last.sum_logprob, sum);

  FakeScoreSink mixed(core_, {{.content = "a"}, {.content = std::vector<int32_t>{1}}});
  ASSERT_TRUE(mixed.wait_for_end());
  EXPECT_EQ(mixed.refusal()->field, "piece");
}

}  // namespace recurve::testing::frontend_test
