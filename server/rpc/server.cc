#include "server/rpc/server.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "server/net/listener.h"
#include "server/net/socket_hooks.h"
#include "server/observe/log.h"
#include "server/rpc/service_context.h"

namespace recurve {
namespace {

// Threads for blocking calls, which only reflection has: further calls are refused. gRPC waits for
// calls with up to two threads per processor, and ends the process if it may not create one.
int most_threads() { return 32 + 2 * static_cast<int>(sysconf(_SC_NPROCESSORS_CONF)); }

// Of the headers of one call.
constexpr int kMostMetadataBytes = 16 << 10;

void set_arguments(const RpcOptions& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder->SetMaxSendMessageSize(-1);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams);
  // Finds clients whose machine or network has failed, and frees their slots.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // A connection without a handshake is closed after this; gRPC's default is two minutes.
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
  // Running calls continue; clients open a new connection for further ones.
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 15 * 60 * 1000);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, 24 * 60 * 60 * 1000);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMostMetadataBytes);
}

// The budget for incomplete messages: several of the largest fit.
int64_t most_incomplete_bytes(const ServiceContext& context) {
  return std::max(context.core.options.max_bytes_under_way, 4 * context.options.max_message_bytes);
}

// Memory and threads that clients can make gRPC use before a call starts.
void set_bounds(const ServiceContext& context, grpc::ServerBuilder* builder) {
  grpc::ResourceQuota quota("recurve");
  // FrameGuard limits incomplete messages per client, and calls limit complete ones. If this quota
  // were less than both together, gRPC would end the next call of any client.
  quota.Resize(static_cast<size_t>(most_incomplete_bytes(context) +
                                   context.core.options.max_bytes_under_way));
  quota.SetMaxThreads(most_threads());
  builder->SetResourceQuota(quota);
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, context.options.request_compression);
  }
}

// Linking gRPC's reflection adds it to every server of the process; this removes it.
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

void log_message(LogLevel level, const char* library, const char* file, int line,
                 const std::string& message) {
  log_event(level, "library_message",
            {{"library", library},
             {"file", std::filesystem::path(file).filename().string()},
             {"line", line},
             {"message", message}});
}

void from_grpc(gpr_log_func_args* args) {
  LogLevel level = LogLevel::kDebug;
  if (args->severity == GPR_LOG_SEVERITY_INFO) level = LogLevel::kInfo;
  if (args->severity == GPR_LOG_SEVERITY_ERROR) level = LogLevel::kError;
  log_message(level, "grpc", args->file, args->line, args->message);
}

void from_protobuf(google::protobuf::LogLevel severity, const char* file, int line,
                   const std::string& message) {
  LogLevel level = LogLevel::kError;
  if (severity == google::protobuf::LOGLEVEL_INFO) level = LogLevel::kInfo;
  if (severity == google::protobuf::LOGLEVEL_WARNING) level = LogLevel::kWarning;
  log_message(level, "protobuf", file, line, message);
}

// gRPC and protobuf would write to standard error themselves and block if it is not read.
void log_library_messages() {
  gpr_set_log_function(from_grpc);
  google::protobuf::SetLogHandler(from_protobuf);
}

void check(const RpcOptions& options) {
  if (options.max_message_bytes >= 1 && options.max_message_bytes <= kMostMessageBytes) return;
  throw std::runtime_error(fmt::format("max_message_bytes must be in [1, {}], got {}",
                                       kMostMessageBytes, options.max_message_bytes));
}

}  // namespace

struct RpcServer::Impl {
  Impl(RpcOptions options, ServerCore& core, const std::vector<RpcService>& others)
      : context(std::move(options), core) {
    services.insert(services.end(), others.begin(), others.end());
    for (const RpcService& service : services) made.push_back(service.make(context));
  }
  ~Impl() { context.core.remove_listener(this); }

  void listen();
  void hand_over(int descriptor, const Peer& peer);
  void set_health(bool serving, bool durable);

  // Destroyed in reverse order: the server ends all calls before the objects that they use.
  ServiceContext context;
  std::vector<RpcService> services = {inference_service(), sessions_service(), control_service()};
  std::vector<std::shared_ptr<grpc::Service>> made;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  const FrameCounter::Shared frame_limits{
      .bodies = std::make_shared<ByteBudget>(most_incomplete_bytes(context))};
  std::optional<Listener> listener;
  std::set<std::string> known_models;  // of set_health(), as services of the health service
};

// Connections are accepted by Listener: gRPC's listener has no limits, and fails without a free
// descriptor.
void RpcServer::Impl::listen() {
  using Acceptor = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  const RpcOptions& options = context.options;
  check(options);
  listener.emplace(options.listen, options.listen_flag);
  log_library_messages();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  acceptor = builder.experimental().AddExternalConnectionAcceptor(
      Acceptor::FROM_FD, grpc::InsecureServerCredentials());
  for (const auto& service : made) builder.RegisterService(service.get());
  if (!options.reflection || (context.core.access.has_keys() && !options.admin))
    builder.SetOption(std::make_unique<WithoutReflection>());
  set_arguments(options, &builder);
  set_bounds(context, &builder);
  server = builder.BuildAndStart();
  if (server == nullptr) {
    throw std::runtime_error("gRPC cannot start its server: see the log lines above");
  }
  context.core.add_listener(this,
                            [this](bool serving, bool durable) { set_health(serving, durable); });
  listener->start(context.connections, context.core.metrics,
                  [this](int descriptor, const Peer& peer) { hand_over(descriptor, peer); },
                  {options.tls, TlsProtocol::kHttp2});
}

// gRPC's acceptor closes connections whose peer has no address, as at Unix sockets.
void RpcServer::Impl::hand_over(int descriptor, const Peer& peer) {
  SocketHooks::of_process().guard_frames(
      descriptor, std::make_shared<FrameGuard>(peer, context.core.metrics, frame_limits));
  if (listener->port() == 0) return grpc::AddInsecureChannelFromFd(server.get(), descriptor);
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.fd = descriptor;
  acceptor->HandleNewConnection(&connection);
}

void RpcServer::Impl::set_health(bool serving, bool durable) {
  grpc::HealthCheckServiceInterface* health = server->GetHealthCheckService();
  health->SetServingStatus("", serving);
  for (const RpcService& service : services) {
    health->SetServingStatus(service.name, serving && (durable || !service.durable));
  }
  std::set<std::string> now;
  for (const auto& model : context.core.models()) {
    if (!model->loaded()) continue;
    now.insert("model/" + model->name());
    health->SetServingStatus("model/" + model->name(), serving && !model->failed());
  }
  for (const std::string& gone : std::exchange(known_models, now)) {
    if (!now.contains(gone)) health->SetServingStatus(gone, false);
  }
}

// A server that gRPC has started and that cannot accept connections, for want of memory or threads,
// is not destroyed: gRPC may wait for ever for threads that it could not start.
RpcServer::RpcServer(RpcOptions options, ServerCore& core, const std::vector<RpcService>& others)
    : impl_(std::make_unique<Impl>(std::move(options), core, others)) {
  try {
    impl_->listen();
  } catch (...) {
    if (impl_->server != nullptr) static_cast<void>(impl_.release());
    throw;
  }
}

RpcServer::~RpcServer() { shutdown(); }

int RpcServer::port() const { return impl_->listener->port(); }

Connections& RpcServer::connections() { return impl_->context.connections; }

void RpcServer::shutdown() {
  if (impl_ == nullptr || impl_->server == nullptr) return;
  ServerCore& core = impl_->context.core;
  core.remove_listener(impl_.get());
  impl_->listener->stop();  // gRPC would not close new connections
  impl_->server->Shutdown(std::chrono::system_clock::now());
  impl_->server->Wait();
  // gRPC has finished the calls; they only have to delete themselves.
  core.wait_for_cancelled_calls();
  impl_->server.reset();
}

}  // namespace recurve
