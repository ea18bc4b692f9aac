#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "model/weights/config_reader.h"
#include "model/weights/linear_weights.h"

namespace recurve {

// How positions turn the queries and keys of a head (kernels/ops/rotary.h).
struct Rotary {
  double theta = 0;
  int64_t channels = 0;  // of a head, the first ones, that are turned; even

  // (channels / 2) radians a position, computed in fp32 as transformers does.
  VectorWeights frequencies(Backend& backend) const;
};

// From rope_parameters, where transformers 5 has them, or the keys by themselves of releases
// before. part: of a head's channels, where the config says nothing. unused: keys in
// rope_parameters that change nothing here. Throws if another type than "default" is asked for.
Rotary read_rotary(ConfigReader& read, const nlohmann::json& config, int64_t head, double part,
                   const std::vector<std::string_view>& unused = {});

}  // namespace recurve
