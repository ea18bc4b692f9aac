#include "model/special_ids.h"

#include <fmt/format.h>

#include <limits>
#include <stdexcept>

namespace recurve {
namespace {

int32_t id_from(const nlohmann::json& value, const char* key, const Checkpoint& checkpoint) {
  if (value.is_number_integer()) {
    const int64_t id = value.get<int64_t>();
    if (id >= 0 && id <= std::numeric_limits<int32_t>::max()) return static_cast<int32_t>(id);
  }
  throw std::runtime_error(fmt::format("{}: {}: wanted a token id, found {}",
                                       checkpoint.config_file(), key, value.dump()));
}

}  // namespace

SpecialIds read_special_ids(const Checkpoint& checkpoint) {
  const nlohmann::json& config = checkpoint.config();
  const auto get = [&](const char* key) {
    const auto found = config.find(key);
    return found == config.end() ? nlohmann::json() : *found;
  };
  SpecialIds ids;
  if (const auto bos = get("bos_token_id"); !bos.is_null()) {
    ids.bos = id_from(bos, "bos_token_id", checkpoint);
  }
  const auto eos = get("eos_token_id");
  for (const auto& id : eos.is_array() ? eos : nlohmann::json::array({eos})) {
    if (!id.is_null()) ids.eos.push_back(id_from(id, "eos_token_id", checkpoint));
  }
  if (const auto force = get("force_bos_token_insert"); !force.is_null()) {
    if (!force.is_boolean()) {
      throw std::runtime_error(
          fmt::format("{}: force_bos_token_insert: wanted true or false, found {}",
                      checkpoint.config_file(), force.dump()));
    }
    ids.force_bos = force.get<bool>();
  }
  return ids;
}

}  // namespace recurve
