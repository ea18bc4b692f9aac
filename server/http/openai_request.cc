#include "server/http/openai_request.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "server/http/body_fields.h"

namespace recurve {
namespace {

using nlohmann::json;

// Fields that are refused by name, because the answer would be another one with them, unless they
// say what is so anyway. What stands neither here nor is read below is ignored: user, metadata,
// store, service_tier, safety_identifier, prompt_cache_key, prompt_cache_retention,
// parallel_tool_calls, skip_special_tokens, spaces_between_special_tokens, and what nobody knows.
struct RefusedField {
  const char* field;
  std::array<const char*, 2> same = {};  // JSON that changes nothing, besides null
};
constexpr RefusedField kRefused[] = {
    {"suffix", {"\"\""}},
    {"best_of", {"1"}},
    {"echo", {"false"}},
    {"audio"},
    {"function_call", {"\"none\"", "\"auto\""}},
    {"functions", {"[]"}},
    {"modalities", {"[\"text\"]"}},
    {"prediction"},
    {"reasoning_effort"},
    {"response_format", {"{\"type\":\"text\"}"}},
    {"tool_choice", {"\"none\"", "\"auto\""}},
    {"verbosity"},
    {"web_search_options"},
    {"bad_words", {"[]"}},
    {"guided_choice"},
    {"guided_grammar"},
    {"guided_json"},
    {"guided_regex"},
    {"length_penalty", {"1.0", "1"}},
    {"prompt_logprobs"},
    {"structured_outputs"},
    {"truncate_prompt_tokens"},
    {"use_beam_search", {"false"}},
};

void check_table(const json& body) {
  for (const RefusedField& refused : kRefused) {
    const json* value = find(body, refused.field);
    if (value == nullptr) continue;
    const std::string said = dump(*value);
    const bool same = std::any_of(refused.same.begin(), refused.same.end(),
                                  [&](const char* one) { return one != nullptr && said == one; });
    if (same) continue;
    throw BadField(refused.field,
                   fmt::format("{} is not supported by this server: leave it out", refused.field));
  }
}

// As floats: what is too large for one is out of every range.
void set(const json& body, const char* field, float* to) {
  if (const auto value = number_of(body, field)) *to = static_cast<float>(*value);
}
template <typename T>
void set(const std::optional<T>& value, T* to) {
  if (value) *to = *value;
}

std::vector<std::pair<int32_t, float>> biases_of(const json& body) {
  std::vector<std::pair<int32_t, float>> biases;
  const json* map = find(body, "logit_bias");
  if (map == nullptr) return biases;
  if (!map->is_object()) throw BadField("logit_bias", "logit_bias must be an object");
  for (const auto& [key, bias] : map->items()) {
    const bool digits =
        !key.empty() && key.size() <= 9 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || !bias.is_number()) {
      throw BadField("logit_bias", "logit_bias must map token ids to numbers");
    }
    biases.emplace_back(std::stoi(key), bias.get<float>());
  }
  return biases;
}

std::vector<std::string> stops_of(const json& body) {
  const json* stop = find(body, "stop");
  if (stop == nullptr) return {};
  if (stop->is_string()) return {stop->get<std::string>()};
  std::vector<std::string> stops;
  for (const json& one : *stop) {
    if (!stop->is_array() || !one.is_string()) {
      throw BadField("stop", "stop must be a string or a list of strings");
    }
    stops.push_back(one.get<std::string>());
  }
  return stops;
}

void read_sampling(const json& body, TextRequest* asked) {
  SamplingParams& p = asked->sampling;
  set(body, "temperature", &p.temperature);
  set(body, "top_p", &p.top_p);
  set(body, "min_p", &p.min_p);
  set(body, "typical_p", &p.typical_p);
  set(body, "repetition_penalty", &p.repetition_penalty);
  set(body, "presence_penalty", &p.presence_penalty);
  set(body, "frequency_penalty", &p.frequency_penalty);
  set(int32_of(body, "top_k"), &p.top_k);
  if (p.top_k == -1) p.top_k = 0;  // as others say: all
  set(int32_of(body, "min_tokens"), &p.min_tokens);
  set(bool_of(body, "ignore_eos"), &p.ignore_eos);
  p.logit_bias = biases_of(body);
  if (const json* ids = find(body, "stop_token_ids")) p.stop_ids = ids_of(*ids, "stop_token_ids");
  if (const json* ids = find(body, "allowed_token_ids")) {
    p.allowed_ids = ids_of(*ids, "allowed_token_ids");
  }
  if (const auto seed = integer_of(body, "seed")) asked->seed = static_cast<uint64_t>(*seed);
}

void read_common(const json& body, TextRequest* asked, OpenAiForm* form) {
  read_sampling(body, asked);
  asked->stop_strings = stops_of(body);
  set(bool_of(body, "include_stop_str_in_output"), &asked->include_stop);
  set(int32_of(body, "n"), &asked->choices);
  set(int32_of(body, "priority"), &asked->priority);
  set(bool_of(body, "add_special_tokens"), &asked->add_special_tokens);
  if (auto session = string_of(body, "session")) asked->session = std::move(*session);
  set(bool_of(body, "stream"), &form->stream);
  const json* options = find(body, "stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) throw BadField("stream_options", "stream_options must be an object");
  set(bool_of(*options, "include_usage"), &form->usage);
  set(bool_of(*options, "continuous_usage_stats"), &form->usage_each);
}

void read_prompt(const json& body, TextRequest* asked) {
  const json* prompt = find(body, "prompt");
  if (prompt == nullptr) throw BadField("prompt", "prompt must be given");
  const bool list_of_prompts = prompt->is_array() && !prompt->empty() &&
                               (prompt->front().is_string() || prompt->front().is_array());
  if (list_of_prompts && prompt->size() > 1) {
    throw BadField(
        "prompt",
        fmt::format("prompt must be one prompt, got {}: send a request for each", prompt->size()));
  }
  if (list_of_prompts) prompt = &prompt->front();
  if (prompt->is_string()) {
    asked->prompt = prompt->get<std::string>();
  } else {
    asked->prompt = ids_of(*prompt, "prompt");
  }
}

ChatMessage message_of(const json& message) {
  if (!message.is_object()) throw BadField("messages", "each of messages must be an object");
  ChatMessage to{.role = string_of(message, "role").value_or("")};
  json fields = json::object();
  for (const auto& [name, value] : message.items()) {
    if (name == "role" || value.is_null()) continue;
    if (name == "content" && value.is_string()) {
      to.content = value.get<std::string>();
    } else {
      fields[name] = value;
    }
  }
  if (!fields.empty()) to.fields_json = dump(fields);
  return to;
}

void read_messages(const json& body, TextRequest* asked) {
  const json* messages = find(body, "messages");
  if (messages == nullptr || !messages->is_array()) {
    throw BadField("messages", "messages must be a list of messages");
  }
  Conversation& to = asked->prompt.emplace<Conversation>();
  for (const json& message : *messages) to.messages.push_back(message_of(message));
  const json* choice = find(body, "tool_choice");
  const bool uses_tools = choice == nullptr || *choice != "none";
  if (const json* tools = find(body, "tools"); tools != nullptr && uses_tools) {
    if (!tools->is_array()) throw BadField("tools", "tools must be a list");
    if (!tools->empty()) to.tools_json = dump(*tools);
  }
  if (const json* variables = find(body, "chat_template_kwargs")) {
    to.variables_json = dump(*variables);
  }
  to.continue_final_message = bool_of(body, "continue_final_message").value_or(false);
  to.add_generation_prompt =
      bool_of(body, "add_generation_prompt").value_or(!to.continue_final_message);
}

// Tokens of a completion where the request says nothing, as the dialect has it.
constexpr int32_t kDefaultCompletionTokens = 16;

void read_completion(const json& body, TextRequest* asked) {
  read_prompt(body, asked);
  asked->max_tokens = int32_of(body, "max_tokens").value_or(kDefaultCompletionTokens);
  asked->logprobs = int32_of(body, "logprobs");
}

void read_chat(const json& body, TextRequest* asked) {
  read_messages(body, asked);
  asked->max_tokens = int32_of(body, "max_completion_tokens");
  if (!asked->max_tokens) asked->max_tokens = int32_of(body, "max_tokens");
  const std::optional<int32_t> top = int32_of(body, "top_logprobs");
  const bool logprobs = bool_of(body, "logprobs").value_or(false);
  if (top && !logprobs) throw BadField("top_logprobs", "top_logprobs needs logprobs to be true");
  if (logprobs) asked->logprobs = top.value_or(0);
}

}  // namespace

Refused read_openai(std::string_view text, const std::string& model, TextRequest* asked,
                    OpenAiForm* form) {
  try {
    const json body = parse_object(text);
    const auto name = string_of(body, "model");  // who names none means the one that there is
    if (name && *name != model) {
      return Refusal{
          .code = Refusal::Code::kNotFound,
          .message = fmt::format("there is no model \"{}\": this server has \"{}\"", *name, model),
          .field = "model"};
    }
    check_table(body);
    read_common(body, asked, form);
    if (form->chat) {
      read_chat(body, asked);
    } else {
      read_completion(body, asked);
    }
    return {};
  } catch (const BadField& error) {
    return invalid(error.field, "{}", error.what());
  }
}

}  // namespace recurve
