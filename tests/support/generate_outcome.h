#pragma once
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "clients/cpp/client.h"
#include "recurve/v1/inference.grpc.pb.h"

// What tests of the real server under stress share: calls that are looked at message by message.
namespace recurve::testing {

// A separate connection, not one that gRPC shares between channels.
inline std::shared_ptr<grpc::Channel> own_channel(const std::string& address,
                                                  grpc::ChannelArguments arguments = {}) {
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

inline v1::GenerateRequest generate_request(const std::string& text, int max_tokens,
                                            uint64_t seed = 1) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.mutable_stop()->set_max_tokens(max_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  request.mutable_sampling()->set_seed(seed);
  return request;
}

// How a Generate ended, and whether its stream was whole.
struct Outcome {
  grpc::Status status;
  int finals = 0;
  bool final_was_last = true;
  std::vector<int32_t> ids = {};
  // Exactly one last word: a final message and OK, or another status and none.
  bool proper() const { return status.ok() ? finals == 1 && final_was_last : finals == 0; }
};

// `seen` is called with each message.
inline Outcome generate(
    v1::Inference::Stub& stub, const v1::GenerateRequest& request, grpc::ClientContext& context,
    const std::function<void(const v1::GenerateResponse&)>& seen = [](const auto&) {}) {
  Outcome outcome;
  const auto reader = stub.Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (outcome.finals > 0) outcome.final_was_last = false;
    outcome.finals += response.has_final();
    for (const int32_t id : response.chunk().ids()) outcome.ids.push_back(id);
    seen(response);
  }
  outcome.status = reader->Finish();
  return outcome;
}

// Waits until a condition holds; false if it does not for long.
inline bool comes_true(const std::function<bool()>& condition,
                       std::chrono::seconds most = std::chrono::seconds(60)) {
  const auto end = std::chrono::steady_clock::now() + most;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

// Every slot is free, and no request waits.
inline bool is_idle(Client& client) {
  const v1::Load load = client.load();
  return load.slots().free() == load.slots().total() && load.requests_waiting() == 0 &&
         load.requests_running() == 0;
}

}  // namespace recurve::testing
