#pragma once
#include <google/protobuf/descriptor.h>
#include <grpcpp/support/server_callback.h>

#include <memory>

#include "server/rpc/service_context.h"

namespace recurve {

// A stream of strangers, of which nothing is read.
class RefusedStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit RefusedStream(grpc::Status status) { Finish(std::move(status)); }
  void OnDone() override { delete this; }
};

// A method of one request message, of which nothing is read where a stranger calls it: by itself,
// gRPC has a call begin once its message is whole. `then` is the handler that gRPC would have.
class HeadersFirst final : public grpc::internal::MethodHandler {
 public:
  HeadersFirst(const ServiceContext& context, std::unique_ptr<grpc::internal::MethodHandler> then)
      : context_(context), then_(std::move(then)) {}
  void RunHandler(const HandlerParameter& param) override;

 private:
  const ServiceContext& context_;
  const std::unique_ptr<grpc::internal::MethodHandler> then_;
};

// A service with such methods, each of which is named once, in the constructor of Self.
template <typename Self, typename S>
class HeadersFirstService : public S {
 protected:
  using Call = grpc::CallbackServerContext;

  // name: in full.
  template <typename Request, typename Response>
  void headers_first(const ServiceContext& context, const char* name,
                     grpc::ServerUnaryReactor* (Self::*method)(Call*, const Request*, Response*)) {
    using Handler = grpc::internal::CallbackUnaryHandler<Request, Response>;
    begin_at_headers(context, name,
                     std::make_unique<Handler>(
                         [this, method](Call* call, const Request* request, Response* response) {
                           return (static_cast<Self*>(this)->*method)(call, request, response);
                         }));
  }
  template <typename Request, typename Response>
  void headers_first(const ServiceContext& context, const char* name,
                     grpc::ServerWriteReactor<Response>* (Self::*method)(Call*, const Request*)) {
    using Handler = grpc::internal::CallbackServerStreamingHandler<Request, Response>;
    begin_at_headers(context, name,
                     std::make_unique<Handler>([this, method](Call* call, const Request* request) {
                       return (static_cast<Self*>(this)->*method)(call, request);
                     }));
  }

 private:
  void begin_at_headers(const ServiceContext& context, const char* name,
                        std::unique_ptr<grpc::internal::MethodHandler> then) {
    const auto* pool = google::protobuf::DescriptorPool::generated_pool();
    this->MarkMethodStreamed(pool->FindMethodByName(name)->index(),
                             new HeadersFirst(context, std::move(then)));
  }
};

}  // namespace recurve
