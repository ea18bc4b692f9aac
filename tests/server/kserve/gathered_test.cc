// Memory for answers of KServe and of gRPC's unary methods: reserved before they start, refused
// with the numbers, and freed.
#include <gmock/gmock.h>

#include "kserve/v2/inference.grpc.pb.h"
#include "server/kserve/kserve_service.h"
#include "tests/support/rpc_fixture.h"

namespace recurve::kserve_gathered_test {

using grpc::StatusCode;
using ::testing::HasSubstr;

class GatheredTest : public RpcFixture {
 protected:
  void SetUp() override {
    services_ = {kserve_service()};
    const auto script = [](const Request&) {
      return FakeEngine::Play{
          std::vector<std::vector<int32_t>>(8, std::vector<int32_t>(1'000'000, 'a'))};
    };
    start({.step = std::chrono::microseconds(100), .script = script}, {}, /*max_queue=*/1000);
    infer_ = inference::GRPCInferenceService::NewStub(channel_);
  }

  static inference::ModelInferRequest request(int64_t tokens, int64_t choices, int64_t logprobs) {
    inference::ModelInferRequest request;
    request.set_model_name("fake");
    auto& text = *request.add_inputs();
    text.set_name("text_input");
    text.set_datatype("BYTES");
    text.add_shape(1);
    text.mutable_contents()->add_bytes_contents("x");
    auto& parameters = *request.mutable_parameters();
    parameters["max_tokens"].set_int64_param(tokens);
    parameters["n"].set_int64_param(choices);
    parameters["logprobs"].set_int64_param(logprobs);
    return request;
  }
  grpc::Status infer(const inference::ModelInferRequest& request) {
    grpc::ClientContext context;
    inference::ModelInferResponse response;
    return infer_->ModelInfer(&context, request, &response);
  }
  std::string streamed_error(const inference::ModelInferRequest& request) {
    grpc::ClientContext context;
    const auto stream = infer_->ModelStreamInfer(&context);
    stream->Write(request);
    stream->WritesDone();
    inference::ModelStreamInferResponse response;
    EXPECT_TRUE(stream->Read(&response));
    return response.error_message();
  }
  // Reserves all memory but that much.
  ByteBudget::Share all_but(int64_t bytes) {
    return core_->gathered_bytes.take(core_->options.max_gathered_bytes - bytes, 7);
  }
  // The share of this test's calls.
  TenantId visitor() {
    EXPECT_TRUE(infer(request(1, 1, 0)).ok());
    return engine_->last_request().caller.share();
  }
  bool all_given_back() {
    return eventually([&] { return core_->gathered_bytes.used() == 0 && core_->under_way() == 0; });
  }

  std::unique_ptr<inference::GRPCInferenceService::Stub> infer_;
};

TEST_F(GatheredTest, AnAnswerOverTheLimitIsRefusedWithTheNumbers) {
  const auto large = request(1'000'000, 8, 20);
  const grpc::Status status = infer(large);
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr(" MB with these max_tokens, n and logprobs"));
  EXPECT_THAT(status.error_message(), HasSubstr("the limit is 128 MB"));
  EXPECT_THAT(streamed_error(large), HasSubstr("the limit is 128 MB"))
      << "a whole answer in a stream of calls";
  EXPECT_EQ(engine_->generated(), 0);
  EXPECT_EQ(core_->gathered_bytes.used(), 0);
}

TEST_F(GatheredTest, AnAnswerWithoutFreeMemoryIsRefusedForNow) {
  {
    const ByteBudget::Share others = all_but(1 << 20);
    const grpc::Status status = infer(request(1'000, 1, 20));
    EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr("not enough memory for a whole answer"));
    EXPECT_EQ(engine_->generated(), 0);
    EXPECT_THAT(streamed_error(request(1'000, 1, 20)),
                HasSubstr("not enough memory for a whole answer"));
    auto streamed = request(3, 1, 20);
    auto& stream = *streamed.add_inputs();
    stream.set_name("stream");
    stream.set_datatype("BOOL");
    stream.add_shape(1);
    stream.mutable_contents()->add_bool_contents(true);
    EXPECT_EQ(streamed_error(streamed), "") << "a streamed answer is not stored";
  }
  EXPECT_TRUE(infer(request(1'000, 1, 20)).ok());
  EXPECT_TRUE(all_given_back());
}

// Answers of one tenant leave memory for others.
TEST_F(GatheredTest, OneClientCannotUseAllMemory) {
  const ByteBudget::Share own =
      core_->gathered_bytes.take(core_->options.max_gathered_bytes * 2 / 3, visitor());
  EXPECT_EQ(infer(request(5'000, 1, 20)).error_code(), StatusCode::RESOURCE_EXHAUSTED);
  const ByteBudget::Share of_another = core_->gathered_bytes.take(50 << 20, 7);
  EXPECT_TRUE(of_another);
}

TEST_F(GatheredTest, IsFreedIfTheCallIsCancelledOrFails) {
  for (const bool cancelled : {true, false}) {
    grpc::ClientContext context;
    if (!cancelled) {
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
    }
    std::thread canceller([&] {
      if (!cancelled) return;
      EXPECT_TRUE(eventually([&] { return engine_->running() > 0; }));
      EXPECT_GT(core_->gathered_bytes.used(), 0);
      context.TryCancel();
    });
    inference::ModelInferResponse response;
    EXPECT_FALSE(infer_->ModelInfer(&context, request(10'000, 1, 20), &response).ok());
    canceller.join();
    EXPECT_TRUE(all_given_back()) << cancelled;
  }
  grpc::ClientContext context;
  const auto stream = infer_->ModelStreamInfer(&context);
  for (int r = 0; r < 3; ++r) stream->Write(request(1'000, 1, 20));
  EXPECT_TRUE(eventually([&] { return core_->gathered_bytes.used() > 0; }));
  context.TryCancel();
  stream->Finish();
  EXPECT_TRUE(all_given_back());
}

// A prompt that the answer repeats per choice.
TEST_F(GatheredTest, RepetitionsOfThePromptCount) {
  auto large = request(1, 8, 0);
  large.mutable_inputs(0)->mutable_contents()->set_bytes_contents(0, std::string(3 << 20, 'x'));
  EXPECT_THAT(infer(large).error_message(), HasSubstr("the whole answer may take"));
}

TEST_F(GatheredTest, TextsOfOneMessage) {
  v1::TokenizeRequest text;
  text.set_text(std::string(2 << 20, 'x'));
  text.set_with_bytes(true);
  const auto tokenize = [&] {
    grpc::ClientContext context;
    v1::TokenizeResponse response;
    return inference_->Tokenize(&context, text, &response);
  };
  v1::DetokenizeRequest ids;
  for (int i = 0; i < 3 << 20; ++i) ids.add_ids(0xff);
  const auto detokenize = [&] {
    grpc::ClientContext context;
    v1::DetokenizeResponse response;
    return inference_->Detokenize(&context, ids, &response);
  };
  EXPECT_EQ(tokenize().error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(tokenize().error_message(), HasSubstr("and the limit is 128 MB"));
  EXPECT_THAT(detokenize().error_message(), HasSubstr("and the limit is 128 MB"));
  text.set_text(std::string(20'000, 'x'));
  ids.mutable_ids()->Truncate(20'000);
  {
    const ByteBudget::Share others = all_but(100'000);
    EXPECT_EQ(tokenize().error_code(), StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(detokenize().error_code(), StatusCode::RESOURCE_EXHAUSTED);
  }
  EXPECT_TRUE(tokenize().ok());
  EXPECT_TRUE(detokenize().ok());
  EXPECT_TRUE(all_given_back());
}

class InferStreamTest : public GatheredTest {};

TEST_F(InferStreamTest, IsNotReadWhileManyRequestsRun) {
  engine_->hold(true);
  constexpr int kSent = 300, kMost = 128;
  grpc::ClientContext context;
  const auto stream = infer_->ModelStreamInfer(&context);
  std::thread writer([&] {
    for (int r = 0; r < kSent; ++r) stream->Write(request(1, 1, 0));
    stream->WritesDone();
  });
  EXPECT_TRUE(eventually([&] { return core_->under_way() == kMost; }));
  // Requests read in the meantime would have started before this one.
  grpc::ClientContext other;
  v1::TokenizeResponse ids;
  EXPECT_TRUE(inference_->Tokenize(&other, v1::TokenizeRequest(), &ids).ok());
  EXPECT_EQ(core_->under_way(), kMost);
  engine_->hold(false);
  int answered = 0;
  inference::ModelStreamInferResponse response;
  while (stream->Read(&response)) ++answered;
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(answered, kSent);
}

}  // namespace recurve::kserve_gathered_test
