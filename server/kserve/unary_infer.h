#pragma once
#include "server/kserve/infer_call.h"
#include "server/rpc/messages.h"

namespace recurve {

// One ModelInfer call.
class UnaryInfer final : public grpc::ServerUnaryReactor, public InferCall {
 public:
  // call and response are valid until OnDone().
  UnaryInfer(ServiceContext& context, grpc::CallbackServerContext* call, grpc::ByteBuffer message,
             grpc::ByteBuffer* response)
      : InferCall(context, *call, "inference.GRPCInferenceService/ModelInfer", std::move(message)),
        response_(response) {}

  void OnCancel() override { cancel(); }
  void OnDone() override { done(); }

  bool busy() override { return false; }
  size_t unsent() const override { return 0; }
  void discard() override { response_->Clear(); }
  void flush() override {
    if (!finishing_ || finished_ || !may_conclude()) return;
    finished_ = true;
    Finish(context_.status_for(&grpc_call_, refusal_));
  }

 private:
  void was_read() override {
    if (request_.form.stream) {
      refuse(invalid("stream", "stream must be false or left out, except with ModelStreamInfer"));
    }
    go();
  }
  void respond(inference::ModelInferResponse response) override {
    *response_ = serialize(response);
  }
  void conclude(const Refused&) override {}

  grpc::ByteBuffer* const response_;
};

}  // namespace recurve
