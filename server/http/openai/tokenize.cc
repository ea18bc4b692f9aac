#include "server/http/openai/tokenize.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/body_fields.h"
#include "server/http/openai/logprobs.h"
#include "server/http/openai/models.h"
#include "server/http/openai/request_fields.h"
#include "server/text/client_json.h"
#include "server/text/stream_decoder.h"

namespace recurve {
namespace {

using nlohmann::json;

Refused check_model_of(const json& body, const Serving& serving) {
  const auto name = string_of(body, "model");
  return name ? check_model(*name, serving) : Refused();
}

TokenizeText text_to_tokenize(const json& body, std::string_view said) {
  TokenizeText text;
  if (find(body, "messages") != nullptr) {
    text.input = conversation_of(body, said);
  } else {
    auto prompt = string_of(body, "prompt");
    if (!prompt) throw BadField("prompt", "prompt or messages must be given");
    text.input = std::move(*prompt);
  }
  text.add_special_tokens = bool_of(body, "add_special_tokens").value_or(true);
  text.parse_special = bool_of(body, "parse_special").value_or(false);
  return text;
}

// Control tokens have no text; these are the names that they usually have.
constexpr const char* kControlNames[] = {"<s>",
                                         "</s>",
                                         "<bos>",
                                         "<eos>",
                                         "<|endoftext|>",
                                         "<|begin_of_text|>",
                                         "<|end_of_text|>",
                                         "<|im_end|>",
                                         "<|eot_id|>",
                                         "<|end|>",
                                         "<unk>",
                                         "<pad>"};
json name_of_control(std::optional<int32_t> id, const Tokenizer& tokenizer) {
  for (const char* name : kControlNames) {
    if (id && tokenizer.id_of(name) == id) return name;
  }
  return nullptr;
}

struct EdgeTokens {
  std::optional<int32_t> bos, eos;
};
EdgeTokens edge_tokens(const RequestRules& rules) {
  const Tokenizer& tokenizer = *rules.tokenizer;
  const bool ends = !rules.tokens.eos.empty();
  return {.bos = rules.tokens.bos ? rules.tokens.bos : tokenizer.bos_id(),
          .eos = ends ? std::optional(rules.tokens.eos.front()) : tokenizer.eos_id()};
}

// A client that knows of a control token by the name that tokenizer_info() gives asks for its id
// so.
bool is_edge_token(const json& body, const RequestRules& rules) {
  const auto prompt = string_of(body, "prompt");
  const EdgeTokens edges = edge_tokens(rules);
  const std::optional<int32_t> id = prompt ? rules.tokenizer->id_of(*prompt) : std::nullopt;
  return id && (id == edges.bos || id == edges.eos);
}

// What a body asks for; its values are freed before the text is read.
Refused read_tokenize(const HttpRequest& request, const Serving& serving, const WorkLimits& limits,
                      TokenizeText* text, bool* names) {
  json body = parse_object(request.body, limits);
  const FreesInPlace<json> frees(body);
  if (Refused refused = check_model_of(body, serving)) return refused;
  *names = bool_of(body, "return_token_strs").value_or(false);
  *text = text_to_tokenize(body, request.body);
  if (!is_edge_token(body, serving.rules)) return {};
  text->parse_special = true;
  text->add_special_tokens = false;
  return {};
}

std::string names_of(const std::vector<int32_t>& ids, const Tokenizer& tokenizer) {
  std::string names = "[";
  for (const int32_t id : ids) {
    names += names.size() > 1 ? "," : "";
    names += dump(name_of(id, tokenizer));
  }
  return names + "]";
}

json id_or_null(std::optional<int32_t> id) { return id ? json(*id) : json(nullptr); }

}  // namespace

Refused tokenize(const HttpRequest& request, const Serving& serving, const WorkLimits& limits,
                 std::string* object) {
  TokenizeText text;
  bool names = false;
  if (Refused refused = read_tokenize(request, serving, limits, &text, &names)) return refused;
  std::vector<int32_t> ids;
  if (Refused refused = tokenise(text, serving.rules, limits, &ids)) return refused;
  // As text at once: values of JSON would take several times that.
  *object = fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[{}])", ids.size(),
                        serving.rules.max_prompt_tokens, fmt::join(ids, ","));
  if (names) *object += ",\"token_strs\":" + names_of(ids, *serving.rules.tokenizer);
  *object += '}';
  return {};
}

Refused detokenize(const HttpRequest& request, const Serving& serving, const WorkLimits& limits,
                   std::string* object) {
  json body = parse_object(request.body, limits);
  const FreesInPlace<json> frees(body);
  if (Refused refused = check_model_of(body, serving)) return refused;
  const json* tokens = find(body, "tokens");
  if (tokens == nullptr) throw BadField("tokens", "tokens must be given");
  const std::vector<int32_t> ids = ids_of(*tokens, "tokens");
  Refused refused = check_ids("tokens", ids, serving.rules);
  if (!refused && !serving.rules.tokenizer->reads_text()) {
    refused = invalid("tokens", "tokens have no text, as this server has no tokenizer");
  }
  if (refused) return refused;
  limits.check();
  *object = dump({{"prompt", decode(*serving.rules.tokenizer, ids, TextPosition::kStart)}});
  return {};
}

json tokenizer_info(const Serving& serving) {
  const RequestRules& rules = serving.rules;
  const Tokenizer& tokenizer = *rules.tokenizer;
  const EdgeTokens edges = edge_tokens(rules);
  return {{"tokenizer_class", "recurve"},
          {"description", tokenizer.description()},
          {"vocab_size", rules.vocab.usable},
          {"bos_token", name_of_control(edges.bos, tokenizer)},
          {"bos_token_id", id_or_null(edges.bos)},
          {"eos_token", name_of_control(edges.eos, tokenizer)},
          {"eos_token_id", id_or_null(edges.eos)},
          {"eos_token_ids", rules.tokens.eos},
          {"pad_token", nullptr},
          {"add_bos_token", rules.tokens.bos.has_value()},
          {"chat_template", rules.chat.text.empty() ? json(nullptr) : json(rules.chat.text)}};
}

}  // namespace recurve
