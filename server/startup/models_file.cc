#include "server/startup/models_file.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "server/startup/flag_values.h"
#include "server/startup/model_flags.h"
#include "server/startup/model_list.h"

#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

namespace recurve {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxBytes = size_t{1} << 20;

// Text of the file as an error message may have it.
std::string excerpt(std::string_view text) {
  constexpr size_t kLongest = 100;
  std::string excerpt(text.substr(0, kLongest));
  std::ranges::replace_if(excerpt, [](unsigned char c) { return c < ' ' || c == 0x7f; }, '?');
  return text.size() > kLongest ? excerpt + "..." : excerpt;
}

std::string read_limited(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text(kMaxBytes + 1, '\0');
  if (!in || (!in.read(text.data(), static_cast<std::streamsize>(text.size())) && in.bad())) {
    throw std::invalid_argument(
        fmt::format("--models {}: cannot be read: {}", file, std::strerror(errno)));
  }
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMaxBytes) {
    throw std::invalid_argument(
        fmt::format("--models {}: the file must have at most {} bytes", file, kMaxBytes));
  }
  return text;
}

// The flags whose values a model may have for itself.
void add_own_flags(CLI::App& app, OwnFlags* own) {
  app.set_help_flag();
  app.add_option("--device", own->device);
  app.add_option("--weights", own->weights)->check(CLI::IsMember(weights_values()));
  takes_names<MapWeights>(app.add_option("--map-weights", own->map_weights), map_weights_values());
  or_auto(app.add_option("--slots", own->slots), count_or_auto, "INT");
  or_auto(app.add_option("--kv-memory", own->kv_memory), size_or_auto, "SIZE");
  or_auto(app.add_option("--session-memory", own->session_memory), size_or_auto, "SIZE");
  or_auto(app.add_option("--prefix-memory", own->prefix_memory), size_or_auto, "SIZE");
}

std::string flag_of(std::string_view key) {
  std::string flag = "--" + std::string(key);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

bool is_own_flag(std::string_view key) {
  OwnFlags own;
  CLI::App flags;
  add_own_flags(flags, &own);
  return key.find('-') == key.npos && flags.get_option_no_throw(flag_of(key)) != nullptr;
}

std::string unknown_key(std::string_view key) {
  return fmt::format(
      "unknown key {}: the keys are path, adapters, initial_states, device, weights, map_weights, "
      "slots, kv_memory, session_memory and prefix_memory",
      excerpt(key));
}

// The table of one model.
class ModelReader {
 public:
  ModelReader(const std::string& file, std::string_view name) : file_(file), name_(name) {}

  ModelEntry read(const toml::node& node) {
    if (!is_model_name(name_)) {
      fail(node, "a name has at most 128 letters, digits, '.', '_' and '-'");
    }
    const toml::table* table = node.as_table();
    if (table == nullptr) {
      fail(node, fmt::format("wanted a table [{}], found {}", name_, kind(node)));
    }
    model_.name = name_;
    for (const auto& [key, value] : *table) read_value(key.str(), value);
    if (model_.path.empty()) fail(node, "path is missing: the directory of a checkpoint");
    return std::move(model_);
  }

 private:
  [[noreturn]] void fail(const toml::node& at, const std::string& why) const {
    throw std::invalid_argument(fmt::format("--models {}:{}: model \"{}\": {}", file_,
                                            at.source().begin.line, excerpt(name_), why));
  }
  static std::string kind(const toml::node& value) {
    switch (value.type()) {
      case toml::node_type::table:
        return "a table";
      case toml::node_type::array:
        return "an array";
      case toml::node_type::string:
        return "a string";
      case toml::node_type::integer:
        return "an integer";
      case toml::node_type::floating_point:
        return "a floating-point number";
      case toml::node_type::boolean:
        return "a boolean";
      default:
        return "a date or time";
    }
  }

  void read_value(std::string_view key, const toml::node& value) {
    if (key == "adapters") return read_named(key, value, &model_.adapters);
    if (key == "initial_states") return read_named(key, value, &model_.initial_states);
    const bool is_path = key == "path";
    if (!is_path && !is_own_flag(key)) {
      fail(value, unknown_key(key) + (value.is_table() ? "; quote a name that has a dot" : ""));
    }
    const auto text = value.value_exact<std::string>();
    const auto number = value.value_exact<int64_t>();
    if (!text && (is_path || !number)) {
      fail(value, fmt::format("{}: wanted a string{}, found {}", key,
                              is_path ? "" : " or an integer", kind(value)));
    }
    if (is_path) {
      model_.path = path_of(key, *text, value, "the directory of a checkpoint");
      return;
    }
    try {
      set_own_flag(key, text ? *text : std::to_string(*number), &model_.own);
    } catch (const std::invalid_argument& error) {
      fail(value, error.what());
    }
  }

  // A table of names and paths.
  void read_named(std::string_view key, const toml::node& node, std::vector<NamedPath>* to) {
    const toml::table* table = node.as_table();
    if (table == nullptr) {
      fail(node, fmt::format("{}: wanted a table of names and paths, found {}", key, kind(node)));
    }
    for (const auto& [name, value] : *table) {
      if (!is_model_name(name.str())) {
        fail(value, fmt::format("{}: a name has 1 to 128 letters, digits, '.', '_' and '-', got {}",
                                key, excerpt(name.str())));
      }
      const auto path = value.value_exact<std::string>();
      if (!path) {
        fail(value, fmt::format("{}: {}: wanted a string, found {}", key, name.str(), kind(value)));
      }
      to->push_back({.model = name_,
                     .name = std::string(name.str()),
                     .path = path_of(key, *path, value, "a file or folder")});
    }
  }

  // The path from the folder of the file on, where there is `what`.
  std::string path_of(std::string_view key, const std::string& path, const toml::node& at,
                      const char* what) const {
    std::string found = (fs::path(file_).parent_path() / path).string();
    std::error_code error;
    if (path.empty() || !fs::exists(found, error)) {
      fail(at, fmt::format("{}: {} does not exist: give {}", key, excerpt(found), what));
    }
    return found;
  }

  const std::string file_, name_;
  ModelEntry model_;
};

}  // namespace

void set_own_flag(std::string_view key, const std::string& text, OwnFlags* own) {
  if (!is_own_flag(key)) throw std::invalid_argument(unknown_key(key));
  CLI::App flags;
  add_own_flags(flags, own);
  try {
    flags.parse(std::vector<std::string>{flag_of(key) + "=" + text});
  } catch (const CLI::ParseError& error) {
    const std::string_view why = error.what();  // begins with the flag
    throw std::invalid_argument(
        fmt::format("{}: {}", key, excerpt(why.substr(why.find(": ") + 2))));
  }
}

std::vector<ModelEntry> read_models_file(const std::string& file) {
  const std::string text = read_limited(file);
  toml::table all;
  try {
    all = toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw std::invalid_argument(fmt::format("--models {}:{}: {}", file, error.source().begin.line,
                                            excerpt(error.description())));
  }
  std::vector<std::pair<std::string_view, const toml::node*>> tables;
  for (const auto& [name, node] : all) tables.emplace_back(name.str(), &node);
  std::ranges::sort(tables, [](const auto& a, const auto& b) {
    return a.second->source().begin < b.second->source().begin;
  });
  if (tables.empty()) {
    throw std::invalid_argument(fmt::format(
        "--models {}: the file has no model: add a table [NAME] with path = \"DIR\"", file));
  }
  std::vector<ModelEntry> models;
  for (const auto& [name, node] : tables) {
    models.push_back(ModelReader(file, name).read(*node));
  }
  return models;
}

}  // namespace recurve
