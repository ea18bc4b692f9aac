#pragma once
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/async_generic_service.h>  // the handlers of callbacks
#include <grpcpp/support/server_callback.h>

#include <memory>

#include "server/rpc/service_context.h"

namespace recurve {

// Refuses a call without reading a message.
class RefusedStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit RefusedStream(grpc::Status status) { Finish(std::move(status)); }
  void OnDone() override { delete this; }
};

// Handles a method with one request message. Authenticates the caller before it reads the message:
// gRPC starts a call only after the message is complete. `then` is the handler that gRPC would use.
class HeadersFirst final : public grpc::internal::MethodHandler {
 public:
  HeadersFirst(const ServiceContext& context, std::unique_ptr<grpc::internal::MethodHandler> then)
      : context_(context), then_(std::move(then)) {}
  void RunHandler(const HandlerParameter& param) override;

 private:
  const ServiceContext& context_;
  const std::unique_ptr<grpc::internal::MethodHandler> then_;
};

// A service with such methods. The constructor of Self names each of them.
template <typename Self, typename S>
class HeadersFirstService : public S {
 protected:
  using Call = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;
  using Reactor = grpc::ServerUnaryReactor;

  // name: PACKAGE.SERVICE.METHOD.
  template <typename Request, typename Response>
  void headers_first(const ServiceContext& context, const char* name,
                     grpc::ServerUnaryReactor* (Self::*method)(Call*, const Request*, Response*)) {
    using Handler = grpc::internal::CallbackUnaryHandler<Request, Response>;
    handle_at_headers(context, name,
                      std::make_unique<Handler>(
                          [this, method](Call* call, const Request* request, Response* response) {
                            return (static_cast<Self*>(this)->*method)(call, request, response);
                          }));
  }
  template <typename Request, typename Response>
  void headers_first(const ServiceContext& context, const char* name,
                     grpc::ServerWriteReactor<Response>* (Self::*method)(Call*, const Request*)) {
    using Handler = grpc::internal::CallbackServerStreamingHandler<Request, Response>;
    handle_at_headers(context, name,
                      std::make_unique<Handler>([this, method](Call* call, const Request* request) {
                        return (static_cast<Self*>(this)->*method)(call, request);
                      }));
  }

 private:
  void handle_at_headers(const ServiceContext& context, const char* name,
                         std::unique_ptr<grpc::internal::MethodHandler> then) {
    const auto* pool = google::protobuf::DescriptorPool::generated_pool();
    this->MarkMethodStreamed(pool->FindMethodByName(name)->index(),
                             new HeadersFirst(context, std::move(then)));
  }
};

// S: such a service. name: PACKAGE.SERVICE.
template <typename S>
RpcService rpc_service(const char* name) {
  return {.name = name,
          .make = [](ServiceContext& context) { return std::make_shared<S>(context); }};
}

}  // namespace recurve
