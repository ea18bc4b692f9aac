#pragma once
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "server/rpc/messages.h"
#include "server/rpc/service_context.h"
#include "server/rpc/unary_call.h"

namespace recurve {

// Refuses a call without reading a message.
class RefusedStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit RefusedStream(grpc::Status status) { Finish(std::move(status)); }
  void OnDone() override { delete this; }
};

// A service with messages as bytes: see messages.h. The constructor of the final class adds each
// method by its name. A method with one request message authenticates the caller before the message
// is read: gRPC starts a call only after the message is complete.
class RawService : public grpc::Service {
 protected:
  using Call = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;
  using Reactor = grpc::ServerUnaryReactor;
  enum class Access { kWithKey, kAnyone };

  // name: PACKAGE.SERVICE. context outlives it.
  RawService(ServiceContext& context, const char* name) : context_(context), name_(name) {}

  void unary(const char* method, std::function<Reactor*(Call*, const Bytes*, Bytes*)> handle,
             Access access = Access::kWithKey);
  void server_stream(
      const char* method,
      std::function<grpc::ServerWriteReactor<Bytes>*(Call*, const Bytes* request)> handle);
  void client_stream(const char* method,
                     std::function<grpc::ServerReadReactor<Bytes>*(Call*, Bytes* response)> handle);
  void bidi_stream(const char* method,
                   std::function<grpc::ServerBidiReactor<Bytes, Bytes>*(Call*)> handle);

  // A unary method with small messages, answered on gRPC's thread.
  template <typename Request, typename Response>
  void immediate(const char* method,
                 std::function<Refused(Call*, const Request&, Response*)> answer,
                 Access access = Access::kWithKey) {
    const auto handle = [this, answer = std::move(answer)](Call* call, const Bytes* bytes,
                                                           Bytes* response) {
      auto* unary = new UnaryCall(context_, call);
      Request request;
      Response reply;
      Refused refused = parse(*bytes, &request);
      if (!refused) refused = answer(call, request, &reply);
      if (!refused) *response = serialize(reply);
      unary->finish(std::move(refused));
      return unary;
    };
    unary(method, handle, access);
  }

  ServiceContext& context_;

 private:
  void add(const char* method, grpc::internal::RpcMethod::RpcType type,
           std::unique_ptr<grpc::internal::MethodHandler> handler);

  const std::string name_;
  std::list<std::string> paths_;  // of the methods
};

// S: such a service, with its name as S::kName.
template <typename S>
RpcService rpc_service() {
  return {.name = S::kName,
          .make = [](ServiceContext& context) { return std::make_shared<S>(context); }};
}

}  // namespace recurve
