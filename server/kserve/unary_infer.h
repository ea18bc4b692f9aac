#pragma once
#include "server/kserve/infer_call.h"

namespace recurve {

// One ModelInfer.
class UnaryInfer final : public grpc::ServerUnaryReactor, public InferCall {
 public:
  // What the arguments point to is valid until OnDone().
  UnaryInfer(ServiceContext& context, grpc::CallbackServerContext* call, grpc::ByteBuffer message,
             grpc::ByteBuffer* response)
      : InferCall(context, *call, "inference.GRPCInferenceService/ModelInfer", std::move(message)),
        response_(response) {}

  void OnCancel() override { left(); }
  void OnDone() override { done(); }

  bool busy() override { return false; }
  size_t unsent() const override { return 0; }
  void discard() override { response_->Clear(); }
  void flush() override;

 private:
  void was_read() override;
  void respond(inference::ModelInferResponse response) override;
  void conclude(const Refused&) override {}

  grpc::ByteBuffer* const response_;
};

}  // namespace recurve
