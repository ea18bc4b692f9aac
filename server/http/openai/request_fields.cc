#include "server/http/openai/request_fields.h"

#include <algorithm>
#include <string>
#include <utility>

#include "server/http/body_fields.h"
#include "server/http/openai/models.h"
#include "server/http/openai/tool_fields.h"
#include "server/text/client_json.h"

namespace recurve {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

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
  const auto is_text = [](const json& one) { return one.is_string(); };
  if (!stop->is_array() || !std::all_of(stop->begin(), stop->end(), is_text)) {
    throw BadField("stop", "stop must be a string or a list of strings");
  }
  for (const json& one : *stop) stops.push_back(one.get<std::string>());
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

std::string role_of(const json& message) {
  if (!message.is_object()) throw BadField("messages", "each of messages must be an object");
  return string_of(message, "role").value_or("");
}

// Whether a message has more than its role and a text.
bool has_fields(const json& message) {
  if (!message.is_object()) return false;
  const auto plain = [](const auto& item) {
    return item.key() == "role" || (item.key() == "content" && item.value().is_string());
  };
  const auto items = message.items();
  return !std::all_of(items.begin(), items.end(), plain);
}

// Content, and all other fields as the template reads them.
void read_message(const Ordered& message, ChatMessage* to) {
  Ordered fields = Ordered::object();
  for (const auto& [name, value] : message.items()) {
    if (name == "role" || value.is_null()) continue;
    if (name == "content" && value.is_string()) {
      to->content = value.get<std::string>();
    } else {
      // Names come once: they need not be looked for.
      fields.get_ptr<Ordered::object_t*>()->emplace_back(
          name, name == "tool_calls" ? with_read_arguments(value) : value);
    }
  }
  if (!fields.empty()) to->fields_json = dump_ordered(fields);
}

void read_template_fields(const json& body, const Ordered& ordered, bool uses_tools,
                          Conversation* to) {
  if (uses_tools) to->tools_json = dump_ordered(ordered.at("tools"));
  if (template_variables(body) == nullptr) return;
  constexpr size_t kMost = 1024;
  const Ordered& variables = ordered.at("chat_template_kwargs");
  if (variables.size() > kMost) {
    throw BadField("chat_template_kwargs",
                   fmt::format("chat_template_kwargs must have at most {} names, got {}", kMost,
                               variables.size()));
  }
  to->variables_json = dump_ordered(variables);
}

std::optional<PrefixWish> prefix_of(const json& body) {
  const auto said = string_of(body, "prefix");
  if (!said) return std::nullopt;
  if (*said == "off") return PrefixWish::kOff;
  if (*said == "use") return PrefixWish::kUse;
  if (*said == "use-and-keep") return PrefixWish::kUseAndKeep;
  throw BadField("prefix", "prefix must be \"off\", \"use\" or \"use-and-keep\"");
}

std::vector<int64_t> prefix_points_of(const json& body) {
  std::vector<int64_t> points;
  const json* list = find(body, "prefix_points");
  if (list == nullptr) return points;
  const auto whole = [](const json& point) { return point.is_number_integer(); };
  if (!list->is_array() || !std::all_of(list->begin(), list->end(), whole)) {
    throw BadField("prefix_points", "prefix_points must be a list of whole numbers");
  }
  for (const json& point : *list) points.push_back(point.get<int64_t>());
  return points;
}

}  // namespace

void read_session(const json& body, std::string* session) {
  auto said = string_of(body, "session");
  if (!said) return;
  if (!session->empty() && *said != *session) {
    throw BadField("session", "session must be the one that x-recurve-session names, or left out");
  }
  *session = *std::move(said);
}

void read_common(const json& body, TextRequest* asked, OpenAiForm* form) {
  read_sampling(body, asked);
  asked->stop_strings = stops_of(body);
  set(bool_of(body, "include_stop_str_in_output"), &asked->include_stop);
  set(int32_of(body, "n"), &asked->choices);
  set(int32_of(body, "priority"), &asked->priority);
  set(prefix_of(body), &asked->prefix);
  asked->prefix_points = prefix_points_of(body);
  set(bool_of(body, "add_special_tokens"), &asked->add_special_tokens);
  read_session(body, &asked->session);
  form->choices = asked->choices;
  set(bool_of(body, "stream"), &form->stream);
  const json* options = find(body, "stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) throw BadField("stream_options", "stream_options must be an object");
  set(bool_of(*options, "include_usage"), &form->usage);
  set(bool_of(*options, "continuous_usage_stats"), &form->usage_each);
}

const json* template_variables(const json& body) {
  const json* variables = find(body, "chat_template_kwargs");
  if (variables != nullptr && !variables->is_object()) {
    throw BadField("chat_template_kwargs", "chat_template_kwargs must be an object");
  }
  return variables;
}

Conversation conversation_of(const json& body, std::string_view text) {
  const json* messages = find(body, "messages");
  if (messages == nullptr || !messages->is_array()) {
    throw BadField("messages", "messages must be a list of messages");
  }
  const bool uses_tools = wants_tools(body);
  const bool has_order = uses_tools ||
                         std::any_of(messages->begin(), messages->end(), has_fields) ||
                         find(body, "chat_template_kwargs") != nullptr;
  Ordered ordered = has_order ? read_in_order(text) : Ordered();
  const FreesInPlace<Ordered> frees(ordered);
  Conversation to;
  to.messages.reserve(messages->size());
  for (size_t m = 0; m < messages->size(); ++m) {
    const json& message = (*messages)[m];
    ChatMessage& read = to.messages.emplace_back(ChatMessage{.role = role_of(message)});
    if (has_fields(message)) {
      read_message(ordered.at("messages")[m], &read);
    } else {
      read.content = string_of(message, "content");
    }
  }
  read_template_fields(body, ordered, uses_tools, &to);
  to.continue_final_message = bool_of(body, "continue_final_message").value_or(false);
  to.add_generation_prompt =
      bool_of(body, "add_generation_prompt").value_or(!to.continue_final_message);
  return to;
}

Refused read_body(std::string_view text, const WorkLimits& limits, Resource resource,
                  const Serving& serving, const std::function<void(const json& body)>& read) {
  try {
    json body = parse_object(text, limits);
    const FreesInPlace<json> frees(body);
    const auto name = string_of(body, "model");  // who names none means the one that there is
    if (name) {
      if (Refused refused = check_model(*name, serving)) return refused;
    }
    check_fields(body, resource);
    read(body);
    return {};
  } catch (const BadField& error) {
    return invalid(error.field, "{}", error.what());
  }
}

}  // namespace recurve
