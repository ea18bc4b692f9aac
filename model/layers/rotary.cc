#include "model/layers/rotary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace recurve {
namespace {

// Only what read_rotary() takes from them.
void check_rope_parameters(const ConfigReader& read, const nlohmann::json& rope,
                           const std::vector<std::string_view>& unused) {
  for (const auto& [key, value] : rope.items()) {
    const bool type = key == "rope_type" || key == "type";
    const bool number = key == "rope_theta" || key == "partial_rotary_factor";
    if (type ? value == "default" : number && value.is_number()) continue;
    if (std::ranges::find(unused, key) != unused.end()) continue;
    read.fail("rope_parameters",
              "rope_type \"default\", rope_theta and partial_rotary_factor alone", rope.dump());
  }
}

}  // namespace

VectorWeights Rotary::frequencies(Backend& backend) const {
  std::vector<float> values;
  for (int64_t j = 0; j < channels; j += 2) {
    const float power = static_cast<float>(j) / static_cast<float>(channels);
    values.push_back(1.0f / std::pow(static_cast<float>(theta), power));
  }
  return VectorWeights::from(backend, values);
}

Rotary read_rotary(ConfigReader& read, const nlohmann::json& config, int64_t head, double part,
                   const std::vector<std::string_view>& unused) {
  read.ignore({"rope_parameters"});
  const auto at = config.find("rope_parameters");
  const bool nested = at != config.end() && at->is_object();
  if (read.has("rope_parameters") && !nested) {
    read.fail("rope_parameters", "an object", at->dump());
  }
  if (nested) check_rope_parameters(read, *at, unused);
  const double part_outside = read.optional_number("partial_rotary_factor", part, 0, 1);
  const double theta_outside = read.optional_number("rope_theta", 10000, 1, 1e12);
  const auto inside = [&](const char* key, double otherwise) {
    return nested && at->contains(key) ? (*at)[key].get<double>() : otherwise;
  };
  const double turned = inside("partial_rotary_factor", part_outside);
  const double theta = inside("rope_theta", theta_outside);
  if (!(turned > 0 && turned <= 1)) {
    read.fail("partial_rotary_factor", "a number in (0, 1]", fmt::format("{}", turned));
  }
  if (!(theta >= 1 && theta <= 1e12)) {
    read.fail("rope_theta", "a number in [1, 1e12]", fmt::format("{}", theta));
  }
  const Rotary rotary{theta, static_cast<int64_t>(static_cast<double>(head) * turned)};
  if (rotary.channels < 2 || rotary.channels % 2 != 0) {
    read.fail("partial_rotary_factor",
              fmt::format("an even number of the {} channels of a head", head),
              std::to_string(rotary.channels));
  }
  return rotary;
}

}  // namespace recurve
