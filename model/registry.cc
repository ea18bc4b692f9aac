#include "model/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>

namespace recurve {

std::unique_ptr<const Model> load_model(Checkpoint& checkpoint, Backend& backend,
                                        const LoadOptions& options,
                                        const Checkpoint::Progress& progress) {
  static constexpr struct {
    const char* model_type;
    std::unique_ptr<const Model> (*load)(Checkpoint&, Backend&, const LoadOptions&,
                                         const Checkpoint::Progress&);
  } kFamilies[] = {
      {"xlstm", load_xlstm},
  };
  const auto& config = checkpoint.config();
  const std::string type = config.contains("model_type") && config["model_type"].is_string()
                               ? config["model_type"].get<std::string>()
                               : "";
  std::vector<std::string_view> supported;
  for (const auto& family : kFamilies) {
    if (type == family.model_type) return family.load(checkpoint, backend, options, progress);
    supported.push_back(family.model_type);
  }
  throw std::runtime_error(fmt::format("{}: model_type: wanted one of: {}, found \"{}\"",
                                       checkpoint.config_file(), fmt::join(supported, ", "), type));
}

}  // namespace recurve
