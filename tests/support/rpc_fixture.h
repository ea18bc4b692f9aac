#pragma once
#include <grpcpp/create_channel.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/sync_stream.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "recurve/v1/control.grpc.pb.h"
#include "recurve/v1/inference.grpc.pb.h"
#include "recurve/v1/sessions.grpc.pb.h"
#include "server/rpc/server.h"
#include "server/serving/server_core.h"
#include "tests/support/engine/fake_engine.h"
#include "tests/support/fake_tokenizer.h"

namespace recurve {

inline ServingInfo fake_info() {
  return {.model_name = "fake",
          .family = "none",
          .parameters = 1,
          .weight_bytes = 4,
          .weight_type = "f32",
          .vocab_rows = FakeTokenizer::kSize + 2,
          .state_bytes = 1024,
          .chunk_tokens = 64,
          .fingerprint = "f",
          .backend = "fake",
          .ops = {{"norm", "fake"}},
          .tokens = {.bos = FakeTokenizer::kBos, .eos = {FakeTokenizer::kEos}, .force_bos = false},
          .slots = 8,
          .max_host_bytes = 1 << 20,
          .default_ttl_seconds = 60};
}

// Waits until a condition holds; false if it does not within a minute: long, for sanitizers on a
// busy machine.
inline bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Bytes in, bytes out: for messages that no stub would send, and services we have no stub of.
struct RawAnswer {
  grpc::Status status;
  std::string bytes;
};
inline grpc::ByteBuffer to_buffer(const std::string& bytes) {
  grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}
inline std::string to_string(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const auto& s : slices) bytes.append(reinterpret_cast<const char*>(s.begin()), s.size());
  return bytes;
}
inline RawAnswer raw_call(grpc::ChannelInterface& channel, const char* method,
                          const std::string& request) {
  const grpc::internal::RpcMethod rpc(method, grpc::internal::RpcMethod::NORMAL_RPC);
  grpc::ClientContext context;
  grpc::ByteBuffer response;
  const grpc::Status status = grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
      &channel, rpc, &context, to_buffer(request), &response);
  return {status, status.ok() ? to_string(response) : ""};
}

// Everything a Generate gave.
struct Generated {
  grpc::Status status;
  std::vector<v1::GenerateResponse> messages;
  std::multimap<std::string, std::string> trailers;

  std::string text(int choice = 0) const {
    std::string all;
    for (const auto& m : messages) {
      if (m.has_chunk() && m.chunk().choice() == choice) all += m.chunk().text();
    }
    return all;
  }
  std::vector<int32_t> ids(int choice = 0) const {
    std::vector<int32_t> all;
    for (const auto& m : messages) {
      if (!m.has_chunk() || m.chunk().choice() != choice) continue;
      all.insert(all.end(), m.chunk().ids().begin(), m.chunk().ids().end());
    }
    return all;
  }
  const v1::PromptInfo& prompt() const { return messages.front().prompt(); }
  const v1::GenerateFinal& final() const { return messages.back().final(); }
};

struct FixtureOptions {
  RpcOptions rpc = {};
  ServerCoreOptions core = {};
};

// A server on a free port, before a fake engine.
class RpcFixture : public ::testing::Test {
 protected:
  void start(FakeEngine::Options engine_options = {}, FixtureOptions options = {},
             int max_queue = 64, ServingInfo info = fake_info()) {
    served_ = std::make_shared<ServedModel>(max_queue);
    queue_ = &served_->queue;
    core_.emplace(options.core, ServedModels{served_}, metrics_);
    options.rpc.listen = "127.0.0.1:0";
    server_.emplace(options.rpc, *core_, services_);
    engine_.emplace(*queue_, std::move(engine_options));
    if (tokenizer_ == nullptr) tokenizer_ = std::make_shared<FakeTokenizer>(marks_start_);
    if (serve_) core_->serve(*served_, tokenizer_, std::move(info), chat_);
    channel_ = connect();
    inference_ = v1::Inference::NewStub(channel_);
    sessions_ = v1::Sessions::NewStub(channel_);
    control_ = v1::Control::NewStub(channel_);
  }
  void TearDown() override {
    if (server_) server_->shutdown();
    if (server_) {
      EXPECT_EQ(core_->under_way(), 0);
      EXPECT_EQ(core_->message_bytes.used(), 0);
      EXPECT_EQ(core_->gathered_bytes.used(), 0);
    }
    engine_.reset();
    server_.reset();
  }

  // A separate connection, not one that gRPC shares between channels.
  std::shared_ptr<grpc::Channel> connect() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server_->port()),
                                     grpc::InsecureChannelCredentials(), arguments);
  }

  Generated generate(const v1::GenerateRequest& request, grpc::ClientContext* context = nullptr) {
    grpc::ClientContext own;
    grpc::ClientContext& used = context != nullptr ? *context : own;
    Generated all;
    const auto reader = inference_->Generate(&used, request);
    v1::GenerateResponse response;
    while (reader->Read(&response)) all.messages.push_back(response);
    all.status = reader->Finish();
    for (const auto& [key, value] : used.GetServerTrailingMetadata()) {
      all.trailers.emplace(std::string(key.data(), key.size()),
                           std::string(value.data(), value.size()));
    }
    return all;
  }

  static v1::GenerateRequest text_request(const std::string& text) {
    v1::GenerateRequest request;
    request.set_text(text);
    return request;
  }

  bool serve_ = true;
  std::vector<RpcService> services_;  // before start(): besides those of rpc
  bool marks_start_ = false;
  std::shared_ptr<const Tokenizer> tokenizer_;  // before start(); null: a fake one
  Chat chat_;
  Metrics metrics_;
  std::shared_ptr<ServedModel> served_;
  AdmissionQueue* queue_ = nullptr;
  std::optional<ServerCore> core_;
  std::optional<RpcServer> server_;
  std::optional<FakeEngine> engine_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> inference_;
  std::unique_ptr<v1::Sessions::Stub> sessions_;
  std::unique_ptr<v1::Control::Stub> control_;
};

}  // namespace recurve
