#include "server/startup/model_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

namespace recurve {
namespace {

// NAME=PATH or PATH, separated by commas; a backslash makes the character after it part of a path.
// Without a model.
std::vector<NamedPath> split_paths(std::string_view text, bool (*is_name)(std::string_view)) {
  std::vector<NamedPath> paths;
  NamedPath path;
  bool quoted = false;  // the path has a character that a backslash stands before
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\\' && at + 1 < text.size()) {
      path.path += text[++at];
      quoted = true;
    } else if (text[at] == ',') {
      paths.push_back(std::exchange(path, {}));
      quoted = false;
    } else if (text[at] == '=' && !quoted && path.name.empty() && is_name(path.path)) {
      path.name = std::exchange(path.path, {});
    } else {
      path.path += text[at];
    }
  }
  paths.push_back(std::move(path));
  return paths;
}

// NAME or MODEL:NAME.
bool is_name_of_model(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return is_model_name(text);
  return is_model_name(text.substr(0, colon)) && is_model_name(text.substr(colon + 1));
}

void check_names(const char* flag, const std::vector<NamedPath>& paths,
                 const std::vector<std::string>& models) {
  std::set<std::pair<std::string, std::string>> known;
  for (const NamedPath& one : paths) {
    const std::string& model = one.model.empty() ? models.front() : one.model;
    if (std::ranges::find(models, model) == models.end()) {
      throw std::invalid_argument(
          fmt::format("{} {}:{}: there is no model \"{}\"", flag, model, one.name, model));
    }
    if (known.emplace(model, one.name).second) continue;
    throw std::invalid_argument(fmt::format("two of {} have the name \"{}\"", flag, one.name));
  }
}

// A request chooses an adapter in place of a model, too.
void check_adapters(const Options& o, const std::vector<std::string>& models) {
  check_names("--adapter", o.adapters, models);
  for (const NamedPath& adapter : o.adapters) {
    if (std::ranges::find(models, adapter.name) == models.end()) continue;
    throw std::invalid_argument(fmt::format(
        "--adapter {0}: a model has the name \"{0}\": give one another name", adapter.name));
  }
}

void keep_those_of(const std::string& model, bool is_first, std::vector<NamedPath>* paths) {
  std::erase_if(*paths, [&](const NamedPath& one) {
    return one.model.empty() ? !is_first : one.model != model;
  });
}

uint64_t part_of(uint64_t limit, size_t models) {
  return limit == kAutomatic ? kAutomatic : limit / models;
}

// The size of `model`, or else its part of the flag, which models without a size share.
uint64_t size_of(uint64_t flag, const std::vector<ModelEntry>& models, const ModelEntry& model,
                 std::optional<uint64_t> OwnFlags::* own) {
  if (model.own.*own) return *(model.own.*own);
  const auto sharing =
      std::ranges::count_if(models, [&](const ModelEntry& one) { return !(one.own.*own); });
  return part_of(flag, static_cast<size_t>(sharing));
}

}  // namespace

bool is_model_name(std::string_view text) {
  return !text.empty() && text.size() <= 128 && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
  });
}

std::vector<ModelEntry> read_models(std::string_view text) {
  std::vector<ModelEntry> models;
  for (NamedPath& one : split_paths(text, is_model_name)) {
    if (one.path.empty()) {
      throw std::invalid_argument(fmt::format(
          "--model must be DIR or NAME=DIR, several separated by commas, got {}", text));
    }
    models.push_back({.name = std::move(one.name), .path = std::move(one.path)});
  }
  return models;
}

std::vector<NamedPath> read_named_paths(const char* flag, std::string_view text) {
  std::vector<NamedPath> paths = split_paths(text, is_name_of_model);
  for (NamedPath& one : paths) {
    if (one.name.empty() || one.path.empty()) {
      throw std::invalid_argument(
          fmt::format("{} must be NAME=PATH or MODEL:NAME=PATH, several separated by commas, with "
                      "names of 1 to 128 of [A-Za-z0-9._-], got {}",
                      flag, text));
    }
    const size_t colon = one.name.find(':');
    if (colon == std::string::npos) continue;
    one.model = one.name.substr(0, colon);
    one.name.erase(0, colon + 1);
  }
  return paths;
}

std::string model_name(const Options& o) {
  if (!o.name.empty()) return o.name;
  const std::filesystem::path path(o.model);
  if (std::filesystem::is_regular_file(path)) return path.stem().string();
  return (path / "").parent_path().filename().string();
}

void check_models(const Options& o) {
  std::vector<std::string> unnamed;
  for (const ModelEntry& model : o.models) {
    if (model.name.empty()) unnamed.push_back(model.path);
  }
  if (unnamed.size() > 1) {
    throw std::invalid_argument(fmt::format(
        "two models are given without a name, {} and {}: give each but one as --model NAME=DIR",
        unnamed[0], unnamed[1]));
  }
  if (unnamed.empty() && !o.name.empty()) {
    throw std::invalid_argument(
        fmt::format("--name {} is for a model without a name: leave it out", o.name));
  }
  std::set<std::string> known;
  const std::vector<std::string> models = names_of_models(o);
  for (const std::string& name : models) {
    if (known.insert(name).second) continue;
    throw std::invalid_argument(
        fmt::format("two models have the name \"{}\": give one of them another name", name));
  }
  check_names("--initial-state", o.initial_states, models);
  check_adapters(o, models);
}

namespace {

// What does not depend on other models.
Options options_of_model(const Options& o, const ModelEntry& model) {
  Options one = o;
  one.models = {model};
  one.model = model.path;
  if (!model.name.empty()) one.name = model.name;
  one.slots = model.own.slots.value_or(o.slots);
  one.device = model.own.device.value_or(o.device);
  one.weights = model.own.weights.value_or(o.weights);
  one.map_weights = model.own.map_weights.value_or(o.map_weights);
  if (!o.state_dir.empty() && !model.name.empty()) {
    one.state_dir = std::filesystem::path(o.state_dir) / ("model-" + model.name);
  }
  return one;
}

}  // namespace

std::vector<std::string> names_of_models(const Options& o) {
  std::vector<std::string> names;
  for (const Options& one : options_of_models(o)) names.push_back(model_name(one));
  return names;
}

std::vector<Options> options_of_models(const Options& o) {
  std::vector<Options> all;
  const uint64_t disk = o.model_root.empty() ? o.state_disk : part_of(o.state_disk, 2);
  for (const ModelEntry& model : o.models) {
    Options& one = all.emplace_back(options_of_model(o, model));
    one.sharing = {.index = all.size() - 1, .count = o.models.size()};
    for (auto* const paths : {&one.initial_states, &one.adapters}) {
      keep_those_of(model_name(one), all.size() == 1, paths);
    }
    one.kv_memory = size_of(o.kv_memory, o.models, model, &OwnFlags::kv_memory);
    one.session_memory = size_of(o.session_memory, o.models, model, &OwnFlags::session_memory);
    one.prefix_memory = size_of(o.prefix_memory, o.models, model, &OwnFlags::prefix_memory);
    one.state_disk = part_of(disk, o.models.size());
  }
  return all;
}

Options options_of_further(const Options& o, const ModelEntry& model,
                           const std::vector<Options>& running) {
  Options one = options_of_model(o, model);
  one.sharing = {.index = running.size(), .count = running.size() + 1};
  for (auto* const paths : {&one.initial_states, &one.adapters}) {
    keep_those_of(model.name, /*is_first=*/false, paths);
  }
  one.kv_memory = model.own.kv_memory.value_or(kAutomatic);
  one.session_memory = model.own.session_memory.value_or(kAutomatic);
  one.prefix_memory = model.own.prefix_memory.value_or(kAutomatic);
  if (o.state_disk == kAutomatic) return one;
  for (const Options& other : running) one.state_disk -= other.state_disk;
  one.state_disk /= 2;
  return one;
}

}  // namespace recurve
