#include "server/kserve/model_description.h"

#include <string>

#include "server/kserve/infer_request.h"
#include "server/kserve/tensors.h"

namespace recurve {
namespace {

constexpr const char* kPlatform = "recurve";

}  // namespace

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

}  // namespace recurve
