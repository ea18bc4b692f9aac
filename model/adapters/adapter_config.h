#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace recurve {

inline constexpr const char* kAdapterConfig = "adapter_config.json";

// adapter_config.json of a LoRA adapter, as PEFT writes it.
struct AdapterConfig {
  std::string base;  // base_model_name_or_path; empty: none
  int64_t r = 0;
  double alpha = 0;
  bool rslora = false;  // scales are alpha / sqrt(r), else alpha / r
  // Of modules by their path or the last parts of it: rank_pattern and alpha_pattern.
  std::map<std::string, double> ranks = {}, alphas = {};
  std::string text = {};  // of what changes the result

  int64_t rank_of(std::string_view module) const;
  // r: of the module.
  float scale_of(std::string_view module, int64_t r) const;
};

// Throws std::runtime_error, one sentence with file and key, for what is not supported. Which
// modules are changed follows from the tensors alone, so target_modules, layers_pattern and
// layers_to_transform are not read.
AdapterConfig read_adapter_config(const std::filesystem::path& file);

}  // namespace recurve
