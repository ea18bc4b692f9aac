#pragma once
#include "model/layers/hybrid.h"
#include "model/weights/checkpoint.h"

namespace recurve::qwen3_5 {

// The config.json of Qwen3.5, or Qwen3-Next: of its text part, where there is more.
struct Config : HybridConfig<DeltaMixerConfig> {
  // Rows of the mixer's projections are stored by head of keys: those of its queries, keys, values
  // and output gates, and of its beta and decays.
  bool by_key_head = false;
};

// The object in config.json that the text part is configured by.
const nlohmann::json& text_config(const Checkpoint& checkpoint);

// Throws std::runtime_error with one sentence: file, key, wanted, found.
Config read_config(const Checkpoint& checkpoint);

}  // namespace recurve::qwen3_5
