#include "server/startup/model_flags.h"

#include <fmt/format.h>

#include "kernels/weight_formats.h"

namespace recurve {

std::vector<std::string> weights_values() {
  std::vector<std::string> names = {"auto"};
  for (const WeightFormat* format : kWeightFormats) names.emplace_back(format->name);
  return names;
}

std::map<std::string, MapWeights> map_weights_values() {
  return {{"auto", MapWeights::kAuto}, {"on", MapWeights::kOn}, {"off", MapWeights::kOff}};
}

std::string count_or_auto(std::string& value) {
  constexpr int kMax = 1 << 20;
  if (value == "auto") value = "0";
  if (CLI::Range(0, kMax)(value).empty()) return {};
  return fmt::format("wanted auto or an integer in [0, {}], found {}", kMax, value);
}

std::string size_or_auto(std::string& value) {
  if (value == "auto") {
    value = std::to_string(kAutomatic);
    return {};
  }
  const std::string given = value;
  try {
    if (!given.starts_with('-') && CLI::AsSizeValue(false)(value).empty()) return {};
  } catch (const CLI::ValidationError&) {  // an unknown unit
  }
  return "wanted auto or a size such as 4GB, found " + given;
}

CLI::Option* or_auto(CLI::Option* flag, std::string (*read)(std::string&), const char* kind) {
  return flag->transform(CLI::Validator(read, ""))
      ->type_name(std::string(kind) + "|auto")
      ->default_str("auto");
}

}  // namespace recurve
