#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "server/text/chat/chat_template.h"
#include "server/text/json/json_fields.h"
#include "server/text/utf8.h"

namespace recurve {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kMaxTemplateBytes = 1 << 20;  // public ones have up to 20 KB

// The contents of the files; `text` is empty if there is no template.
struct Source {
  std::string text;
  std::string tools;
  jinja::Template::Variables special_tokens;
};

void read_templates(const Json& json, Source* source) {
  if (json.is_string()) {
    source->text = json.get<std::string>();
    return;
  }
  if (!json.is_array()) throw std::runtime_error("chat_template must be a string or a list");
  for (const Json& entry : json) {
    Fields fields(entry, "chat_template[]");
    const std::string name = fields.get_string("name");
    if (name == "default") source->text = fields.get_string("template");
    if (name == "tool_use") source->tools = fields.get_string("template");
  }
  if (source->text.empty())
    throw std::runtime_error("chat_template has no template named \"default\"");
}

// Fields like "bos_token": a string, or an object with its "content".
void read_special_tokens(const Json& config, Source* source) {
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token")) continue;
    const bool object = value.is_object() && value.contains("content");
    const Json& content = object ? value["content"] : value;
    if (content.is_string()) {
      source->special_tokens[key] = jinja::Value::text(content.get<std::string>());
    }
  }
}

void check(const Source& source) {
  if (source.text.size() + source.tools.size() > kMaxTemplateBytes) {
    throw std::runtime_error(
        fmt::format("a chat template can have at most {} bytes", kMaxTemplateBytes));
  }
  if (!is_valid_utf8(source.text)) throw std::runtime_error("the chat template is not valid UTF-8");
}

// Reads the special tokens of both files and, if `templates`, the templates.
void read_token_files(const fs::path& dir, bool templates, Source* source) {
  for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"}) {
    const fs::path path = dir / name;
    if (!fs::exists(path)) continue;
    const Json json = Json::parse(read_text_file(path));
    if (json.is_object()) read_special_tokens(json, source);
    if (!templates) continue;
    if (!json.is_object()) throw std::runtime_error(fmt::format("{} must hold an object", name));
    const auto found = json.find("chat_template");
    if (found != json.end() && !found->is_null()) read_templates(*found, source);
  }
}

Source read_source(const fs::path& dir) {
  Source source;
  read_token_files(dir, /*templates=*/true, &source);
  const fs::path own = dir / "chat_template.jinja";
  if (fs::exists(own)) {
    source.text = read_text_file(own);
    source.tools.clear();
  }
  check(source);
  return source;
}

void use(Source source, Chat* chat) {
  chat->exists = true;
  chat->text = source.text;
  chat->tool_form = tool_form_of(source.tools.empty() ? source.text : source.tools);
  chat->reasoning_form = reasoning_form_of(source.text);
  chat->format = std::make_shared<const ChatTemplate>(source.text, source.tools,
                                                      std::move(source.special_tokens));
  chat->problem.clear();
}

}  // namespace

Chat load_chat(const fs::path& model_dir) {
  Chat chat;
  try {
    Source source = read_source(model_dir);
    if (!source.text.empty()) use(std::move(source), &chat);
  } catch (const std::exception& error) {
    chat.exists = true;
    chat.problem = fmt::format("the model's chat template cannot be used: {}", error.what());
  }
  return chat;
}

Chat load_chat(const fs::path& model_dir, const std::string& chosen) {
  if (chosen.empty()) return load_chat(model_dir);
  Chat chat;
  Source source;
  read_token_files(model_dir, /*templates=*/false, &source);
  if (const auto common = named_chat_template(chosen)) {
    source.text = *common;
  } else if (fs::is_regular_file(chosen)) {
    source.text = read_text_file(chosen);
  } else {
    throw std::runtime_error(fmt::format("--chat-template must be a file or one of {}, got \"{}\"",
                                         chat_template_names(), chosen));
  }
  try {
    check(source);
    use(std::move(source), &chat);
  } catch (const std::exception& error) {
    throw std::runtime_error(
        fmt::format("--chat-template: {} cannot be used: {}", chosen, error.what()));
  }
  return chat;
}

}  // namespace recurve
