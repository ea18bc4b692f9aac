#include "server/kserve/kserve_service.h"

#include <memory>
#include <string>
#include <utility>

#include "kserve/v2/inference.pb.h"
#include "server/kserve/infer_request.h"
#include "server/kserve/stream_infer.h"
#include "server/kserve/tensors.h"
#include "server/rpc/raw_service.h"

namespace recurve {
namespace {

constexpr const char* kPlatform = "recurve";

void fill(const ServingInfo& info, inference::ModelMetadataResponse* to) {
  to->set_name(info.model_name);
  to->add_versions(kModelVersion);
  to->set_platform(kPlatform);
  const auto describe = [](const TensorSpec& spec, auto* tensor) {
    tensor->set_name(std::string(spec.name));
    tensor->set_datatype(std::string(spec.datatype));
    tensor->add_shape(spec.dimension);
  };
  for (const TensorSpec& spec : kInputs) describe(spec, to->add_inputs());
  for (const TensorSpec& spec : kOutputs) describe(spec, to->add_outputs());
}

void fill(const ServingInfo& info, inference::ModelConfig* to) {
  to->set_name(info.model_name);
  to->set_platform(kPlatform);
  to->set_backend(kPlatform);
  to->set_max_batch_size(0);
  to->mutable_model_transaction_policy()->set_decoupled(true);
  const auto describe = [](const TensorSpec& spec, auto* tensor) {
    tensor->set_name(std::string(spec.name));
    tensor->set_data_type(spec.type);
    tensor->add_dims(spec.dimension);
  };
  for (const TensorSpec& spec : kInputs) {
    inference::ModelInput* input = to->add_input();
    describe(spec, input);
    input->set_optional(true);
  }
  for (const TensorSpec& spec : kOutputs) describe(spec, to->add_output());
}

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

class KserveService final : public RawService {
 public:
  static constexpr const char* kName = "inference.GRPCInferenceService";

  explicit KserveService(ServiceContext& context) : RawService(context, kName) {
    add_states();
    add_descriptions();
    unary("ModelInfer", [&context](Call* call, const Bytes* request, Bytes* response) {
      Bytes message = *request;
      // Frees the message, which may be large and which gRPC would hold until the call ends. No
      // other code uses it.
      const_cast<Bytes*>(request)->Clear();
      const auto infer = std::make_shared<UnaryInfer>(context, call, std::move(message), response);
      infer->start();
      return infer.get();
    });
    using Stream = grpc::ServerBidiReactor<Bytes, Bytes>;
    bidi_stream("ModelStreamInfer", [this](Call* call) -> Stream* {
      if (const Refused refused = user(call)) {
        return new RefusedStream(context_.status_for(call, context_.core.report(refused)));
      }
      return new InferStream(context_, call);
    });
  }

 private:
  void add_states() {
    const ServerCore& core = context_.core;
    immediate<inference::ServerLiveRequest, inference::ServerLiveResponse>(
        "ServerLive",
        [](Call*, const auto&, auto* to) {
          to->set_live(true);
          return Refused();
        },
        Access::kAnyone);
    immediate<inference::ServerReadyRequest, inference::ServerReadyResponse>(
        "ServerReady",
        [&core](Call*, const auto&, auto* to) {
          to->set_ready(!core.availability());
          return Refused();
        },
        Access::kAnyone);
    immediate<inference::ModelReadyRequest, inference::ModelReadyResponse>(
        "ModelReady",
        [&core](Call*, const auto& asked, auto* to) {
          FoundModel model;
          to->set_ready(!core.availability() &&
                        !find_model(core, asked.name(), asked.version(), kStranger, &model));
          return Refused();
        },
        Access::kAnyone);
  }

  void add_descriptions() {
    immediate<inference::ServerMetadataRequest, inference::ServerMetadataResponse>(
        "ServerMetadata", [this](Call* call, const auto&, auto* to) {
          Refused refused = user(call);
          if (refused) return refused;
          to->set_name("recurve");
          to->set_version(context_.core.options.version);
          for (const char* extension : {"sequence", "model_configuration", "parameters"}) {
            to->add_extensions(extension);
          }
          return refused;
        });
    immediate<inference::ModelMetadataRequest, inference::ModelMetadataResponse>(
        "ModelMetadata", [this](Call* call, const auto& asked, auto* to) {
          FoundModel model;
          Refused refused = find(call, asked.name(), asked.version(), &model);
          if (!refused) fill(model->info, to);
          return refused;
        });
    immediate<inference::ModelConfigRequest, inference::ModelConfigResponse>(
        "ModelConfig", [this](Call* call, const auto& asked, auto* to) {
          FoundModel model;
          Refused refused = find(call, asked.name(), asked.version(), &model);
          if (!refused) fill(model->info, to->mutable_config());
          return refused;
        });
  }

  // Live and Ready need no key; descriptions of the server and the model do.
  Refused user(Call* call) const {
    Identity caller;
    return user(call, &caller);
  }
  Refused user(Call* call, Identity* caller) const {
    return context_.identify(call, Role::kUser, caller);
  }

  // For users; while the server drains too.
  Refused find(Call* call, const std::string& name, const std::string& version,
               FoundModel* model) const {
    Identity caller;
    Refused refused = user(call, &caller);
    const ServerCore& core = context_.core;
    if (!refused && !core.all_loaded()) refused = core.availability();
    return refused ? refused : find_model(core, name, version, caller, model, /*of_failed=*/true);
  }
};

}  // namespace

RpcService kserve_service() { return rpc_service<KserveService>(); }

}  // namespace recurve
