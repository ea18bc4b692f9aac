// Streams cancelled at every step that a client can distinguish.
#include <gmock/gmock.h>

#include <atomic>
#include <string_view>

#include "kserve/v2/inference.grpc.pb.h"
#include "server/kserve/kserve_service.h"
#include "tests/support/rpc_fixture.h"

namespace recurve::cancel_test {

using inference::GRPCInferenceService;

// The step at which a client cancels.
class Steps {
 public:
  Steps(grpc::ClientContext& context, int most) : context_(context), most_(most) {}
  bool next() {
    if (done_ == most_) context_.TryCancel();
    return done_++ < most_;
  }
  int done() const { return done_; }

 private:
  grpc::ClientContext& context_;
  const int most_;
  int done_ = 0;
};

// A kind of client: runs its call up to the step, and waits for its end.
using Client = std::function<grpc::Status(grpc::ClientContext& context, Steps& steps)>;

class CancelTest : public RpcFixture {
 protected:
  static constexpr int kTokens = 4, kRequests = 6;

  void SetUp() override {
    services_ = {kserve_service()};
    start({.script = [](const Request&) {
      return FakeEngine::Play{{std::vector<int32_t>(kTokens, 'a')}};
    }});
    infer_ = GRPCInferenceService::NewStub(channel_);
  }

  static inference::ModelInferRequest request(int number, bool in_sequence) {
    inference::ModelInferRequest request;
    request.set_model_name("fake");
    request.set_id(std::to_string(number));
    auto& text = *request.add_inputs();
    text.set_name("text_input");
    text.set_datatype("BYTES");
    text.add_shape(1);
    text.mutable_contents()->add_bytes_contents("x");
    auto& stream = *request.add_inputs();
    stream.set_name("stream");
    stream.set_datatype("BOOL");
    stream.add_shape(1);
    stream.mutable_contents()->add_bool_contents(number % 2 == 0);
    if (!in_sequence) return request;
    auto& parameters = *request.mutable_parameters();
    parameters["sequence_id"].set_int64_param(number / 2 + 1);
    parameters["sequence_start"].set_bool_param(number % 2 == 0);
    parameters["sequence_end"].set_bool_param(number % 2 == 1);
    return request;
  }

  Client infers(bool in_sequence) {
    return [this, in_sequence](grpc::ClientContext& context, Steps& steps) {
      const auto stream = infer_->ModelStreamInfer(&context);
      for (int r = 0; r < kRequests && steps.next(); ++r) stream->Write(request(r, in_sequence));
      if (steps.next()) stream->WritesDone();
      inference::ModelStreamInferResponse response;
      while (stream->Read(&response)) {
        EXPECT_EQ(response.error_message(), "");
        if (!steps.next()) break;
      }
      return stream->Finish();
    };
  }
  Client generates() {
    return [this](grpc::ClientContext& context, Steps& steps) {
      const auto reader = inference_->Generate(&context, text_request("x"));
      v1::GenerateResponse response;
      while (steps.next() && reader->Read(&response)) {
      }
      return reader->Finish();
    };
  }
  Client scores() {
    return [this](grpc::ClientContext& context, Steps& steps) {
      const auto stream = inference_->Score(&context);
      v1::ScoreRequest piece;
      piece.set_text("text");
      for (int p = 0; p < kRequests && steps.next(); ++p) stream->Write(piece);
      if (steps.next()) stream->WritesDone();
      v1::ScoreResponse response;
      while (stream->Read(&response) && steps.next()) {
      }
      return stream->Finish();
    };
  }

  // The number of steps without a cancel.
  int steps_of(const Client& client) {
    grpc::ClientContext context;
    Steps steps(context, 1'000'000);
    const grpc::Status status = client(context, steps);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return steps.done();
  }
  void cancel_after(const Client& client, int most) {
    grpc::ClientContext context;
    Steps steps(context, most);
    client(context, steps);
  }
  // Several at a time, each at another step.
  void cancel_everywhere(const Client& client, int rounds) {
    const int points = steps_of(client);
    std::atomic<int> next = 0;
    std::vector<std::thread> clients;
    for (int c = 0; c < 4; ++c) {
      clients.emplace_back([&] {
        for (int n = next++; n < points * rounds; n = next++) cancel_after(client, n % points);
      });
    }
    for (std::thread& thread : clients) thread.join();
    EXPECT_TRUE(eventually([&] { return core_->under_way() == 0 && engine_->running() == 0; }));
    steps_of(client);  // it serves on
  }

  std::unique_ptr<GRPCInferenceService::Stub> infer_;
};

TEST_F(CancelTest, RequestsOfAStream) { cancel_everywhere(infers(/*in_sequence=*/false), 50); }
TEST_F(CancelTest, SequencesOfAStream) { cancel_everywhere(infers(/*in_sequence=*/true), 50); }
TEST_F(CancelTest, Generate) { cancel_everywhere(generates(), 50); }
TEST_F(CancelTest, Score) { cancel_everywhere(scores(), 50); }

}  // namespace recurve::cancel_test
