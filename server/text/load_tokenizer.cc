#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "server/text/json_fields.h"
#include "server/text/read_file.h"
#include "server/text/sentencepiece_tokenizer.h"
#include "server/text/tokenizer.h"
#include "server/text/tokenizer_json.h"
#include "server/text/unsupported.h"
#include "server/text/world_tokenizer.h"

namespace recurve {
namespace {

namespace fs = std::filesystem;

// A token in tokenizer_config.json is a string, or an object with its "content".
std::optional<std::string> token_name(Fields& config, const std::string& key) {
  const nlohmann::json* value = config.find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_object()) return Fields(*value, key).get_string("content");
  return config.get_string(key);
}

// Those of added_tokens_decoder that are special, and of additional_special_tokens, which are
// strings or objects; what has another form is of a kind that is not known, and no name.
std::vector<std::string> other_names(const nlohmann::json& config) {
  std::vector<std::string> names;
  const auto add = [&](const nlohmann::json& token) {
    const nlohmann::json& name =
        token.is_object() ? token.value("content", nlohmann::json()) : token;
    if (name.is_string()) names.push_back(name.get<std::string>());
  };
  if (const auto added = config.find("added_tokens_decoder");
      added != config.end() && added->is_object()) {
    for (const auto& [id, token] : added->items()) {
      if (token.is_object() && token.value("special", nlohmann::json()) == true) add(token);
    }
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const auto found = config.find(key);
    if (found == config.end() || !found->is_array()) continue;
    for (const nlohmann::json& token : *found) add(token);
  }
  return names;
}

SpecialNames read_special_names(const fs::path& path) {
  if (!fs::exists(path)) return {};
  try {
    const nlohmann::json json = nlohmann::json::parse(read_text_file(path));
    Fields config(json, "tokenizer_config");
    return {token_name(config, "bos_token"), token_name(config, "eos_token"), other_names(json)};
  } catch (const nlohmann::json::parse_error& e) {
    throw std::runtime_error(fmt::format("{}: not valid JSON at byte {}", path.string(), e.byte));
  } catch (const std::runtime_error& e) {
    throw std::runtime_error(fmt::format("{}: {}", path.string(), e.what()));
  }
}

// rwkv_vocab_v20230424.txt; empty: there is none. Of several the first by name.
fs::path find_world_vocabulary(const fs::path& model_dir) {
  fs::path found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(model_dir, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("rwkv_vocab") || !name.ends_with(".txt")) continue;
    if (found.empty() || name < found.filename().string()) found = entry.path();
  }
  return found;
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& model_dir) {
  const fs::path json = model_dir / "tokenizer.json";
  const fs::path model = model_dir / "tokenizer.model";
  const bool has_model = fs::exists(model);
  const fs::path config = model_dir / "tokenizer_config.json";
  if (fs::exists(json)) {
    try {
      return parse_tokenizer_json(read_text_file(json), json.string(), read_special_names(config));
    } catch (const UnsupportedTokenizer&) {
      if (!has_model) throw;
    }
  }
  if (has_model) {
    return parse_sentencepiece(read_text_file(model), model.string(),
                               read_special_names(config).others);
  }
  const fs::path world = find_world_vocabulary(model_dir);
  if (!world.empty()) return parse_world_vocabulary(read_text_file(world), world.string());
  throw std::runtime_error(fmt::format(
      "{}: no tokenizer; a file tokenizer.json, tokenizer.model or rwkv_vocab_v20230424.txt was "
      "expected",
      model_dir.string()));
}

void check_fits(const Tokenizer& tokenizer, int64_t vocab_rows, const fs::path& model_dir) {
  if (tokenizer.size() <= vocab_rows) return;
  throw std::runtime_error(fmt::format(
      "{}: the tokenizer has {} ids, the model's vocabulary only {} rows: they do not belong "
      "together",
      model_dir.string(), tokenizer.size(), vocab_rows));
}

}  // namespace recurve
