#include <gmock/gmock.h>

#include <atomic>
#include <thread>
#include <utility>

#include "tests/support/held_clock.h"
#include "tests/support/rpc_fixture.h"

namespace recurve::score_test {

using grpc::StatusCode;
using ::testing::HasSubstr;

// The fake engine reports log-probability -1 for every token after the first.
class ScoreTest : public RpcFixture {
 protected:
  struct Scored {
    grpc::Status status;
    std::vector<v1::ScoreResponse> messages;
    const v1::ScoreFinal& final() const { return messages.back().final(); }
  };
  Scored score(const std::vector<v1::ScoreRequest>& pieces) {
    grpc::ClientContext context;
    const auto stream = inference_->Score(&context);
    for (const auto& piece : pieces) {
      if (!stream->Write(piece)) break;
    }
    stream->WritesDone();
    Scored all;
    v1::ScoreResponse response;
    while (stream->Read(&response)) all.messages.push_back(response);
    all.status = stream->Finish();
    return all;
  }
  static v1::ScoreRequest text(const std::string& bytes) {
    v1::ScoreRequest piece;
    piece.set_text(bytes);
    return piece;
  }
  static v1::ScoreRequest ids(const std::vector<int32_t>& ids) {
    v1::ScoreRequest piece;
    piece.mutable_ids()->mutable_ids()->Add(ids.begin(), ids.end());
    return piece;
  }
};

TEST_F(ScoreTest, SumsOverAllPieces) {
  start();
  // The second border is inside the character é.
  const Scored got = score({text("abc"), text("d\xC3"), text("\xA9")});
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  EXPECT_TRUE(got.messages.front().has_prompt());
  EXPECT_EQ(got.messages.front().prompt().prompt_tokens(), 7);
  EXPECT_EQ(got.final().scored_tokens(), 6);  // BOS is not predicted
  EXPECT_EQ(got.final().sum_logprob(), -6);
  EXPECT_EQ(got.final().text_bytes(), 6);
  EXPECT_EQ(got.final().usage().prompt_tokens(), 7);
  EXPECT_EQ(engine_->last_request().sampling.max_tokens, 0);
  EXPECT_EQ(engine_->last_request().sampling.prompt_logprobs, 0);
  for (const auto& m : got.messages) EXPECT_EQ(m.progress().tokens_size(), 0);
}

TEST_F(ScoreTest, TokensComeIfRequested) {
  start();
  v1::ScoreRequest first;
  first.mutable_options()->set_top(2);
  first.mutable_options()->set_request_id("score-1");
  const Scored got = score({first, text("xyz")});
  ASSERT_TRUE(got.status.ok());
  EXPECT_EQ(got.messages.front().prompt().request_id(), "score-1");
  std::vector<int32_t> scored;
  for (const auto& m : got.messages) {
    for (const auto& t : m.progress().tokens()) {
      scored.push_back(t.id());
      EXPECT_EQ(t.top_size(), 2);
    }
  }
  EXPECT_EQ(scored, (std::vector<int32_t>{'x', 'y', 'z'}));
}

TEST_F(ScoreTest, ManyTokensTakeSeveralMessages) {
  start();
  v1::ScoreRequest first = text(std::string(20'000, 'a'));
  first.mutable_options()->set_top(5);
  const Scored got = score({first});
  ASSERT_TRUE(got.status.ok());
  int tokens = 0;
  for (const auto& m : got.messages) {
    EXPECT_LT(m.ByteSizeLong(), size_t{1} << 20);
    tokens += m.progress().tokens_size();
  }
  EXPECT_EQ(tokens, 20'000);
  EXPECT_GT(got.messages.size(), 10u);
}

TEST_F(ScoreTest, IdsAreUsedUnchanged) {
  start();
  const Scored got = score({ids({'a', FakeTokenizer::kWords}), ids({'b'})});
  ASSERT_TRUE(got.status.ok());
  EXPECT_EQ(got.final().scored_tokens(), 2);  // no BOS
  EXPECT_EQ(got.final().text_bytes(), 7);     // "a" "hello" "b"
}

// A message may have any number: the engine's thread only copies the next ones.
TEST_F(ScoreTest, IdsReachTheEngineInPortions) {
  start();
  const Scored got = score({ids(std::vector<int32_t>(100'000, 'a')), ids({'b'})});
  ASSERT_TRUE(got.status.ok());
  EXPECT_EQ(got.final().scored_tokens(), 100'000);
  EXPECT_LE(engine_->last_request().prompt.ids.size(), 4096u);
  EXPECT_LE(engine_->most_fed(), 4096);
}

TEST_F(ScoreTest, BadInputHasItsCode) {
  start({}, {.core = {.max_unbroken_bytes = 1}});
  v1::ScoreRequest late;
  late.mutable_options();
  v1::ScoreRequest top = text("x");
  top.mutable_options()->set_top(101);
  v1::ScoreRequest unbroken = text("a<s");
  unbroken.mutable_options()->set_parse_special(true);
  const std::vector<std::pair<std::vector<v1::ScoreRequest>, std::string>> cases = {
      {{}, "at least one token"},
      {{text("")}, "at least one token"},
      {{text("a\xC3")}, "ends within the character at byte 1"},
      {{text("ab\xFF")}, "valid UTF-8, the error is at byte 2"},
      {{text("ab\xC3"), text("(")}, "valid UTF-8, the error is at byte 2"},
      {{text(std::string(30'000, 'a')), text("\xE2\x82"), text("a")}, "error is at byte 30000"},
      {{text("a"), ids({1})}, "both"},
      {{ids({1}), text("a")}, "both"},
      {{text("a"), late}, "options"},
      {{top}, "top must be in [0, 100]"},
      {{ids({262})}, "[0, 262)"},
      {{ids(std::vector<int32_t>(9000, 1)), ids({2, -1})}, "got -1 at index 9001"},
      {{unbroken}, "within 1 bytes"}};
  for (const auto& [pieces, words] : cases) {
    const Scored got = score(pieces);
    EXPECT_EQ(got.status.error_code(), StatusCode::INVALID_ARGUMENT) << words;
    EXPECT_THAT(got.status.error_message(), HasSubstr(words));
  }
  EXPECT_TRUE(score({text("fine")}).status.ok());
}

TEST_F(ScoreTest, ARefusalEndsACallThatIsStillSending) {
  start();
  grpc::ClientContext context;
  const auto stream = inference_->Score(&context);
  // Never half-closed: the refusal must not wait for that or for the busy engine.
  ASSERT_TRUE(stream->Write(text(std::string(10'000, 'a'))));
  ASSERT_TRUE(eventually([&] { return engine_->running() == 1; }));
  ASSERT_TRUE(stream->Write(text("\xFF")));
  v1::ScoreResponse response;
  while (stream->Read(&response)) EXPECT_FALSE(response.has_final());
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("byte 10000"));
  EXPECT_TRUE(eventually([&] { return engine_->running() == 0; }));
  EXPECT_EQ(engine_->cancelled(), 1);
}

TEST_F(ScoreTest, TextIsScoredBeforeItHasEnded) {
  start();
  grpc::ClientContext context;
  const auto stream = inference_->Score(&context);
  ASSERT_TRUE(stream->Write(text(std::string(5000, 'a'))));
  v1::ScoreResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_TRUE(response.has_prompt());
  EXPECT_EQ(response.prompt().prompt_tokens(), 0);  // not known yet
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_GE(response.progress().scored_tokens(), 4096);
  ASSERT_TRUE(stream->Write(text("the end")));
  stream->WritesDone();
  while (stream->Read(&response)) continue;
  ASSERT_TRUE(stream->Finish().ok());
  EXPECT_EQ(response.final().scored_tokens(), 5007);
  EXPECT_EQ(response.final().text_bytes(), 5007);
  EXPECT_EQ(response.final().usage().prompt_tokens(), 5008);
}

// The engine waits for a client that does not read, and then the client has to wait.
TEST_F(ScoreTest, AClientThatDoesNotReadIsNotRead) {
  start();
  grpc::ClientContext context;
  const auto stream = inference_->Score(&context);
  std::atomic<int> sent{0};
  std::thread writer([&] {
    v1::ScoreRequest first;
    first.mutable_options()->set_top(20);  // so that answers are many times the text
    bool open = stream->Write(first);
    while (open && sent < 100'000) {
      open = stream->Write(text(std::string(1000, 'a')));
      ++sent;
    }
  });
  int before = -1;
  EXPECT_TRUE(eventually([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return std::exchange(before, sent.load()) == sent && sent > 0;
  }));
  EXPECT_LT(sent, 20'000);
  context.TryCancel();
  writer.join();
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(eventually([&] { return core_->under_way() == 0 && engine_->running() == 0; }));
}

TEST_F(ScoreTest, ASlotIsFreedForEveryEndOfTheText) {
  start();
  const auto now = std::chrono::system_clock::now;
  ASSERT_TRUE(channel_->WaitForConnected(now() + std::chrono::seconds(60)));
  const auto begin = [&](grpc::ClientContext& context, const char* name) {
    auto stream = inference_->Score(&context);
    v1::ScoreRequest first = text(std::string(5000, 'a'));
    first.mutable_options()->set_request_id(name);
    EXPECT_TRUE(stream->Write(first));
    EXPECT_TRUE(eventually([&] { return engine_->running() == 1; }));
    return stream;
  };
  const auto finish = [&](auto& stream) {
    v1::ScoreResponse response;
    while (stream->Read(&response)) EXPECT_FALSE(response.has_final());
    const grpc::Status status = stream->Finish();
    EXPECT_TRUE(eventually([&] { return engine_->running() == 0; }));
    return status.error_code();
  };
  {
    const testing::HeldClock held;
    grpc::ClientContext context;
    context.set_deadline(now() + std::chrono::minutes(10));
    const auto stream = begin(context, "deadline");
    Clock::pass(std::chrono::minutes(11));
    EXPECT_EQ(finish(stream), StatusCode::DEADLINE_EXCEEDED);
  }
  {
    grpc::ClientContext context;
    const auto stream = begin(context, "gone");
    context.TryCancel();
    EXPECT_EQ(finish(stream), StatusCode::CANCELLED);
  }
  {
    grpc::ClientContext context, other;
    const auto stream = begin(context, "aborted");
    v1::AbortRequest abort;
    abort.set_request_id("aborted");
    v1::AbortResponse aborted;
    EXPECT_TRUE(inference_->Abort(&other, abort, &aborted).ok());
    EXPECT_EQ(finish(stream), StatusCode::CANCELLED);
  }
  {
    grpc::ClientContext context;
    const auto stream = begin(context, "drained");
    EXPECT_FALSE(core_->drain(Clock::now()));
    EXPECT_EQ(finish(stream), StatusCode::UNAVAILABLE);
  }
  EXPECT_TRUE(eventually([&] { return core_->under_way() == 0; }));
}

TEST_F(ScoreTest, ACallCancelledWhileSendingFreesEverything) {
  start();
  grpc::ClientContext context;
  const auto stream = inference_->Score(&context);
  ASSERT_TRUE(stream->Write(text("abc")));
  ASSERT_TRUE(eventually([&] { return core_->under_way() == 1; }));
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(eventually([&] { return core_->under_way() == 0; }));
}

TEST_F(ScoreTest, DrainEndsACallWhoseTextDoesNotEnd) {
  // A call counts as running shortly before it is accepted or refused. If the drain comes in that
  // time, try with another server.
  bool cut_off = false;
  for (int left = 10; left > 0 && !cut_off; --left) {
    TearDown();
    start();
    grpc::ClientContext context;
    const auto stream = inference_->Score(&context);
    ASSERT_TRUE(stream->Write(text("abc")));
    ASSERT_TRUE(eventually([&] { return core_->under_way() == 1; }));
    core_->drain(Clock::now());
    v1::ScoreResponse response;
    EXPECT_FALSE(stream->Read(&response));
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
    cut_off = status.error_message().find("shutting down") != std::string::npos;
    EXPECT_THAT(status.error_message(), HasSubstr(cut_off ? "shutting down" : "draining"));
    EXPECT_TRUE(eventually([&] { return core_->under_way() == 0; }));
  }
  EXPECT_TRUE(cut_off);
}

}  // namespace recurve::score_test
