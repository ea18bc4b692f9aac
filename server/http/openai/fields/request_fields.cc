#include "server/http/openai/fields/request_fields.h"

#include <algorithm>
#include <string>
#include <utility>

#include "server/http/body_fields.h"

namespace recurve {
namespace {

template <typename T>
void set(const std::optional<T>& value, T* to) {
  if (value) *to = *value;
}

std::vector<std::pair<int32_t, float>> biases_of(const ClientJson& body) {
  std::vector<std::pair<int32_t, float>> biases;
  const ClientJson* map = find(body, "logit_bias");
  if (map == nullptr) return biases;
  if (!map->is_object()) throw BadField("logit_bias", "logit_bias must be an object");
  for (const auto& [key, bias] : map->items()) {
    const bool digits =
        !key.empty() && key.size() <= 9 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || !bias.is_number()) {
      throw BadField("logit_bias",
                     fmt::format("logit_bias must map token ids to numbers, got {}: {}", cut(key),
                                 cut(dump(bias))));
    }
    biases.emplace_back(std::stoi(key), float_of(bias.get<double>(), "logit_bias"));
  }
  return biases;
}

std::vector<std::string> stops_of(const ClientJson& body) {
  const ClientJson* stop = find(body, "stop");
  if (stop == nullptr) return {};
  if (stop->is_string()) return {stop->get<std::string>()};
  return strings_of(*stop, "stop", "a string or a list of strings");
}

void read_sampling(ClientJson& body, TextRequest* asked) {
  SamplingParams& p = asked->sampling;
  set(float_of(body, "temperature"), &p.temperature);
  set(float_of(body, "top_p"), &p.top_p);
  set(float_of(body, "min_p"), &p.min_p);
  set(float_of(body, "typical_p"), &p.typical_p);
  set(float_of(body, "repetition_penalty"), &p.repetition_penalty);
  set(float_of(body, "presence_penalty"), &p.presence_penalty);
  set(float_of(body, "frequency_penalty"), &p.frequency_penalty);
  set(int32_of(body, "top_k"), &p.top_k);
  if (p.top_k == -1) p.top_k = 0;  // vLLM: no limit
  set(int32_of(body, "min_tokens"), &p.min_tokens);
  set(bool_of(body, "ignore_eos"), &p.ignore_eos);
  p.logit_bias = biases_of(body);
  p.stop_ids = take_ids(body, "stop_token_ids");
  p.allowed_ids = take_ids(body, "allowed_token_ids");
  if (const auto seed = integer_of(body, "seed")) asked->seed = static_cast<uint64_t>(*seed);
}

std::string role_of(const ClientJson& message) {
  if (!message.is_object()) throw BadField("messages", "each of messages must be an object");
  return string_of(message, "role").value_or("");
}

// Whether a message has fields other than its role and a text.
bool has_fields(const ClientJson& message) {
  if (!message.is_object()) return false;
  const auto plain = [](const auto& item) {
    return item.key() == "role" || (item.key() == "content" && item.value().is_string());
  };
  const auto items = message.items();
  return !std::all_of(items.begin(), items.end(), plain);
}

// The refusals of an assistant's message are text.
void read_refusals(ClientJson& message) {
  ClientJson* content = find(message, "content");
  const auto parts = content != nullptr && content->is_array() ? content->size() : 0;
  for (size_t p = 0; p < parts; ++p) {
    ClientJson& part = (*content)[p];
    if (!part.is_object() || string_of(part, "type") != "refusal") continue;
    part = {{"type", "text"}, {"text", take_string(part, "refusal").value_or("")}};
  }
  if (find(message, "refusal") == nullptr) return;
  std::string refusal = take_string(message, "refusal").value_or("");
  message["refusal"] = nullptr;
  if (content == nullptr) {
    message["content"] = std::move(refusal);
  } else if (content->is_array()) {
    content->push_back({{"type", "text"}, {"text", std::move(refusal)}});
  } else if (content->is_string()) {
    content->get_ref<std::string&>() += refusal;
  }
}

// Reads the content, and all other fields for the template.
void read_message(ClientJson& message, ValueBudget& budget, ChatMessage* to) {
  if (to->role == "assistant") read_refusals(message);
  ClientJson fields = ClientJson::object();
  for (auto& [name, value] : *message.get_ptr<ClientJson::object_t*>()) {
    if (name == "role" || value.is_null()) continue;
    if (name == "content" && value.is_string()) {
      to->content = std::move(value.get_ref<std::string&>());
      continue;
    }
    if (name == "tool_calls") read_arguments(value, budget);
    // Without a search: names are unique.
    fields.get_ptr<ClientJson::object_t*>()->emplace_back(name, std::move(value));
  }
  if (!fields.empty()) to->fields_json = dump(fields);
}

void read_template_fields(const ClientJson& body, Conversation* to) {
  if (wants_tools(body)) to->tools_json = dump(body.at("tools"));
  if (const ClientJson* variables = template_variables(body)) to->variables_json = dump(*variables);
}

std::optional<PrefixMode> prefix_of(const ClientJson& body) {
  const auto name = string_of(body, "prefix");
  if (!name) return std::nullopt;
  if (*name == "off") return PrefixMode::kOff;
  if (*name == "use") return PrefixMode::kUse;
  if (*name == "use-and-keep") return PrefixMode::kUseAndStore;
  throw BadField("prefix", "prefix must be \"off\", \"use\" or \"use-and-keep\"");
}

std::vector<int64_t> prefix_points_of(const ClientJson& body) {
  std::vector<int64_t> points;
  const ClientJson* list = find(body, "prefix_points");
  if (list == nullptr) return points;
  const auto whole = [](const ClientJson& point) { return point.is_number_integer(); };
  if (!list->is_array() || !std::all_of(list->begin(), list->end(), whole)) {
    throw BadField("prefix_points", "prefix_points must be a list of whole numbers");
  }
  for (const ClientJson& point : *list) points.push_back(point.get<int64_t>());
  return points;
}

// The reasoning of a response comes back as the model wrote it, whichever summary is asked for.
void check_reasoning(const ClientJson& reasoning) {
  if (!reasoning.is_object()) throw BadField("reasoning", "reasoning must be an object");
  const auto check = [&](const char* name, std::initializer_list<std::string_view> known) {
    const auto value = string_of(reasoning, name);
    if (!value || std::ranges::find(known, *value) != known.end()) return;
    throw BadField("reasoning",
                   fmt::format("reasoning.{} is not supported here with {}", name, cut(*value)));
  };
  check("summary", {"auto", "concise", "detailed"});
  check("generate_summary", {"auto", "concise", "detailed"});
  check("context", {"auto"});
  check("mode", {"standard"});
  for (const auto& [name, value] : reasoning.items()) {
    constexpr std::string_view kKnown[] = {"effort", "summary", "generate_summary", "context",
                                           "mode"};
    if (value.is_null() || std::ranges::find(kKnown, std::string_view(name)) != std::end(kKnown)) {
      continue;
    }
    throw BadField("reasoning",
                   fmt::format("reasoning.{} is not supported here: leave it out", cut(name)));
  }
}

}  // namespace

void read_session(const ClientJson& body, std::string* session) {
  auto name = string_of(body, "session");
  if (!name) return;
  if (!session->empty() && *name != *session) {
    throw BadField("session", "session must be the one that x-recurve-session names, or left out");
  }
  *session = *std::move(name);
}

void read_common(ClientJson& body, TextRequest* asked, OpenAiForm* form) {
  read_sampling(body, asked);
  asked->stop_strings = stops_of(body);
  asked->names.stop_strings = "stop";
  asked->names.include_stop = "include_stop_str_in_output";
  set(bool_of(body, "include_stop_str_in_output"), &asked->include_stop);
  set(int32_of(body, "n"), &asked->choices);
  set(int32_of(body, "priority"), &asked->priority);
  set(prefix_of(body), &asked->prefix);
  asked->prefix_points = prefix_points_of(body);
  set(bool_of(body, "add_special_tokens"), &asked->add_special_tokens);
  read_session(body, &asked->session);
  asked->chosen = chosen_of(body);
  form->choices = asked->choices;
  set(bool_of(body, "stream"), &form->stream);
  set(bool_of(body, "return_tokens_as_token_ids"), &form->tokens_as_ids);
  const ClientJson* options = find(body, "stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) throw BadField("stream_options", "stream_options must be an object");
  set(bool_of(*options, "include_usage"), &form->usage);
  set(bool_of(*options, "continuous_usage_stats"), &form->usage_each);
}

const ClientJson* template_variables(const ClientJson& body) {
  const ClientJson* variables = find(body, "chat_template_kwargs");
  if (variables != nullptr && !variables->is_object()) {
    throw BadField("chat_template_kwargs", "chat_template_kwargs must be an object");
  }
  constexpr size_t kMost = 1024, kMostBytes = 1 << 20;
  if (variables != nullptr && variables->size() > kMost) {
    throw BadField("chat_template_kwargs",
                   fmt::format("chat_template_kwargs must have at most {} names, got {}", kMost,
                               variables->size()));
  }
  const size_t bytes = variables == nullptr ? 0 : dump(*variables).size();
  if (bytes <= kMostBytes) return variables;
  throw BadField(
      "chat_template_kwargs",
      fmt::format("chat_template_kwargs must have at most {} bytes, got {}", kMostBytes, bytes));
}

void read_effort(const ClientJson& body, Conversation* to) {
  const ClientJson* reasoning = find(body, "reasoning");
  if (reasoning != nullptr) check_reasoning(*reasoning);
  const auto effort =
      reasoning == nullptr ? string_of(body, "reasoning_effort") : string_of(*reasoning, "effort");
  to->thinking = bool_of(body, "enable_thinking");
  if (!effort) return;
  constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium",
                                           "high", "xhigh",   "max"};
  if (std::ranges::find(kEfforts, *effort) == std::end(kEfforts)) {
    throw BadField(reasoning == nullptr ? "reasoning_effort" : "reasoning",
                   fmt::format("the effort of reasoning must be none, minimal, low, medium, high, "
                               "xhigh or max, got {}",
                               cut(*effort)));
  }
  if (*effort == "none") to->thinking = false;
  to->effort = *effort;
}

Conversation conversation_of(ClientJson& body, size_t bytes) {
  ClientJson* messages = find(body, "messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    throw BadField("messages", "messages must be a list of at least one message");
  }
  check_messages(messages->size(), "messages", bytes);
  Conversation to;
  to.messages.reserve(messages->size());
  ValueBudget budget{.most = most_values(bytes)};
  for (ClientJson& message : *messages) {
    ChatMessage& read = to.messages.emplace_back(ChatMessage{.role = role_of(message)});
    if (has_fields(message)) {
      read_message(message, budget, &read);
    } else {
      read.content = take_string(message, "content");
    }
  }
  *messages = nullptr;
  read_template_fields(body, &to);
  to.continue_final_message = bool_of(body, "continue_final_message").value_or(false);
  to.add_generation_prompt =
      bool_of(body, "add_generation_prompt").value_or(!to.continue_final_message);
  return to;
}

Refused read_openai_body(std::string text, const WorkLimits& limits, OpenAiResource resource,
                         const ModelQuery& query,
                         const std::function<void(ClientJson& body)>& read) {
  return read_body(std::move(text), limits, table_of(resource), kIdFields, query, read);
}

}  // namespace recurve
