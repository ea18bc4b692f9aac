#include "server/startup/model_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <utility>

namespace recurve {
namespace {

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 128 && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
  });
}

void add(ModelPath model, std::string_view text, std::vector<ModelPath>* models) {
  if (model.path.empty()) {
    throw std::invalid_argument(
        fmt::format("--model must be DIR or NAME=DIR, several separated by commas, got {}", text));
  }
  models->push_back(std::move(model));
}

uint64_t part_of(uint64_t limit, size_t models) {
  return limit == kAutomatic ? kAutomatic : limit / models;
}

}  // namespace

std::vector<ModelPath> read_models(std::string_view text) {
  std::vector<ModelPath> models;
  ModelPath model;
  bool quoted = false;  // the path has a character that a backslash stands before
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\\' && at + 1 < text.size()) {
      model.path += text[++at];
      quoted = true;
    } else if (text[at] == ',') {
      add(std::exchange(model, {}), text, &models);
      quoted = false;
    } else if (text[at] == '=' && !quoted && model.name.empty() && is_name(model.path)) {
      model.name = std::exchange(model.path, {});
    } else {
      model.path += text[at];
    }
  }
  add(std::move(model), text, &models);
  return models;
}

std::string model_name(const Options& o) {
  if (!o.name.empty()) return o.name;
  const std::filesystem::path path(o.model);
  if (std::filesystem::is_regular_file(path)) return path.stem().string();
  return (path / "").parent_path().filename().string();
}

void check_models(const Options& o) {
  std::vector<std::string> unnamed;
  for (const ModelPath& model : o.models) {
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
  for (const std::string& name : names_of_models(o)) {
    if (known.insert(name).second) continue;
    throw std::invalid_argument(fmt::format(
        "two models have the name \"{}\": give another one with --model NAME=DIR", name));
  }
}

std::vector<std::string> names_of_models(const Options& o) {
  std::vector<std::string> names;
  for (const Options& one : options_of_models(o)) names.push_back(model_name(one));
  return names;
}

std::vector<Options> options_of_models(const Options& o) {
  std::vector<Options> all;
  for (const ModelPath& model : o.models) {
    Options& one = all.emplace_back(o);
    one.models = {model};
    one.model = model.path;
    if (!model.name.empty()) one.name = model.name;
    one.sharing = {.index = all.size() - 1, .count = o.models.size()};
    for (uint64_t* limit : {&one.kv_memory, &one.session_memory, &one.prefix_memory}) {
      *limit = part_of(*limit, o.models.size());
    }
    one.state_disk = part_of(o.state_disk, o.models.size());
    if (!o.state_dir.empty() && !model.name.empty()) {
      one.state_dir = std::filesystem::path(o.state_dir) / ("model-" + model.name);
    }
  }
  return all;
}

}  // namespace recurve
