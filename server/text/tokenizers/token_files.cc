#include "server/text/tokenizers/token_files.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "server/text/json/json_fields.h"
#include "server/text/utf8.h"

namespace recurve {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kTokenKeys[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                      "pad_token", "cls_token", "mask_token"};

// A token is a string, or an object with its "content".
std::optional<std::string> name_in(const Json& token) {
  const Json& name = token.is_object() && token.contains("content") ? token["content"] : token;
  if (!name.is_string() || name.get_ref<const std::string&>().empty()) return std::nullopt;
  return name.get<std::string>();
}

class NamedTokenReader {
 public:
  NamedTokenReader(const Json& json, std::string file, TokenFiles& out)
      : json_(json), file_(std::move(file)), out_(out) {}

  void read() {
    Fields fields(json_, "the file");
    for (const char* key : kTokenKeys) {
      const Json* value = fields.find(key);
      if (value == nullptr) continue;
      const auto name = name_in(*value);
      if (!name) fields.bad(key, "a string, or an object with a string \"content\"");
      const NamedToken& token = add(*name, key);
      if (key == std::string_view("bos_token") && !out_.bos) out_.bos = token;
      if (key != std::string_view("eos_token")) continue;
      if (!out_.eos) out_.eos = token;
      out_.ends.push_back(token);
    }
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) add_all(key);
    add_decoder();
  }

 private:
  const NamedToken& add(const std::string& name, const char* key) {
    out_.control.push_back({.name = name, .id = {}, .file = file_, .key = key});
    return out_.control.back();
  }

  // Reads a list of tokens, or an object whose values are tokens. Ignores other types.
  void add_all(const char* key) {
    const auto found = json_.find(key);
    if (found == json_.end() || !found->is_structured()) return;
    for (const Json& token : *found) {
      if (const auto name = name_in(token)) add(*name, key);
    }
  }

  void add_decoder() {
    constexpr auto kKey = "added_tokens_decoder";
    const auto found = json_.find(kKey);
    if (found == json_.end() || !found->is_object()) return;
    for (const Json& token : *found) {
      if (!token.is_object() || token.value("special", Json()) != true) continue;
      if (const auto name = name_in(token)) add(*name, kKey);
    }
  }

  const Json& json_;
  const std::string file_;
  TokenFiles& out_;
};

void read_named_tokens(const fs::path& path, TokenFiles& out) {
  if (!fs::exists(path)) return;
  try {
    const Json json = Json::parse(read_text_file(path));
    if (!json.is_object()) throw std::runtime_error("must hold an object, found " + brief(json));
    NamedTokenReader(json, path.filename().string(), out).read();
  } catch (const Json::parse_error& e) {
    throw std::runtime_error(fmt::format("{}: not valid JSON at byte {}", path.string(), e.byte));
  } catch (const std::runtime_error& e) {
    throw std::runtime_error(fmt::format("{}: {}", path.string(), e.what()));
  }
}

}  // namespace

TokenFiles read_token_files(const fs::path& model_dir) {
  TokenFiles files;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    read_named_tokens(model_dir / name, files);
  }
  return files;
}

bool is_one_character(const std::string& name) {
  return is_valid_utf8(name) && to_utf32(name).size() == 1;
}

}  // namespace recurve
