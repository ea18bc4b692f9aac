#include "model/weights/adapter_targets.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>

namespace recurve {
namespace {

constexpr std::string_view kWeight = ".weight";

// What transformers' models have before the names of their blocks.
constexpr std::array<std::string_view, 9> kPrefixes = {"",
                                                       "model.",
                                                       "backbone.",
                                                       "model.backbone.",
                                                       "model.language_model.",
                                                       "language_model.",
                                                       "language_model.model.",
                                                       "model.model.",
                                                       "model.language_model.model."};

// The name from "layers." or "blocks." on; empty if something else precedes it.
std::string_view without_prefix(std::string_view name) {
  for (const std::string_view prefix : kPrefixes) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = name.substr(prefix.size());
    if (rest.starts_with("layers.") || rest.starts_with("blocks.")) return rest;
  }
  return {};
}

}  // namespace

void AdapterTargets::add(std::string_view name, const Tensor& tensor) {
  outputs_.resize(static_cast<size_t>(layers_));
  count_of_layer_.resize(static_cast<size_t>(layers_));
  int64_t& outputs = outputs_[static_cast<size_t>(tensor.layer)];
  outputs += tensor.rows;
  widest_ = std::max(widest_, outputs + tensor.K);
  most_tensors_ = std::max(most_tensors_, ++count_of_layer_[static_cast<size_t>(tensor.layer)]);
  if (!name.ends_with(kWeight)) return;
  name.remove_suffix(kWeight.size());
  const std::string_view module = without_prefix(name);
  if (!module.empty()) tensors_.emplace(module, tensor);
}

const AdapterTargets::Tensor* AdapterTargets::find(std::string_view module) const {
  const auto at = tensors_.find(without_prefix(module));
  return at == tensors_.end() ? nullptr : &at->second;
}

std::vector<std::string> AdapterTargets::patterns() const {
  std::set<std::string> patterns;
  for (const auto& [module, tensor] : tensors_) {
    const size_t number = module.find('.') + 1, end = module.find('.', number);
    patterns.insert(module.substr(0, number) + "*" + module.substr(std::min(end, module.size())));
  }
  return {patterns.begin(), patterns.end()};
}

}  // namespace recurve
