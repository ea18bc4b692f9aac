#include "model/load_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>

#include "kernels/ops/held_rows.h"
#include "model/families/family_list.h"

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

// A model whose states are vectors only has nothing to keep in BF16.
void check_state_type(const Model& model, DType wanted) {
  for (const StateArray& array : model.state_layout().arrays) {
    if (array.dtype == wanted) return;
  }
  throw std::runtime_error(fmt::format(
      "the states of this model ({}: {}) are vectors, which are stored in fp32: leave out "
      "that states be bf16",
      model.info().family, model.info().description));
}

// Nor has a model whose steps write all of their states.
void check_written_every(const Model& model, int wanted) {
  if (wanted <= 1 || model.state_layout().written_every() == wanted) return;
  throw std::runtime_error(fmt::format(
      "the states of this model ({}: {}) are written in each token: leave out that they be written "
      "once in {}",
      model.info().family, model.info().description, wanted));
}

constexpr size_t kMost = 200;  // characters

// For the message about a model that is not supported: its own words on what it is.
std::string what_it_is(const nlohmann::json& config) {
  for (const char* key : {"model_type", "architectures"}) {
    const auto at = config.find(key);
    if (at == config.end() || at->is_null()) continue;
    const std::string text = at->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    const bool typed = std::string_view(key) == "model_type";
    return (typed ? "" : "no such key, and architectures ") + text.substr(0, kMost);
  }
  return "no such key";
}

}  // namespace

std::unique_ptr<const Model> load_model(Checkpoint& checkpoint, Backend& backend,
                                        const LoadOptions& options,
                                        const Checkpoint::Progress& progress) {
  return load_model_of(kFamilies, checkpoint, backend, options, progress);
}

std::unique_ptr<const Model> load_model_of(std::span<const Family> families, Checkpoint& checkpoint,
                                           Backend& backend, const LoadOptions& options,
                                           const Checkpoint::Progress& progress) {
  if (options.written_every < 1 || options.written_every > kMostHeldEvery) {
    throw std::runtime_error(fmt::format("states can be written once in 1 to {} tokens, not in {}",
                                         kMostHeldEvery, options.written_every));
  }
  const auto& config = checkpoint.config();
  const std::string wanted = model_type_of(config);
  std::vector<std::string_view> supported;
  for (const Family& family : families) {
    for (const std::string_view type : family.model_types) {
      if (type.empty()) continue;
      supported.push_back(type);
      if (type != wanted) continue;
      LoadOptions resolved = options;
      resolved.weights = options.weights.resolved(checkpoint);
      auto model = family.load(checkpoint, backend, resolved, progress);
      check_state_type(*model, options.state);
      check_written_every(*model, options.written_every);
      return model;
    }
  }
  for (const Incomplete& incomplete : kIncomplete) {
    if (wanted != incomplete.model_type) continue;
    throw std::runtime_error(fmt::format("{}: model_type: {} is not supported yet: {}",
                                         checkpoint.config_file(), wanted, incomplete.missing));
  }
  throw std::runtime_error(fmt::format("{}: model_type: wanted one of: {}, found {}",
                                       checkpoint.config_file(), fmt::join(supported, ", "),
                                       what_it_is(config)));
}

}  // namespace recurve
