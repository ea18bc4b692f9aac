#include "model/special_ids.h"

#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <stdexcept>

#include "model/weights/json_file.h"

namespace recurve {
namespace {

using nlohmann::json;

// The eos_token_id that the config classes of transformers and flash-linear-attention write where
// none was set.
constexpr std::pair<const char*, int32_t> kDefaultEnds[] = {
    {"xlstm", 2}, {"mamba", 0},     {"falcon_mamba", 0},   {"mamba2", 2},
    {"gla", 2},   {"retnet", 2},    {"linear_attn", 2},    {"hgrn2", 2},
    {"rwkv7", 2}, {"delta_net", 2}, {"gated_deltanet", 2}, {"recurrent_gemma", 1}};

int32_t id_from(const json& value, const char* key, const std::string& file) {
  if (value.is_number_integer()) {
    const int64_t id = value.get<int64_t>();
    if (id >= 0 && id <= std::numeric_limits<int32_t>::max()) return static_cast<int32_t>(id);
  }
  throw std::runtime_error(
      fmt::format("{}: {}: wanted a token id, found {}", file, key, value.dump()));
}

json value_of(const json& config, const char* key) {
  const auto found = config.find(key);
  return found == config.end() ? json() : *found;
}

bool is_default_end(const json& config, int32_t id) {
  for (const auto& [type, end] : kDefaultEnds) {
    if (value_of(config, "model_type") == type) return id == end;
  }
  return false;
}

// Appends those of a file. may_be_default: it may hold a default.
void read_ends(const json& values, const std::string& path, const json& config, bool may_be_default,
               std::vector<EndId>& ends) {
  constexpr auto kKey = "eos_token_id";
  const json eos = value_of(values, kKey);
  for (const json& value : eos.is_array() ? eos : json::array({eos})) {
    if (value.is_null()) continue;
    const int32_t id = id_from(value, kKey, path);
    ends.push_back({.id = id,
                    .file = std::filesystem::path(path).filename().string(),
                    .is_default = may_be_default && is_default_end(config, id)});
  }
}

}  // namespace

SpecialIds read_special_ids(const Checkpoint& checkpoint) {
  return read_special_ids(checkpoint, checkpoint.config());
}

SpecialIds read_special_ids(const Checkpoint& checkpoint, const json& config) {
  SpecialIds ids;
  if (const json bos = value_of(config, "bos_token_id"); !bos.is_null()) {
    ids.bos = id_from(bos, "bos_token_id", checkpoint.config_file());
  }
  read_ends(config, checkpoint.config_file(), config, true, ids.eos);
  const auto generation = std::filesystem::path(checkpoint.where()) / "generation_config.json";
  if (!checkpoint.is_random() && std::filesystem::exists(generation)) {
    const json values = read_json_file(generation, kMaxConfigBytes);
    const bool derived = value_of(values, "_from_model_config") == true;
    read_ends(values, generation.string(), config, derived, ids.eos);
  }
  if (const json force = value_of(config, "force_bos_token_insert"); !force.is_null()) {
    if (!force.is_boolean()) {
      throw std::runtime_error(
          fmt::format("{}: force_bos_token_insert: wanted true or false, found {}",
                      checkpoint.config_file(), force.dump()));
    }
    ids.force_bos = force.get<bool>();
  }
  return ids;
}

void set_special_ids(const SpecialIds& ids, ModelInfo* info, bool force_bos) {
  info->bos = ids.bos;
  info->eos = ids.eos;
  info->force_bos = ids.force_bos.value_or(force_bos);
}

}  // namespace recurve
