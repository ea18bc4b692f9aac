#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "model/model.h"
#include "model/weights/checkpoint.h"

namespace recurve {

// The special tokens of config.json, unchecked; absent where it has none.
struct SpecialIds {
  std::optional<int32_t> bos;     // bos_token_id
  std::vector<EndId> eos;         // eos_token_id of generation_config.json too: a number or a list
  std::optional<bool> force_bos;  // force_bos_token_insert
};

// Throws std::runtime_error if a value is not of the type the format wants.
SpecialIds read_special_ids(const Checkpoint& checkpoint);
// Of a part of config.json, where a model is configured by a part.
SpecialIds read_special_ids(const Checkpoint& checkpoint, const nlohmann::json& config);

// To what a model says of itself. force_bos: where config.json does not say.
void set_special_ids(const SpecialIds& ids, ModelInfo* info, bool force_bos = false);

}  // namespace recurve
