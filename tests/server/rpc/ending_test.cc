// Streams that fail or are cancelled: their end, and that they free everything.
#include <gmock/gmock.h>

#include "tests/support/rpc_fixture.h"

namespace recurve::ending_test {

using grpc::StatusCode;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class EndingTest : public RpcFixture {
 protected:
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
    v1::GenerateResponse response;
  };

  // Every request gets an endless stream of 'a'.
  void start_endless(microseconds step, int max_queue = 64) {
    start({.step = step,
           .script =
               [](const Request&) {
                 return FakeEngine::Play{{std::vector<int32_t>(1'000'000, 'a')}};
               }},
          {}, max_queue);
  }
  static v1::GenerateRequest long_request(const std::string& id = "") {
    v1::GenerateRequest request = text_request("x");
    request.set_request_id(id);
    request.mutable_stop()->set_max_tokens(1'000'000);
    return request;
  }
  std::unique_ptr<Call> open(v1::Inference::Stub& stub, const v1::GenerateRequest& request) {
    auto call = std::make_unique<Call>();
    call->reader = stub.Generate(&call->context, request);
    return call;
  }
  bool nothing_left() {
    return eventually([&] {
      return core_->under_way() == 0 && queue_->waiting() == 0 && engine_->running() == 0;
    });
  }
};

TEST_F(EndingTest, ADisconnectedClientsRequestEnds) {
  start_endless(microseconds(200));
  const auto call = open(*inference_, long_request());
  ASSERT_TRUE(call->reader->Read(&call->response));  // what was understood
  ASSERT_TRUE(call->reader->Read(&call->response));
  call->context.TryCancel();
  EXPECT_EQ(call->reader->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(nothing_left());
  EXPECT_EQ(engine_->cancelled(), 1);
  EXPECT_LT(engine_->generated(), 500'000);
}

TEST_F(EndingTest, ADisconnectedClientLeavesTheQueue) {
  start_endless(microseconds(200));
  engine_->hold(true);
  v1::GenerateRequest request = long_request();
  request.set_n(3);
  const auto call = open(*inference_, request);
  ASSERT_TRUE(eventually([&] { return queue_->waiting() == 1; }));
  call->context.TryCancel();
  EXPECT_EQ(call->reader->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(nothing_left());
  EXPECT_EQ(engine_->cancelled(), 3);  // every choice was told
  EXPECT_EQ(engine_->generated(), 0);
}

TEST_F(EndingTest, AbortEndsARequestById) {
  start_endless(microseconds(200));
  const auto abort = [&](const std::string& id) {
    v1::AbortRequest request;
    request.set_request_id(id);
    v1::AbortResponse response;
    grpc::ClientContext context;
    return inference_->Abort(&context, request, &response);
  };
  const auto call = open(*inference_, long_request("mine"));
  const auto other = open(*inference_, long_request("other"));
  ASSERT_TRUE(call->reader->Read(&call->response));
  EXPECT_TRUE(abort("mine").ok());
  while (call->reader->Read(&call->response)) EXPECT_FALSE(call->response.has_final());
  const grpc::Status status = call->reader->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::CANCELLED);
  EXPECT_THAT(status.error_message(), HasSubstr("aborted"));
  EXPECT_EQ(abort("mine").error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(abort("").error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(other->reader->Read(&other->response));  // goes on
  EXPECT_TRUE(abort("other").ok());
  while (other->reader->Read(&other->response)) {
  }
  other->reader->Finish();
  EXPECT_TRUE(nothing_left());
}

TEST_F(EndingTest, DeadlinesReachTheEngineAndEndTheRequest) {
  start_endless(microseconds(200));
  ASSERT_TRUE(channel_->WaitForConnected(std::chrono::system_clock::now() + seconds(60)));
  for (const bool held : {false, true}) {  // while it runs, and in the queue
    engine_->hold(held);
    const auto begin = Clock::now();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(1));
    EXPECT_EQ(generate(long_request(), &context).status.error_code(),
              StatusCode::DEADLINE_EXCEEDED);
    EXPECT_TRUE(nothing_left());
    EXPECT_LT(Clock::now() - begin, seconds(30));
    if (held) continue;
    const Request seen = engine_->last_request();
    ASSERT_TRUE(seen.deadline.has_value());
    EXPECT_NEAR(std::chrono::duration<double>(*seen.deadline - begin).count(), 1, 0.9);
  }
  engine_->hold(false);
  const auto call = open(*inference_, long_request());  // without one
  ASSERT_TRUE(call->reader->Read(&call->response));
  EXPECT_FALSE(engine_->last_request().deadline.has_value());
  call->context.TryCancel();
  call->reader->Finish();
}

TEST_F(EndingTest, RefusalsOfTheEngineHaveTheirCode) {
  StreamEnd refusal;
  start({.script = [&](const Request&) { return FakeEngine::Play{{}, refusal}; }});
  const std::vector<std::pair<EndReason, StatusCode>> cases = {
      {EndReason::kNoSession, StatusCode::NOT_FOUND},
      {EndReason::kSessionBusy, StatusCode::FAILED_PRECONDITION},
      {EndReason::kInvalid, StatusCode::INVALID_ARGUMENT},
      {EndReason::kOverloaded, StatusCode::RESOURCE_EXHAUSTED},
      {EndReason::kDeadline, StatusCode::DEADLINE_EXCEEDED},
      {EndReason::kStalled, StatusCode::DEADLINE_EXCEEDED},
      {EndReason::kConstraint, StatusCode::INVALID_ARGUMENT},
      {EndReason::kCancelled, StatusCode::CANCELLED},
      {EndReason::kDraining, StatusCode::UNAVAILABLE},
      {EndReason::kInternal, StatusCode::INTERNAL}};
  for (const auto& [reason, code] : cases) {
    for (const std::string message : {"", "do this instead"}) {
      refusal = {.reason = reason, .message = message};
      const Generated answer = generate(text_request("x"));
      EXPECT_EQ(answer.status.error_code(), code);
      EXPECT_THAT(answer.status.error_message(), HasSubstr(message));
      EXPECT_FALSE(answer.status.error_message().empty());
      EXPECT_TRUE(answer.messages.empty());
    }
  }
  const std::string metrics = metrics_.text();
  for (const std::string reason :
       {"stalled", "error", "deadline", "shutdown", "constraint", "cancelled"}) {
    EXPECT_THAT(metrics, HasSubstr("finished_total{reason=\"" + reason + "\"} 2\n")) << reason;
  }
}

TEST_F(EndingTest, NoUsableDistributionIsInternalAndEarlierTokensArrive) {
  start({.script = [](const Request&) {
    return FakeEngine::Play{.tokens = {{'a', 'b'}}, .failure = EndReason::kInternal};
  }});
  const Generated answer = generate(text_request("x"));
  EXPECT_EQ(answer.status.error_code(), StatusCode::INTERNAL);
  EXPECT_FALSE(answer.status.error_message().empty());
  EXPECT_EQ(answer.text(), "ab");
  EXPECT_FALSE(answer.messages.back().has_final());
}

TEST_F(EndingTest, AFullQueueSaysWhenToRetry) {
  start({}, {}, 2);
  engine_->hold(true);
  const auto first = open(*inference_, text_request("a")),
             second = open(*inference_, text_request("b"));
  ASSERT_TRUE(eventually([&] { return queue_->waiting() == 2; }));
  const Generated refused = generate(text_request("c"));
  EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("queue"));
  const auto pushback = refused.trailers.find("grpc-retry-pushback-ms");
  ASSERT_NE(pushback, refused.trailers.end());
  EXPECT_GT(std::stoi(pushback->second), 0);
  engine_->hold(false);
  for (const auto* call : {&first, &second}) {
    while ((*call)->reader->Read(&(*call)->response)) {
    }
    EXPECT_TRUE((*call)->reader->Finish().ok());
    EXPECT_TRUE((*call)->response.has_final());
  }
  EXPECT_TRUE(generate(text_request("c")).status.ok());
}

TEST_F(EndingTest, ARefusalBecauseOfLoadSaysWhenToRetry) {
  start({.script = [](const Request&) {
    return FakeEngine::Play{{}, StreamEnd{.reason = EndReason::kOverloaded, .retry_seconds = 2.5}};
  }});
  const Generated refused = generate(text_request("x"));
  const auto pushback = refused.trailers.find("grpc-retry-pushback-ms");
  ASSERT_NE(pushback, refused.trailers.end());
  EXPECT_EQ(pushback->second, "2500");
}

TEST_F(EndingTest, RequestsThatExceedTheirMemoryAreRefused) {
  start({}, {.core = {.max_bytes_under_way = 10000}});
  engine_->hold(true);
  const std::string text(6000, 'x');
  const auto first = open(*inference_, text_request(text));
  ASSERT_TRUE(eventually([&] { return queue_->waiting() == 1; }));
  const Generated refused = generate(text_request(text));
  EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("memory"));
  v1::TokenizeRequest tokenize;
  tokenize.set_text(text);
  v1::TokenizeResponse ids;
  grpc::ClientContext context;
  EXPECT_EQ(inference_->Tokenize(&context, tokenize, &ids).error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
  const auto small = open(*inference_, text_request("small"));
  ASSERT_TRUE(eventually([&] { return queue_->waiting() == 2; }));
  engine_->hold(false);
  for (const auto* call : {&first, &small}) {
    while ((*call)->reader->Read(&(*call)->response)) {
    }
    EXPECT_TRUE((*call)->reader->Finish().ok());
  }
  // The memory is freed when the call object is deleted, shortly after its end.
  EXPECT_TRUE(nothing_left());
  EXPECT_TRUE(generate(text_request(std::string(20000, 'x'))).status.ok())
      << "without others it fits";
}

TEST_F(EndingTest, ARequestIdIsUniqueWhileItRuns) {
  start();
  engine_->hold(true);
  v1::GenerateRequest request = text_request("x");
  request.set_request_id("mine");
  const auto first = open(*inference_, request);
  ASSERT_TRUE(eventually([&] { return queue_->waiting() == 1; }));
  const Generated second = generate(request);
  EXPECT_EQ(second.status.error_code(), StatusCode::ALREADY_EXISTS);
  EXPECT_THAT(second.status.error_message(), AllOf(HasSubstr("request_id"), HasSubstr("mine")));
  engine_->hold(false);
  while (first->reader->Read(&first->response)) {
  }
  EXPECT_TRUE(first->reader->Finish().ok());
  EXPECT_TRUE(generate(request).status.ok());  // free again
}

// With and without a stop string, for which the server checks each token.
class SlowReaderTest : public EndingTest, public ::testing::WithParamInterface<bool> {};

TEST_P(SlowReaderTest, DoesNotDelayTheEngineAndGetsAllTokens) {
  constexpr int kTokens = 10'000;
  start_endless(microseconds(1));  // slowly enough for a message a token
  v1::GenerateRequest request = text_request("x");
  request.mutable_stop()->set_max_tokens(kTokens);
  request.set_logprobs(5);  // about 90 bytes a token
  if (GetParam()) request.mutable_stop()->add_stop_strings("never");
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // a window of 64 KiB, which does not grow
  const auto stub = v1::Inference::NewStub(
      grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server_->port()),
                                grpc::InsecureChannelCredentials(), arguments));
  const auto call = open(*stub, request);
  ASSERT_TRUE(
      eventually([&] { return engine_->generated() == kTokens; }));  // the client does not read
  int64_t messages = 0, ids = 0, text = 0;
  while (call->reader->Read(&call->response)) {
    ++messages;
    ids += call->response.chunk().ids_size();
    text += static_cast<int64_t>(call->response.chunk().text().size());
  }
  EXPECT_TRUE(call->reader->Finish().ok());
  EXPECT_EQ(ids, kTokens);
  EXPECT_EQ(text, kTokens);
  // Single tokens while the connection's buffers have space, then all tokens since.
  EXPECT_LT(messages, kTokens / 2);
}
INSTANTIATE_TEST_SUITE_P(StopString, SlowReaderTest, ::testing::Bool());

TEST_F(EndingTest, AThousandCallsThatOpenAndCancel) {
  start_endless(microseconds(500), 100);
  for (int round = 0; round < 10; ++round) {
    engine_->hold(round % 3 == 2);  // then they leave from the queue
    const auto stub = v1::Inference::NewStub(connect());
    std::vector<std::unique_ptr<Call>> calls;
    for (int i = 0; i < 100; ++i) {
      v1::GenerateRequest request = long_request();
      if (i % 4 == 1) request.mutable_stop()->add_stop_strings("never");
      if (i % 8 == 2) request.set_n(2);
      calls.push_back(open(*stub, request));
      if (i % 5 == 0) calls.back()->context.TryCancel();  // at once
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      if (round % 3 == 0 && i % 5 == 1) calls[i]->reader->Read(&calls[i]->response);
      calls[i]->context.TryCancel();
    }
    for (const auto& call : calls) EXPECT_FALSE(call->reader->Finish().ok());
  }
  engine_->hold(false);
  EXPECT_TRUE(nothing_left());
  v1::GenerateRequest request = text_request("x");
  request.mutable_stop()->set_max_tokens(3);
  EXPECT_EQ(generate(request).text(), "aaa");
}

}  // namespace recurve::ending_test
