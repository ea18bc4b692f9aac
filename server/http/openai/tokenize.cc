#include "server/http/openai/tokenize.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/body_fields.h"
#include "server/http/openai/fields/request_fields.h"
#include "server/http/openai/logprobs.h"
#include "server/http/openai/models.h"
#include "server/text/stream_decoder.h"

namespace recurve {
namespace {

using nlohmann::json;

TokenizeText take_text(ClientJson& body, size_t bytes) {
  TokenizeText text;
  if (find(body, "messages") != nullptr) {
    text.input = conversation_of(body, bytes);
  } else {
    auto prompt = take_string(body, "prompt");
    if (!prompt) throw BadField("prompt", "prompt or messages must be given");
    text.input = *std::move(prompt);
  }
  text.add_special_tokens = bool_of(body, "add_special_tokens").value_or(true);
  text.parse_special = bool_of(body, "parse_special").value_or(false);
  return text;
}

// Control tokens have no text; these are their usual names.
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
EdgeTokens edge_tokens(const ModelText& model) {
  const Tokenizer& tokenizer = *model.tokenizer;
  const bool ends = !model.tokens.eos.empty();
  return {.bos = model.tokens.bos ? model.tokens.bos : tokenizer.bos_id(),
          .eos = ends ? std::optional(model.tokens.eos.front()) : tokenizer.eos_id()};
}

// A client asks for the id of a control token by the name that tokenizer_info() has.
bool is_edge_token(const TokenizeText& text, const ModelText& model) {
  const auto* prompt = std::get_if<std::string>(&text.input);
  const EdgeTokens edges = edge_tokens(model);
  const std::optional<int32_t> id =
      prompt != nullptr ? model.tokenizer->id_of(*prompt) : std::nullopt;
  return id && (id == edges.bos || id == edges.eos);
}

// The body is freed before the text is read.
Refused read_tokenize(std::string json_text, const WorkLimits& limits, const ModelQuery& query,
                      TokenizeText* text, bool* names) {
  ClientJson body = parse_object(json_text, limits, kIdFields);
  const size_t bytes = json_text.size();
  std::string().swap(json_text);
  if (Refused refused = find_model(body, nullptr, query)) return refused;
  *names = bool_of(body, "return_token_strs").value_or(false);
  *text = take_text(body, bytes);
  if (!is_edge_token(*text, (*query.found)->text)) return {};
  text->parse_special = true;
  text->add_special_tokens = false;
  return {};
}

// An answer whose size is limited by that of the body; throws BadField if it would be longer.
class BoundedText {
 public:
  BoundedText(size_t body_bytes, const char* field)
      : most_(2 * body_bytes + kMostBytes), field_(field) {
    text_.reserve(most_ + kHeadBytes);
  }
  void append(std::string_view part) {
    if (text_.size() + part.size() > most_) {
      throw BadField(
          field_,
          fmt::format("{} must be shorter: the answer has more than {} bytes; send it in parts",
                      field_, most_));
    }
    text_ += part;
  }
  std::string take() { return std::move(text_); }

 private:
  static constexpr size_t kMostBytes = 8 << 20, kHeadBytes = 4096;
  const size_t most_;
  const char* const field_;
  std::string text_;
};

void append_names(const std::vector<int32_t>& ids, const Tokenizer& tokenizer, BoundedText* to) {
  to->append(",\"token_strs\":[");
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) to->append(",");
    to->append(dump(json(TokenNames{tokenizer}.of(ids[i]))));
  }
  to->append("]");
}

json id_or_null(std::optional<int32_t> id) { return id ? json(*id) : json(nullptr); }

}  // namespace

Refused tokenize(HttpRequest& request, const ServerCore& core, const WorkLimits& limits,
                 std::string* object) {
  const size_t bytes = request.body.size();
  FoundModel served;
  TokenizeText text;
  bool names = false;
  Refused refused = read_tokenize(std::move(request.body), limits, {core, &served, request.caller},
                                  &text, &names);
  if (refused) return refused;
  const ServedModel& model = *served;
  std::vector<int32_t> ids;
  refused = tokenise(std::move(text), model.text, limits, &ids);
  if (refused) return refused;
  // Written as text: JSON values would take several times its memory.
  BoundedText answer(bytes, names ? "return_token_strs" : "prompt");
  answer.append(fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[)", ids.size(),
                            max_model_len(model)));
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) answer.append(",");
    answer.append(fmt::format_int(ids[i]).str());
  }
  answer.append("]");
  if (names) append_names(ids, *model.text.tokenizer, &answer);
  answer.append("}");
  *object = answer.take();
  return {};
}

Refused detokenize(HttpRequest& request, const ServerCore& core, const WorkLimits& limits,
                   std::string* object) {
  ClientJson body = parse_object(request.body, limits, kIdFields);
  const size_t bytes = request.body.size();
  std::string().swap(request.body);
  FoundModel served;
  if (Refused refused = find_model(body, nullptr, {core, &served, request.caller})) return refused;
  const ServedModel& model = *served;
  ClientJson* tokens = find(body, "tokens");
  if (tokens == nullptr) throw BadField("tokens", "tokens must be given");
  const std::vector<int32_t> ids = take_ids_of(*tokens, "tokens");
  Refused refused = check_ids("tokens", ids, model.text);
  if (!refused && !model.text.tokenizer->reads_text()) {
    refused = invalid("tokens", "tokens have no text, as this server has no tokenizer");
  }
  if (refused) return refused;
  limits.check();
  BoundedText answer(bytes, "tokens");
  answer.append("{\"prompt\":\"");
  StreamDecoder decoder(*model.text.tokenizer);
  const auto append = [&](const std::string& part) {
    const std::string quoted = dump(json(part));
    answer.append(std::string_view(quoted).substr(1, quoted.size() - 2));
  };
  for (const int32_t id : ids) append(decoder.push(id));
  append(decoder.finish());
  answer.append("\"}");
  *object = answer.take();
  return {};
}

Refused tokenizer_info(const HttpRequest& request, const ServerCore& core, json* object) {
  FoundModel served;
  if (Refused refused = find_model(request, core, &served)) return refused;
  const ModelText& model = served->text;
  const Tokenizer& tokenizer = *model.tokenizer;
  const EdgeTokens edges = edge_tokens(model);
  *object = {{"tokenizer_class", "recurve"},
             {"description", tokenizer.description()},
             {"vocab_size", model.vocab.usable},
             {"bos_token", name_of_control(edges.bos, tokenizer)},
             {"bos_token_id", id_or_null(edges.bos)},
             {"eos_token", name_of_control(edges.eos, tokenizer)},
             {"eos_token_id", id_or_null(edges.eos)},
             {"eos_token_ids", model.tokens.eos},
             {"pad_token", nullptr},
             {"add_bos_token", model.tokens.bos.has_value()},
             {"chat_template", model.chat.text.empty() ? json(nullptr) : json(model.chat.text)}};
  return {};
}

}  // namespace recurve
