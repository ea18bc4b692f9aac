#include "server/rpc/raw_service.h"

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <grpcpp/generic/async_generic_service.h>  // the handlers of callbacks
#include <grpcpp/impl/call_op_set.h>
#include <grpcpp/impl/rpc_service_method.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace recurve {
namespace {

using grpc::internal::MethodHandler;
using grpc::internal::RpcMethod;
using Bytes = grpc::ByteBuffer;

// The form of gRPC's core. Slices are shared, not copied.
grpc_byte_buffer* core_buffer(const Bytes& bytes) {
  std::vector<grpc::Slice> slices;
  if (!bytes.Dump(&slices).ok()) return nullptr;
  std::vector<grpc_slice> of_core;
  for (const grpc::Slice& slice : slices) of_core.push_back(slice.c_slice());
  grpc_byte_buffer* buffer = grpc_raw_byte_buffer_create(of_core.data(), of_core.size());
  for (const grpc_slice& slice : of_core) grpc_slice_unref(slice);
  return buffer;
}

// Reads the message of a call that has started. Lives as long as the call.
class Reading {
 public:
  Reading(MethodHandler& then, const MethodHandler::HandlerParameter& param)
      : then_(then),
        call_(param.call),
        context_(param.server_context),
        next_call_(param.call_requester) {}

  void begin() {
    ops_.RecvMessage(&message_);
    tag_.Set(call_->call(), [this](bool ok) { received(ok); }, &ops_, /*can_inline=*/false);
    ops_.set_core_cq_tag(&tag_);
    call_->PerformOps(&ops_);
  }

 private:
  // A missing message is reported by the handler, as in gRPC.
  void received(bool ok) {
    grpc_byte_buffer* const bytes = ok ? core_buffer(message_) : nullptr;
    message_.Clear();
    grpc::Status status;
    void* data = nullptr;
    void* const request = then_.Deserialize(call_->call(), bytes, &status, &data);
    const auto end = [this] {
      const std::unique_ptr<Reading> self(this);
      next_call_();
    };
    then_.RunHandler({call_, context_, request, status, data, end});
  }

  MethodHandler& then_;
  grpc::internal::Call* const call_;
  grpc::ServerContextBase* const context_;
  const std::function<void()> next_call_;  // call once, at the end of this call
  Bytes message_;
  grpc::internal::CallOpSet<grpc::internal::CallOpRecvMessage<Bytes>> ops_;
  grpc::internal::CallbackWithSuccessTag tag_;
};

// Authenticates the caller, then reads the message. `then` is the handler that gRPC would use.
class HeadersFirst final : public MethodHandler {
 public:
  HeadersFirst(const ServiceContext& context, std::unique_ptr<MethodHandler> then)
      : context_(context), then_(std::move(then)) {}

  void RunHandler(const HandlerParameter& param) override {
    auto* const call = static_cast<grpc::CallbackServerContext*>(param.server_context);
    Identity caller;
    const Refused refused = context_.identify(call, Role::kUser, &caller);
    if (!refused) return (new Reading(*then_, param))->begin();
    const grpc::Status status = context_.status_for(call, context_.core.report(refused));
    grpc::internal::CallbackBidiHandler<Bytes, Bytes> refusing(
        [&](auto*) { return new RefusedStream(status); });
    refusing.RunHandler(param);
  }

 private:
  const ServiceContext& context_;
  const std::unique_ptr<MethodHandler> then_;
};

}  // namespace

// For gRPC, such a method is a bidirectional stream: of those, it starts calls at their headers.
void RawService::unary(const char* method,
                       std::function<Reactor*(Call*, const Bytes*, Bytes*)> handle, Access access) {
  using Unary = grpc::internal::CallbackUnaryHandler<Bytes, Bytes>;
  auto handler = std::make_unique<Unary>(std::move(handle));
  if (access == Access::kAnyone) return add(method, RpcMethod::NORMAL_RPC, std::move(handler));
  add(method, RpcMethod::BIDI_STREAMING,
      std::make_unique<HeadersFirst>(context_, std::move(handler)));
}

void RawService::server_stream(
    const char* method,
    std::function<grpc::ServerWriteReactor<Bytes>*(Call*, const Bytes*)> handle) {
  using Stream = grpc::internal::CallbackServerStreamingHandler<Bytes, Bytes>;
  add(method, RpcMethod::BIDI_STREAMING,
      std::make_unique<HeadersFirst>(context_, std::make_unique<Stream>(std::move(handle))));
}

void RawService::client_stream(
    const char* method, std::function<grpc::ServerReadReactor<Bytes>*(Call*, Bytes*)> handle) {
  using Stream = grpc::internal::CallbackClientStreamingHandler<Bytes, Bytes>;
  add(method, RpcMethod::CLIENT_STREAMING, std::make_unique<Stream>(std::move(handle)));
}

void RawService::bidi_stream(const char* method,
                             std::function<grpc::ServerBidiReactor<Bytes, Bytes>*(Call*)> handle) {
  using Stream = grpc::internal::CallbackBidiHandler<Bytes, Bytes>;
  add(method, RpcMethod::BIDI_STREAMING, std::make_unique<Stream>(std::move(handle)));
}

void RawService::add(const char* method, RpcMethod::RpcType type,
                     std::unique_ptr<MethodHandler> handler) {
  using Method = grpc::internal::RpcServiceMethod;
  const std::string& path = paths_.emplace_back("/" + name_ + "/" + method);  // gRPC borrows it
  auto added = std::make_unique<Method>(path.c_str(), type, handler.release());
  added->SetServerApiType(Method::ApiType::RAW_CALL_BACK);
  AddMethod(added.release());
}

}  // namespace recurve
