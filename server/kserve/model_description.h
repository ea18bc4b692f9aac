#pragma once
#include "kserve/v2/inference.pb.h"
#include "server/request/serving_info.h"

namespace recurve {

// What the protocol says of the model served, from the tables of tensors.h.
void fill(const ServingInfo& info, inference::ModelMetadataResponse* to);
void fill(const ServingInfo& info, inference::ModelConfig* to);

}  // namespace recurve
