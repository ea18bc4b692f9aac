#include "server/rpc/server.h"

#include <fmt/format.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "server/net/listener.h"
#include "server/net/socket_hooks.h"
#include "server/rpc/control_service.h"
#include "server/rpc/credentials.h"
#include "server/rpc/inference_service.h"
#include "server/rpc/library_log.h"
#include "server/rpc/service_context.h"
#include "server/rpc/sessions_service.h"

namespace recurve {
namespace {

// Threads for calls that block one, which only reflection does: more calls than that are refused.
// gRPC keeps up to two a processor, as it counts them, to wait for them, and ends the process where
// it may not have one.
int most_threads() { return 32 + 2 * static_cast<int>(sysconf(_SC_NPROCESSORS_CONF)); }

// Of the headers of one call.
constexpr int kMostMetadataBytes = 16 << 10;

void set_arguments(const RpcOptions& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder->SetMaxSendMessageSize(-1);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams);
  // Finds clients whose machine or network is gone; their slots come free.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // A connection that says nothing is closed after this; gRPC's default is two minutes.
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
  // Calls under way go on; clients make a new connection where they have more.
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 15 * 60 * 1000);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, 24 * 60 * 60 * 1000);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMostMetadataBytes);
}

// Bytes of messages that have come in part. Several fit, of the largest.
int64_t most_bytes_on_their_way(const ServiceContext& context) {
  return std::max(context.core.options.max_bytes_under_way, 4 * context.options.max_message_bytes);
}

// What clients can make gRPC hold before a call of ours begins.
void set_bounds(const ServiceContext& context, grpc::ServerBuilder* builder) {
  grpc::ResourceQuota quota("recurve");
  // FrameGuard bounds what is on its way, of each client, and calls what they have taken: where
  // this were less than both, gRPC would end whichever call came next.
  quota.Resize(static_cast<size_t>(most_bytes_on_their_way(context) +
                                   context.core.options.max_bytes_under_way));
  quota.SetMaxThreads(most_threads());
  builder->SetResourceQuota(quota);
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, context.options.request_compression);
  }
}

// Every server of a process that is linked with gRPC's reflection has it, unless it is taken out.
class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    using Plugin = grpc::reflection::ProtoServerReflectionPlugin;
    std::erase_if(*plugins, [](const auto& plugin) {
      return dynamic_cast<const Plugin*>(plugin.get()) != nullptr;
    });
  }
};

void check(const RpcOptions& options) {
  if (options.max_message_bytes >= 1 && options.max_message_bytes <= kMostMessageBytes) return;
  throw std::runtime_error(fmt::format("max_message_bytes must be in [1, {}], got {}",
                                       kMostMessageBytes, options.max_message_bytes));
}

}  // namespace

struct RpcServer::Impl {
  Impl(RpcOptions options, ServerCore& core, std::vector<RpcService> services)
      : context(std::move(options), core), others(std::move(services)) {}
  ~Impl() { context.core.forget_listener(this); }

  void listen();
  void hand_over(int descriptor, const Peer& peer);
  void set_health(bool serving, bool durable);

  // Destroyed in the reverse order: the server ends all calls before what they use goes.
  ServiceContext context;
  InferenceService inference{context};
  SessionsService sessions{context};
  ControlService control{context};
  const std::vector<RpcService> others;
  std::vector<std::shared_ptr<grpc::Service>> made;  // of each of the others
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  const FrameCounter::Shared frame_limits{
      .bodies = std::make_shared<ByteBudget>(most_bytes_on_their_way(context))};
  std::optional<Listener> listener;
};

// Connections are accepted here and not by gRPC, whose listener does not survive a process without
// descriptors, and has no limits.
void RpcServer::Impl::listen() {
  using Acceptor = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  const RpcOptions& options = context.options;
  check(options);
  listener.emplace(options.listen);
  log_what_libraries_say();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  acceptor = builder.experimental().AddExternalConnectionAcceptor(Acceptor::FROM_FD,
                                                                  server_credentials(options));
  builder.RegisterService(&inference);
  builder.RegisterService(&sessions);
  builder.RegisterService(&control);
  for (const RpcService& other : others) {
    builder.RegisterService(made.emplace_back(other.make(context)).get());
  }
  if (!options.reflection || (context.core.access.has_keys() && !options.admin))
    builder.SetOption(std::make_unique<WithoutReflection>());
  set_arguments(options, &builder);
  set_bounds(context, &builder);
  server = builder.BuildAndStart();
  if (server == nullptr) {
    throw std::runtime_error("gRPC cannot start its server: the lines above say why");
  }
  context.core.when_serving_changes(
      this, [this](bool serving, bool durable) { set_health(serving, durable); });
  listener->start(context.connections, context.core.metrics,
                  [this](int descriptor, const Peer& peer) { hand_over(descriptor, peer); },
                  {options.tls, TlsProtocol::kHttp2});
}

// gRPC's acceptor closes connections whose peer has no address, as those of this machine.
void RpcServer::Impl::hand_over(int descriptor, const Peer& peer) {
  SocketHooks::of_process().guard_frames(
      descriptor, std::make_shared<FrameGuard>(peer, context.core.metrics, frame_limits));
  if (listener->port() == 0) return grpc::AddInsecureChannelFromFd(server.get(), descriptor);
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.fd = descriptor;
  acceptor->HandleNewConnection(&connection);
}

void RpcServer::Impl::set_health(bool serving, bool durable) {
  static constexpr std::array kServices = {"", "recurve.v1.Inference", "recurve.v1.Control"};
  grpc::HealthCheckServiceInterface* health = server->GetHealthCheckService();
  for (const char* service : kServices) health->SetServingStatus(service, serving);
  health->SetServingStatus("recurve.v1.Sessions", serving && durable);
  for (const RpcService& other : others) health->SetServingStatus(other.name, serving);
}

RpcServer::RpcServer(RpcOptions options, ServerCore& core, std::vector<RpcService> others)
    : impl_(std::make_unique<Impl>(std::move(options), core, std::move(others))) {
  impl_->listen();
}

RpcServer::~RpcServer() { shutdown(); }

int RpcServer::port() const { return impl_->listener->port(); }

Connections& RpcServer::connections() { return impl_->context.connections; }

void RpcServer::shutdown() {
  if (impl_ == nullptr || impl_->server == nullptr) return;
  ServerCore& core = impl_->context.core;
  core.forget_listener(impl_.get());
  impl_->listener->stop();  // gRPC would not close what it no longer takes
  impl_->server->Shutdown(std::chrono::system_clock::now());
  impl_->server->Wait();
  // gRPC is through with the calls; they have only to delete themselves.
  core.wait_for_last_words();
  impl_->server.reset();
}

}  // namespace recurve
