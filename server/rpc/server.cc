#include "server/rpc/server.h"

#include <fmt/format.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <array>
#include <stdexcept>
#include <utility>

#include "server/rpc/control_service.h"
#include "server/rpc/credentials.h"
#include "server/rpc/inference_service.h"
#include "server/rpc/library_log.h"
#include "server/rpc/service_context.h"
#include "server/rpc/sessions_service.h"

namespace recurve {
namespace {

// How long calls that were cancelled may take to say so: the engine needs one step for it.
constexpr auto kLastWords = std::chrono::seconds(5);
// And calls that are refused while the last one that is served ends.
constexpr auto kLastRefusals = std::chrono::milliseconds(200);

void set_arguments(const RpcOptions& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder->SetMaxSendMessageSize(-1);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams);
  // Otherwise a second server on the same port would get half of the connections.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Finds clients whose machine or network is gone; their slots come free.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
}

}  // namespace

struct RpcServer::Impl {
  Impl(RpcOptions options, AdmissionQueue& queue, const EngineStats& stats, Metrics& metrics)
      : context(std::move(options), queue, stats, metrics) {}

  void listen();
  void set_health(bool serving);

  // Destroyed in the reverse order: the server ends all calls before what they use goes.
  ServiceContext context;
  InferenceService inference{context};
  SessionsService sessions{context};
  ControlService control{context};
  int port = 0;
  std::unique_ptr<grpc::Server> server;
};

void RpcServer::Impl::listen() {
  log_what_libraries_say();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.AddListeningPort(context.options.listen, server_credentials(context.options), &port);
  builder.RegisterService(&inference);
  builder.RegisterService(&sessions);
  builder.RegisterService(&control);
  set_arguments(context.options, &builder);
  server = builder.BuildAndStart();
  if (server == nullptr) {
    throw std::runtime_error(
        fmt::format("cannot listen on \"{}\": the address is not HOST:PORT of this machine, or "
                    "another program has the port; choose another with --listen",
                    context.options.listen));
  }
  set_health(false);
}

void RpcServer::Impl::set_health(bool serving) {
  static constexpr std::array kServices = {"", "recurve.v1.Inference", "recurve.v1.Sessions",
                                           "recurve.v1.Control"};
  for (const char* service : kServices) {
    server->GetHealthCheckService()->SetServingStatus(service, serving);
  }
}

RpcServer::RpcServer(RpcOptions options, AdmissionQueue& queue, const EngineStats& stats,
                     Metrics& metrics)
    : impl_(std::make_unique<Impl>(std::move(options), queue, stats, metrics)) {
  impl_->listen();
}

RpcServer::~RpcServer() { shutdown(); }

int RpcServer::port() const { return impl_->port; }

void RpcServer::serve(std::shared_ptr<const Tokenizer> tokenizer, ServingInfo info, Chat chat) {
  impl_->context.load(std::move(tokenizer), std::move(info), std::move(chat));
  auto loading = ServiceContext::State::kLoading;
  // Not where it drains already.
  const bool serving =
      impl_->context.state.compare_exchange_strong(loading, ServiceContext::State::kServing);
  if (!serving) return;
  impl_->set_health(true);
  // A drain that began in between may have said so before this did.
  if (impl_->context.state != ServiceContext::State::kServing) impl_->set_health(false);
}

bool RpcServer::drain(Clock::time_point deadline) {
  impl_->context.state = ServiceContext::State::kDraining;
  impl_->set_health(false);
  Registry& calls = impl_->context.registry;
  if (calls.wait_until_all_served(deadline)) {
    // Clients that try again at once would keep the server for ever.
    calls.wait_until_empty(std::min(deadline, Clock::now() + kLastRefusals));
    return true;
  }
  calls.abort_all();
  calls.wait_until_empty(Clock::now() + kLastWords);
  return false;
}

void RpcServer::shutdown() {
  if (impl_ == nullptr || impl_->server == nullptr) return;
  impl_->context.state = ServiceContext::State::kDraining;
  impl_->server->Shutdown(std::chrono::system_clock::now());
  impl_->server->Wait();
  // gRPC is through with the calls; they have only to delete themselves.
  impl_->context.registry.wait_until_empty(Clock::now() + kLastWords);
  impl_->server.reset();
}

int RpcServer::under_way() const { return impl_->context.registry.count(); }

}  // namespace recurve
