#include "model/adapters/adapter_config.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/ops/lora.h"
#include "model/weights/config_reader.h"
#include "model/weights/json_file.h"
#include "model/weights/tensor_view.h"

namespace recurve {
namespace {

using nlohmann::json;
using Pattern = std::map<std::string, double>;

constexpr size_t kMostPatterns = 65536;
constexpr double kMostAlpha = 1e6;

bool is_empty(const json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty()) ||
         value == "";
}

// Without keys whose value is "no": PEFT adds some in each release.
json without_empty(const json& config) {
  json rest = json::object();
  for (const auto& [key, value] : config.items()) {
    if (!is_empty(value)) rest[key] = value;
  }
  return rest;
}

// Keys of patterns are regular expressions in PEFT. Names are all that is used, and all that is
// read.
bool is_name(std::string_view key) {
  if (key.starts_with('^')) key.remove_prefix(1);
  return !key.empty() && key.find_first_not_of(
                             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                             "0123456789_.") == std::string_view::npos;
}

// PEFT's get_pattern_key(): a name stands for modules whose path ends with it, after ^ for the one
// of that path.
bool matches(std::string_view key, std::string_view module) {
  if (key.starts_with('^')) return key.substr(1) == module;
  if (!module.ends_with(key)) return false;
  return module.size() == key.size() || module[module.size() - key.size() - 1] == '.';
}

Pattern read_pattern(ConfigReader& read, const json& config, const char* name, double least,
                     double most) {
  read.ignore({name});
  const auto at = config.find(name);
  if (at == config.end()) return {};
  if (!at->is_object()) read.fail(name, "an object", at->type_name());
  if (at->size() > kMostPatterns) {
    read.fail(name, fmt::format("at most {} modules", kMostPatterns), std::to_string(at->size()));
  }
  Pattern pattern;
  for (const auto& [key, value] : at->items()) {
    if (!is_name(key))
      read.fail(name, "names of modules or the last parts of them", in_quotes(key));
    ConfigReader one(*at, name);
    pattern[key] = one.required_number({key.c_str()}, least, most);
  }
  return pattern;
}

// The value of the pattern for a module. Two keys with different values: which counts in PEFT
// depends on their order in the file.
double value_of(const Pattern& pattern, std::string_view module, double otherwise) {
  const std::pair<const std::string, double>* found = nullptr;
  for (const auto& one : pattern) {
    if (!matches(one.first, module)) continue;
    if (found != nullptr && found->second != one.second) {
      throw std::runtime_error(fmt::format("{} is matched by {} and by {}, with different values",
                                           module, in_quotes(found->first), in_quotes(one.first)));
    }
    found = &one;
  }
  return found == nullptr ? otherwise : found->second;
}

// What PEFT can do that is not done here: all of these have to be empty.
void refuse_variants(ConfigReader& read) {
  if (!read.has("peft_type")) read.fail("peft_type", "LORA", "no such key");
  read.must_be("peft_type", "LORA");
  read.must_be("bias", "none");
  for (const char* key : {"use_dora", "fan_in_fan_out", "lora_bias", "use_qalora"}) {
    read.must_be(key, false);
  }
  for (const char* key : {"modules_to_save", "trainable_token_indices", "target_parameters",
                          "layer_replication", "alora_invocation_tokens"}) {
    read.must_be(key, nullptr);
  }
}

// How A and B were initialised does not matter, unless the base model was changed too.
void check_initialisation(ConfigReader& read, const json& config) {
  read.ignore({"init_lora_weights"});
  const auto at = config.find("init_lora_weights");
  if (at == config.end() || at->is_boolean()) return;
  read.string_one_of("init_lora_weights", "", {"gaussian", "eva", "orthogonal"});
}

}  // namespace

int64_t AdapterConfig::rank_of(std::string_view module) const {
  return static_cast<int64_t>(value_of(ranks, module, static_cast<double>(r)));
}

float AdapterConfig::scale_of(std::string_view module, int64_t r) const {
  const double alpha_of_module = value_of(alphas, module, alpha);
  const auto rank = static_cast<double>(r);
  return static_cast<float>(alpha_of_module / (rslora ? std::sqrt(rank) : rank));
}

AdapterConfig read_adapter_config(const std::filesystem::path& file) {
  const json config = without_empty(read_json_file(file, kMaxConfigBytes));
  ConfigReader read(config, file.string());
  refuse_variants(read);
  check_initialisation(read, config);
  AdapterConfig c;
  c.r = read.required_int("r", 1, kMostLoraRank);
  c.alpha = read.required_number("lora_alpha", -kMostAlpha, kMostAlpha);
  c.rslora = read.boolean("use_rslora", false);
  c.ranks = read_pattern(read, config, "rank_pattern", 1, kMostLoraRank);
  c.alphas = read_pattern(read, config, "alpha_pattern", -kMostAlpha, kMostAlpha);
  if (const auto base = config.find("base_model_name_or_path");
      base != config.end() && base->is_string()) {
    c.base = base->get<std::string>();
  }
  // Of training, or which modules there are tensors for.
  read.ignore({"arrow_config", "auto_mapping", "base_model_name_or_path", "corda_config",
               "ensure_weight_tying", "eva_config", "exclude_modules", "inference_mode",
               "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout",
               "megatron_config", "megatron_core", "peft_version", "qalora_group_size", "revision",
               "target_modules", "task_type"});
  read.finish();
  const json text = {c.r, c.alpha, c.rslora, c.ranks, c.alphas};
  c.text = text.dump();
  return c;
}

}  // namespace recurve
