// Work on texts: long texts do not delay short ones, and work for cancelled calls stops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/rpc_fixture.h"

namespace recurve::text_work_test {

using ::testing::HasSubstr;

// Like FakeTokenizer, but a text with '#' waits until open() is called or the call is cancelled.
class GateTokenizer final : public Tokenizer {
 public:
  std::unique_ptr<TextEncoder> encoder(SpecialTokens special, TextPosition position,
                                       const WorkLimits& limits) const override {
    return std::make_unique<Encoder>(*this, inner_.encoder(special, position, limits), limits);
  }
  int32_t size() const override { return inner_.size(); }
  std::string_view token_bytes(int32_t id) const override { return inner_.token_bytes(id); }
  bool is_special(int32_t id) const override { return inner_.is_special(id); }
  std::optional<int32_t> id_of(std::string_view name) const override { return inner_.id_of(name); }
  std::optional<int32_t> bos_id() const override { return inner_.bos_id(); }
  std::optional<int32_t> eos_id() const override { return inner_.eos_id(); }
  std::string description() const override { return "gate"; }

  void open() const { open_ = true; }
  int begun() const { return begun_; }    // texts with a '#'
  int inside() const { return inside_; }  // that are waiting

 private:
  class Encoder final : public TextEncoder {
   public:
    Encoder(const GateTokenizer& gate, std::unique_ptr<TextEncoder> inner, const WorkLimits& limits)
        : gate_(gate), inner_(std::move(inner)), limits_(limits) {}
    void push(std::string_view utf8, bool last, std::vector<int32_t>* ids) override {
      if (utf8.find('#') != std::string_view::npos) wait();
      inner_->push(utf8, last, ids);
    }
    void set_special(SpecialTokens special, std::vector<int32_t>* ids) override {
      inner_->set_special(special, ids);
    }
    size_t held() const override { return inner_->held(); }

   private:
    struct Inside {
      explicit Inside(std::atomic<int>& count) : count(count) { ++count; }
      ~Inside() { --count; }
      std::atomic<int>& count;
    };
    void wait() const {
      const Inside inside(gate_.inside_);
      ++gate_.begun_;
      while (!gate_.open_) {
        limits_.check();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    const GateTokenizer& gate_;
    const std::unique_ptr<TextEncoder> inner_;
    const WorkLimits limits_;
  };

  const FakeTokenizer inner_;
  mutable std::atomic<bool> open_{false};
  mutable std::atomic<int> begun_{0}, inside_{0};
};

class TextWorkTest : public RpcFixture {
 protected:
  void SetUp() override { tokenizer_ = gate_ = std::make_shared<GateTokenizer>(); }
  void TearDown() override {
    gate_->open();
    RpcFixture::TearDown();
  }

  // A prompt that waits until the gate opens.
  static v1::GenerateRequest slow(size_t bytes) {
    return text_request("#" + std::string(bytes, 'a'));
  }
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
    grpc::Status end() {
      v1::GenerateResponse response;
      while (reader->Read(&response)) {
      }
      return reader->Finish();
    }
  };
  std::unique_ptr<Call> call(const v1::GenerateRequest& request, double seconds = 60) {
    auto made = std::make_unique<Call>();
    made->context.set_deadline(std::chrono::system_clock::now() +
                               std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds)));
    made->reader = inference_->Generate(&made->context, request);
    return made;
  }

  std::shared_ptr<GateTokenizer> gate_;
};

constexpr size_t kLong = 200 << 10;

TEST_F(TextWorkTest, AShortTextPassesLongOnes) {
  start();
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(call(slow(kLong)));
  ASSERT_TRUE(eventually([&] { return core_->under_way() == 4 && gate_->inside() > 0; }));
  const auto honest = call(text_request("hello"), 20);
  EXPECT_TRUE(honest->end().ok());
  EXPECT_EQ(gate_->inside(), 1);
  gate_->open();
  for (const auto& one : calls) EXPECT_TRUE(one->end().ok());
}

TEST_F(TextWorkTest, RunningWorkEndsWithItsClient) {
  start();
  const auto cancelled = call(slow(kLong));
  ASSERT_TRUE(eventually([&] { return gate_->inside() == 1; }));
  cancelled->context.TryCancel();
  EXPECT_TRUE(eventually([&] { return gate_->inside() == 0; }));
  EXPECT_TRUE(eventually([&] { return core_->under_way() == 0; }));
  EXPECT_EQ(cancelled->end().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(TextWorkTest, RunningWorkEndsWithItsDeadline) {
  start();
  const auto late = call(slow(kLong), 0.3);
  EXPECT_EQ(late->end().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(eventually([&] { return core_->under_way() == 0; }));
  EXPECT_EQ(gate_->inside(), 0);
}

TEST_F(TextWorkTest, CancelledWorkIsNotStarted) {
  start();
  const auto first = call(slow(kLong));
  ASSERT_TRUE(eventually([&] { return gate_->inside() == 1; }));
  std::vector<std::unique_ptr<Call>> others;
  for (int i = 0; i < 6; ++i) others.push_back(call(slow(kLong)));
  ASSERT_TRUE(eventually([&] { return core_->under_way() == 7; }));
  for (const auto& one : others) one->context.TryCancel();
  EXPECT_TRUE(eventually([&] { return core_->under_way() == 1; }));  // though the first still works
  EXPECT_EQ(gate_->begun(), 1);
  gate_->open();
  EXPECT_TRUE(first->end().ok());
}

TEST_F(TextWorkTest, AbortFindsWaitingAndRunningWork) {
  start();
  std::vector<std::unique_ptr<Call>> calls;
  for (const char* id : {"a", "b"}) {
    v1::GenerateRequest request = slow(kLong);
    request.set_request_id(id);
    calls.push_back(call(request));
    ASSERT_TRUE(eventually([&] { return gate_->inside() == 1; }));
  }
  const auto abort = [&](const char* id) {
    grpc::ClientContext context;
    v1::AbortRequest request;
    request.set_request_id(id);
    v1::AbortResponse response;
    return inference_->Abort(&context, request, &response).ok();
  };
  for (const char* id : {"b", "a"}) EXPECT_TRUE(eventually([&] { return abort(id); })) << id;
  for (const auto& one : calls) EXPECT_EQ(one->end().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(gate_->begun(), 1);
}

TEST_F(TextWorkTest, TokenizeEndsWithItsClient) {
  start();
  std::atomic<int> ended{0};
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    callers.emplace_back([&, i] {
      v1::TokenizeRequest request;
      request.set_text("#" + std::string(kLong, 'a'));
      v1::TokenizeResponse response;
      const auto status =
          inference_->Tokenize(contexts[static_cast<size_t>(i)].get(), request, &response);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
      ++ended;
    });
  }
  ASSERT_TRUE(eventually([&] { return gate_->inside() == 1; }));
  for (const auto& context : contexts) context->TryCancel();
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(eventually([&] { return gate_->inside() == 0; }));
  EXPECT_LE(gate_->begun(), 3);
}

TEST_F(TextWorkTest, ScoreEndsWithItsClient) {
  start();
  grpc::ClientContext context;
  const auto stream = inference_->Score(&context);
  v1::ScoreRequest piece;
  piece.set_text("#a");
  ASSERT_TRUE(stream->Write(piece));
  ASSERT_TRUE(eventually([&] { return gate_->inside() == 1; }));
  context.TryCancel();
  EXPECT_TRUE(eventually([&] { return gate_->inside() == 0 && core_->under_way() == 0; }));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(TextWorkTest, ATextOfTooManyTokensIsRefusedAtTheLimit) {
  start({}, {.core = {.max_prompt_tokens = 100}});
  const auto refused = call(text_request(std::string(101, 'a')));
  const grpc::Status status = refused->end();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("at most 100 tokens"));
  EXPECT_TRUE(call(text_request(std::string(100, 'a')))->end().ok());
}

// Long messages cannot use all the memory for messages.
TEST_F(TextWorkTest, LongMessagesLeaveMemoryForShortOnes) {
  start({}, {.core = {.max_bytes_under_way = 1 << 20}});
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 8; ++i) calls.push_back(call(slow(kLong)));
  ASSERT_TRUE(eventually([&] { return gate_->inside() == 1; }));
  // Three of 200 KiB: one connection may use three times the remainder of 1 MiB.
  EXPECT_TRUE(eventually(
      [&] { return metrics_.text().find("code=\"RESOURCE_EXHAUSTED\"} 5") != std::string::npos; }));
  EXPECT_TRUE(call(text_request("hello"), 20)->end().ok());
}

// The pieces of a Score count like other messages.
TEST_F(TextWorkTest, PiecesOfAScoreCountInTheSameMemory) {
  start({}, {.core = {.max_bytes_under_way = 1 << 20}});
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 3; ++i) calls.push_back(call(slow(kLong)));
  ASSERT_TRUE(eventually([&] { return core_->under_way() == 3 && gate_->inside() == 1; }));
  grpc::ClientContext context;
  const auto stream = inference_->Score(&context);
  v1::ScoreRequest piece;
  piece.set_text(std::string(kLong, 'a'));
  stream->Write(piece);
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

}  // namespace recurve::text_work_test
