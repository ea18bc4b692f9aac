#pragma once
#include <cstdint>
#include <vector>

#include "model/layers/attention.h"
#include "model/layers/delta_mixer.h"
#include "model/weights/checkpoint.h"

namespace recurve::qwen3_5 {

// The config.json of Qwen3.5: of its text part, where there is more.
struct Config {
  int64_t D, F, vocab;
  float eps;
  bool tied;
  std::vector<bool> attends;  // of each block: whether it is attention, or else the delta rule
  int64_t most_tokens;        // of a session
  DeltaMixerConfig delta;
  AttentionConfig attention;

  int64_t blocks() const { return static_cast<int64_t>(attends.size()); }
};

// The object in config.json that the text part is configured by.
const nlohmann::json& text_config(const Checkpoint& checkpoint);

// Throws std::runtime_error with one sentence: file, key, wanted, found.
Config read_config(const Checkpoint& checkpoint);

}  // namespace recurve::qwen3_5
