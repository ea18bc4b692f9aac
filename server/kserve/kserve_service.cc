#include "server/kserve/kserve_service.h"

#include <memory>
#include <string>
#include <utility>

#include "kserve/v2/inference.grpc.pb.h"
#include "server/kserve/infer_request.h"
#include "server/kserve/stream_infer.h"
#include "server/kserve/tensors.h"
#include "server/kserve/unary_infer.h"
#include "server/rpc/headers_first.h"
#include "server/rpc/messages.h"
#include "server/rpc/unary_call.h"

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

using Service = inference::GRPCInferenceService;
// With messages as bytes: see messages.h.
template <typename S>
using RawInfer =
    Service::WithRawCallbackMethod_ModelInfer<Service::WithRawCallbackMethod_ModelStreamInfer<S>>;
template <typename S>
using RawState = Service::WithRawCallbackMethod_ServerLive<
    Service::WithRawCallbackMethod_ServerReady<Service::WithRawCallbackMethod_ModelReady<S>>>;
template <typename S>
using RawDescription = Service::WithRawCallbackMethod_ServerMetadata<
    Service::WithRawCallbackMethod_ModelMetadata<Service::WithRawCallbackMethod_ModelConfig<S>>>;

class KserveService final
    : public HeadersFirstService<KserveService,
                                 RawInfer<RawState<RawDescription<Service::Service>>>> {
 public:
  explicit KserveService(ServiceContext& context) : context_(context) {
    using Self = KserveService;
    headers_first(context, "inference.GRPCInferenceService.ModelInfer", &Self::ModelInfer);
    headers_first(context, "inference.GRPCInferenceService.ServerMetadata", &Self::ServerMetadata);
    headers_first(context, "inference.GRPCInferenceService.ModelMetadata", &Self::ModelMetadata);
    headers_first(context, "inference.GRPCInferenceService.ModelConfig", &Self::ModelConfig);
  }

  Reactor* ServerLive(Call* call, const Bytes* request, Bytes* response) override {
    using Response = inference::ServerLiveResponse;
    return answer<inference::ServerLiveRequest, Response>(call, request, response,
                                                          [](const auto&, Response* to) -> Refused {
                                                            to->set_live(true);
                                                            return {};
                                                          });
  }

  Reactor* ServerReady(Call* call, const Bytes* request, Bytes* response) override {
    using Response = inference::ServerReadyResponse;
    return answer<inference::ServerReadyRequest, Response>(
        call, request, response, [this](const auto&, Response* to) -> Refused {
          to->set_ready(!context_.core.availability());
          return {};
        });
  }

  Reactor* ModelReady(Call* call, const Bytes* request, Bytes* response) override {
    using Response = inference::ModelReadyResponse;
    return answer<inference::ModelReadyRequest, Response>(
        call, request, response, [this](const auto& asked, Response* to) -> Refused {
          const ServerCore& core = context_.core;
          to->set_ready(!core.availability() &&
                        !check_model(asked.name(), asked.version(), core.model()->info.model_name));
          return {};
        });
  }

  Reactor* ServerMetadata(Call* call, const Bytes* request, Bytes* response) override {
    using Response = inference::ServerMetadataResponse;
    return answer<inference::ServerMetadataRequest, Response>(
        call, request, response, [this, call](const auto&, Response* to) -> Refused {
          if (Refused refused = user(call)) return refused;
          to->set_name("recurve");
          to->set_version(context_.core.options.version);
          for (const char* extension : {"sequence", "model_configuration", "parameters"}) {
            to->add_extensions(extension);
          }
          return {};
        });
  }

  Reactor* ModelMetadata(Call* call, const Bytes* request, Bytes* response) override {
    using Response = inference::ModelMetadataResponse;
    return answer<inference::ModelMetadataRequest, Response>(
        call, request, response, [this, call](const auto& asked, Response* to) {
          Refused refused = user(call);
          if (!refused) refused = known(asked.name(), asked.version());
          if (!refused) fill(context_.core.model()->info, to);
          return refused;
        });
  }

  Reactor* ModelConfig(Call* call, const Bytes* request, Bytes* response) override {
    using Response = inference::ModelConfigResponse;
    return answer<inference::ModelConfigRequest, Response>(
        call, request, response, [this, call](const auto& asked, Response* to) {
          Refused refused = user(call);
          if (!refused) refused = known(asked.name(), asked.version());
          if (!refused) fill(context_.core.model()->info, to->mutable_config());
          return refused;
        });
  }

  Reactor* ModelInfer(Call* call, const Bytes* request, Bytes* response) override {
    Bytes message = *request;
    // Frees the message, which may be large and which gRPC would hold until the call ends. No other
    // code uses it.
    const_cast<Bytes*>(request)->Clear();
    const auto infer = std::make_shared<UnaryInfer>(context_, call, std::move(message), response);
    infer->start();
    return infer.get();
  }

  grpc::ServerBidiReactor<Bytes, Bytes>* ModelStreamInfer(Call* call) override {
    if (const Refused refused = user(call)) {
      return new RefusedStream(context_.status_for(call, context_.core.report(refused)));
    }
    return new InferStream(context_, call);
  }

 private:
  // For small messages: on gRPC's thread.
  template <typename Request, typename Response, typename Fill>
  Reactor* answer(Call* call, const Bytes* bytes, Bytes* response, const Fill& fill_response) {
    auto* unary = new UnaryCall(context_, call);
    Request request;
    Response reply;
    Refused refused = parse(*bytes, &request);
    if (!refused) refused = fill_response(request, &reply);
    if (!refused) *response = serialize(reply);
    unary->finish(std::move(refused));
    return unary;
  }

  // Live and Ready need no key; descriptions of the server and the model do.
  Refused user(Call* call) const {
    Identity caller;
    return context_.identify(call, Role::kUser, &caller);
  }

  // Answered while the server drains too.
  Refused known(const std::string& name, const std::string& version) const {
    const ServerCore& core = context_.core;
    if (!core.model()->loaded()) return core.availability();
    return check_model(name, version, core.model()->info.model_name);
  }

  ServiceContext& context_;
};

}  // namespace

RpcService kserve_service() { return rpc_service<KserveService>("inference.GRPCInferenceService"); }

}  // namespace recurve
