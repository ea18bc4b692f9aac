#pragma once
#include "recurve/v1/inference.grpc.pb.h"
#include "server/rpc/headers_first.h"
#include "server/rpc/service_context.h"

namespace recurve {

// The methods of Inference with messages as bytes: see messages.h.
template <typename S>
using RawStreams =
    v1::Inference::WithRawCallbackMethod_Generate<v1::Inference::WithRawCallbackMethod_Score<S>>;
template <typename S>
using RawUnary = v1::Inference::WithRawCallbackMethod_Tokenize<
    v1::Inference::WithRawCallbackMethod_Detokenize<v1::Inference::WithRawCallbackMethod_Abort<S>>>;

class InferenceService final
    : public HeadersFirstService<InferenceService, RawStreams<RawUnary<v1::Inference::Service>>> {
 public:
  explicit InferenceService(ServiceContext& context);

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* call,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Score(
      grpc::CallbackServerContext* call) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* call,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* call,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* call,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;

 private:
  ServiceContext& context_;
};

}  // namespace recurve
