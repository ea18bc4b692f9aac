#pragma once
#include <cstdint>
#include <string>

#include "model/layers/delta_mixer.h"
#include "model/weights/checkpoint.h"

namespace recurve::delta_net {

// The config.json of fla's DeltaNet and Gated DeltaNet.
struct Config : DeltaMixerConfig {
  std::string type;  // the model_type
  int64_t blocks, F, vocab;
  bool tied;
};

// Throws std::runtime_error with one sentence: file, key, wanted, found.
Config read_config(const Checkpoint& checkpoint);

}  // namespace recurve::delta_net
