#include "model/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>

namespace recurve {
namespace {

// The configs of state-spaces/mamba name no model_type; they are known by their ssm_cfg.
std::string model_type_of(const nlohmann::json& config) {
  if (const auto type = config.find("model_type"); type != config.end()) {
    return type->is_string() ? type->get<std::string>() : "";
  }
  const auto ssm = config.find("ssm_cfg");
  if (ssm == config.end() || !ssm->is_object()) return "";
  return ssm->value("layer", nlohmann::json()) == "Mamba2" ? "mamba2" : "mamba";
}

}  // namespace

std::unique_ptr<const Model> load_model(Checkpoint& checkpoint, Backend& backend,
                                        const LoadOptions& options,
                                        const Checkpoint::Progress& progress) {
  static constexpr struct {
    const char* model_type;
    std::unique_ptr<const Model> (*load)(Checkpoint&, Backend&, const LoadOptions&,
                                         const Checkpoint::Progress&);
  } kFamilies[] = {
      {"xlstm", load_xlstm},
      {"mamba", load_mamba},
      {"falcon_mamba", load_falcon_mamba},
      {"mamba2", load_mamba2},
      {"gla", load_gla},
      {"simple_gla", load_gla},
      {"retnet", load_gla},
      {"linear_attn", load_gla},
      {"hgrn2", load_gla},
      {"xlstm_blocks", load_xlstm_blocks},
      {"rnn", load_rnn},
  };
  const auto& config = checkpoint.config();
  const std::string type = model_type_of(config);
  std::vector<std::string_view> supported;
  for (const auto& family : kFamilies) {
    if (type == family.model_type) return family.load(checkpoint, backend, options, progress);
    supported.push_back(family.model_type);
  }
  throw std::runtime_error(fmt::format("{}: model_type: wanted one of: {}, found \"{}\"",
                                       checkpoint.config_file(), fmt::join(supported, ", "), type));
}

}  // namespace recurve
