#pragma once
#include "model/layers/hybrid.h"
#include "model/weights/checkpoint.h"

namespace recurve::qwen3_5 {

// The config.json of Qwen3.5: of its text part, where there is more.
using Config = HybridConfig<DeltaMixerConfig>;

// The object in config.json that the text part is configured by.
const nlohmann::json& text_config(const Checkpoint& checkpoint);

// Throws std::runtime_error with one sentence: file, key, wanted, found.
Config read_config(const Checkpoint& checkpoint);

}  // namespace recurve::qwen3_5
