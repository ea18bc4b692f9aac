#include "server/http/anthropic/message_fields.h"

#include <fmt/format.h>

#include <set>
#include <utility>
#include <vector>

#include "server/http/body_fields.h"

namespace recurve {
namespace {

constexpr int kM = 1, kT = 2;  // messages, count_tokens
constexpr int kMT = kM | kT;

constexpr RequestField kMessagesFields[] = {
    {"model", kMT, kHarmless},
    {"messages", kMT, kRefused, {"[]", "{}"}},  // refused where they are read
    {"system", kMT, kRefused, {"[]"}},
    {"tools", kMT, kRefused, {"[]"}},
    {"tool_choice", kMT, kRefused},
    {"max_tokens", kM, kHarmless, {}, "is used with an answer only"},
    {"stop_sequences", kM, kHarmless, {"[]"}, "is used with an answer only"},
    {"stream", kM, kHarmless, {}, "is used with an answer only"},
    {"temperature", kM, kHarmless, {}, "is used with an answer only"},
    {"top_p", kM, kHarmless, {}, "is used with an answer only"},
    {"top_k", kM, kHarmless, {}, "is used with an answer only"},
    {"output_config", kM, kHarmless, {"{}"}, "is used with an answer only"},
    {"any_whitespace", kM, kHarmless, {}, "is used with an answer only"},
    {"thinking", kMT, kRefused},
    {"container", 0, kRefused},
    {"initial_state", kM, kRefused},
    {"adapter", kM, kRefused},
    {"state", 0, kRefused},
    {"return_state", 0, kRefused, {"false"}},
    {"compaction", 0, kRefused},
    {"thread", 0, kRefused},
    {"mcp_servers", 0, kRefused, {"[]"}},
    {"context_management", kMT, kRefused, {"{}"}},
    {"fallbacks", 0, kRefused, {"[]"}},
    {"output_format", 0, kRefused},
    {"billing_policy", 0, kHarmless, {}, "no request is billed"},
    {"workspace_id", 0, kHarmless, {}, "there are no workspaces"},
    {"cache_control", 0, kHarmless, {}, "prompts that share a prefix are found without one"},
    {"diagnostics", 0, kHarmless, {}, "returns more about the same answer"},
    {"fallback_credit_token", 0, kHarmless, {}, "there are no fallbacks"},
    {"inference_geo", 0, kHarmless, {}, "the server is in one place"},
    {"metadata", 0, kHarmless, {}, "for Anthropic's checks"},
    {"service_tier", 0, kHarmless, {}, "there is one"},
    {"speed", 0, kHarmless, {}, "there is one"},
    {"user_profile_id", 0, kHarmless, {}, "for Anthropic's checks"},
};

std::string type_of(const ClientJson& block) {
  return block.is_object() ? string_of(block, "type").value_or("") : "";
}

// Texts, each a part; as templates get it: one text, or a list of parts.
using Texts = std::vector<std::string>;

// `field`: the body's field that the content belongs to.
Texts take_texts(ClientJson& content, const char* field) {
  if (content.is_string()) return {std::move(content.get_ref<std::string&>())};
  if (!content.is_array()) {
    throw BadField(field, fmt::format("content in {} must be a string or a list of blocks", field));
  }
  Texts texts;
  for (ClientJson& block : content) {
    if (const std::string type = type_of(block); type != "text") {
      throw BadField(field, fmt::format("content in {} must be text, got a block of type \"{}\"",
                                        field, cut(type)));
    }
    texts.push_back(take_string(block, "text").value_or(""));
  }
  return texts;
}

void set_content(Texts texts, ClientJson* fields, ChatMessage* to) {
  if (texts.size() <= 1) {
    to->content = texts.empty() ? "" : std::move(texts.front());
    return;
  }
  ClientJson parts = ClientJson::array();
  for (std::string& text : texts) parts.push_back({{"type", "text"}, {"text", std::move(text)}});
  (*fields)["content"] = std::move(parts);
}

// Reads the turns of a conversation.
class Turns {
 public:
  explicit Turns(std::vector<ChatMessage>* to) : to_(to) {}

  // The tools that results of a search refer to.
  const std::set<std::string>& found_tools() const { return found_tools_; }

  void add(ClientJson& message) {
    if (!message.is_object()) throw BadField("messages", "each of messages must be an object");
    const std::string role = string_of(message, "role").value_or("");
    if (role != "user" && role != "assistant" && role != "system") {
      throw BadField("messages", fmt::format("the role of a message in messages must be \"user\", "
                                             "\"assistant\" or \"system\", got \"{}\"",
                                             cut(role)));
    }
    ClientJson* content = find(message, "content");
    if (content == nullptr) throw BadField("messages", "each of messages needs a content");
    if (role != turn_.role) finish();
    turn_.role = role;
    if (content->is_string() || role == "system") {
      for (std::string& text : take_texts(*content, "messages")) add_text(std::move(text));
      return;
    }
    if (!content->is_array()) {
      throw BadField("messages", "content in messages must be a string or a list of blocks");
    }
    for (ClientJson& block : *content) add_block(block);
  }

  // The turn so far becomes a message.
  void finish() {
    if (turn_.role.empty()) return;
    const bool nothing = turn_.texts.empty() && turn_.calls.empty() && turn_.thinking.empty();
    if (!nothing || !turn_.has_results) {
      ChatMessage& message = to_->emplace_back(ChatMessage{.role = turn_.role});
      ClientJson fields = ClientJson::object();
      const bool calls_alone = turn_.texts.empty() && !turn_.calls.empty();
      if (!calls_alone) set_content(std::move(turn_.texts), &fields, &message);
      if (!turn_.thinking.empty()) fields["reasoning_content"] = std::move(turn_.thinking);
      if (!turn_.calls.empty()) fields["tool_calls"] = std::move(turn_.calls);
      if (!fields.empty()) message.fields_json = dump(fields);
    }
    turn_ = {};
  }

 private:
  struct Turn {
    std::string role = {};
    Texts texts = {};
    std::string thinking = {};
    ClientJson calls = ClientJson::array();
    bool has_results = false;
  };

  // A text after a call is a separate message, as templates write calls at the end of one.
  void add_text(std::string text) {
    if (!turn_.calls.empty()) split();
    turn_.texts.push_back(std::move(text));
  }

  void add_block(ClientJson& block) {
    const std::string type = type_of(block);
    const bool from_model = turn_.role == "assistant";
    if (type == "text") {
      add_text(take_string(block, "text").value_or(""));
    } else if (type == "tool_use" && from_model) {
      add_call(block);
    } else if (type == "thinking" && from_model) {
      turn_.thinking += take_string(block, "thinking").value_or("");
    } else if (type == "tool_result" && !from_model) {
      add_result(block);
    } else if (type != "redacted_thinking") {  // it has no text
      throw BadField("messages",
                     fmt::format("messages must be text, calls and results of tools, got a block "
                                 "of type \"{}\" from \"{}\"",
                                 cut(type), turn_.role));
    }
  }

  void add_call(ClientJson& block) {
    ClientJson* input = find(block, "input");
    if (input != nullptr && !input->is_object()) {
      throw BadField("messages", "input of a tool_use in messages must be an object");
    }
    turn_.calls.push_back(
        function_call(string_of(block, "id").value_or(""), string_of(block, "name").value_or(""),
                      input == nullptr ? ClientJson::object() : std::move(*input)));
  }

  // Results stand before what else the turn says.
  void add_result(ClientJson& block) {
    if (!turn_.texts.empty()) split();
    ChatMessage& result = to_->emplace_back(ChatMessage{.role = "tool"});
    ClientJson fields = {{"tool_call_id", string_of(block, "tool_use_id").value_or("")}};
    if (bool_of(block, "is_error").value_or(false)) fields["is_error"] = true;
    ClientJson* content = find(block, "content");
    if (content != nullptr && content->is_array()) {
      for (ClientJson& part : *content) read_reference(&part);
    }
    set_content(content == nullptr ? Texts() : take_texts(*content, "messages"), &fields, &result);
    result.fields_json = dump(fields);
    turn_.has_results = true;
  }

  // A tool that a search has found: its name stands in the result.
  void read_reference(ClientJson* part) {
    if (type_of(*part) != "tool_reference") return;
    std::string name = string_of(*part, "tool_name").value_or("");
    *part = {{"type", "text"}, {"text", name}};
    found_tools_.insert(std::move(name));
  }

  void split() {
    std::string role = turn_.role;
    finish();
    turn_.role = std::move(role);
  }

  std::vector<ChatMessage>* to_;
  Turn turn_;
  std::set<std::string> found_tools_;
};

// In the form of chat completions; empty: none. `found`: the tools with defer_loading that are in
// the prompt.
std::string tools_of(const ClientJson& body, const std::set<std::string>& found) {
  const ClientJson* tools = find(body, "tools");
  if (tools == nullptr || tools->empty()) return {};
  check_tools(*tools);
  const ClientJson* choice = find(body, "tool_choice");
  if (choice != nullptr && type_of(*choice) == "none") return {};
  ClientJson functions = ClientJson::array();
  for (const ClientJson& tool : *tools) {
    const std::string type = tool.is_object() ? string_of(tool, "type").value_or("custom") : "";
    if (type != "custom") {
      throw BadField("tools",
                     fmt::format("each of tools must have an input_schema, got one of type "
                                 "\"{}\": this server has no built-in tools",
                                 cut(type)));
    }
    check_tool_fields(tool);
    const std::string name = string_of(tool, "name").value_or("");
    if (bool_of(tool, "defer_loading").value_or(false) && !found.contains(name)) continue;
    ClientJson function = {{"name", name}};
    if (const auto text = string_of(tool, "description")) function["description"] = *text;
    const ClientJson* schema = find(tool, "input_schema");
    if (schema == nullptr) throw BadField("tools", "each of tools must have an input_schema");
    function["parameters"] = *schema;
    if (const auto strict = bool_of(tool, "strict")) function["strict"] = *strict;
    functions.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  if (functions.empty()) throw BadField("tools", "one of tools must be without defer_loading");
  return dump(functions);
}

// Edits that leave the conversation as it is.
void check_context_management(const ClientJson& body) {
  const ClientJson* management = find(body, "context_management");
  if (management == nullptr || (management->is_object() && management->empty())) return;
  const ClientJson* edits = management->is_object() ? find(*management, "edits") : nullptr;
  if (edits == nullptr || !edits->is_array() || management->size() > 1) {
    throw BadField("context_management", "context_management must be an object with edits");
  }
  for (const ClientJson& edit : *edits) {
    const ClientJson* kept = edit.is_object() ? find(edit, "keep") : nullptr;
    if (type_of(edit) == "clear_thinking_20251015" && kept != nullptr && *kept == "all") continue;
    throw BadField("context_management",
                   "of context_management's edits only clear_thinking_20251015 with \"keep\": "
                   "\"all\" is supported here");
  }
}

// The constraint in output_config.
void read_format(const ClientJson& body, TextRequest* asked) {
  const ClientJson* config = find(body, "output_config");
  if (config == nullptr) return;
  if (!config->is_object()) throw BadField("output_config", "output_config must be an object");
  for (const auto& [name, value] : config->items()) {
    if (value.is_null() || name == "format" || name == "effort") continue;
    throw BadField("output_config",
                   fmt::format("output_config.{} is not supported here: leave it out", cut(name)));
  }
  const ClientJson* format = find(*config, "format");
  if (format == nullptr) return;
  const ClientJson* schema = type_of(*format) == "json_schema" ? find(*format, "schema") : nullptr;
  if (schema == nullptr) {
    throw BadField("output_config",
                   "output_config.format must have the type \"json_schema\" and a schema");
  }
  asked->constraint = ConstraintText{ConstraintText::Form::kJsonSchema, dump(*schema)};
  asked->constraint_field = "output_config";
}

}  // namespace

FieldTable table_of(MessagesResource resource) {
  return {kMessagesFields, resource == MessagesResource::kMessages ? kM : kT};
}

Refused read_messages_body(std::string text, const WorkLimits& limits, MessagesResource resource,
                           const ModelQuery& query,
                           const std::function<void(ClientJson& body)>& read) {
  return read_body(std::move(text), limits, table_of(resource), {}, query, read);
}

Conversation take_conversation(ClientJson& body, size_t bytes) {
  ClientJson* messages = find(body, "messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    throw BadField("messages", "messages must be a list of at least one message");
  }
  check_context_management(body);
  Conversation to;
  if (ClientJson* system = find(body, "system")) {
    ClientJson fields = ClientJson::object();
    ChatMessage& message = to.messages.emplace_back(ChatMessage{.role = "system"});
    set_content(take_texts(*system, "system"), &fields, &message);
    if (!fields.empty()) message.fields_json = dump(fields);
  }
  Turns turns(&to.messages);
  for (ClientJson& message : *messages) turns.add(message);
  turns.finish();
  check_messages(to.messages.size(), "messages", bytes);  // a result of a tool is one too
  *messages = nullptr;
  to.tools_json = tools_of(body, turns.found_tools());
  to.continue_final_message = to.messages.back().role == "assistant";
  to.add_generation_prompt = !to.continue_final_message;
  return to;
}

std::optional<ToolUse> messages_tool_use(const ClientJson& body) {
  const ClientJson* tools = find(body, "tools");
  const bool has_tools = tools != nullptr && !tools->empty();
  const ClientJson* choice = find(body, "tool_choice");
  if (choice == nullptr) return has_tools ? std::optional<ToolUse>(ToolUse()) : std::nullopt;
  const std::string type = type_of(*choice);
  if (type != "auto" && type != "any" && type != "tool" && type != "none") {
    throw BadField("tool_choice",
                   "tool_choice must be an object of the type \"auto\", \"any\", \"tool\" or "
                   "\"none\"");
  }
  if (type == "none" || (type == "auto" && !has_tools)) return std::nullopt;
  if (!has_tools) throw BadField("tool_choice", "tool_choice must be left out without tools");
  const bool single = bool_of(*choice, "disable_parallel_tool_use").value_or(false);
  if (type == "tool") return ToolUse::of(string_of(*choice, "name").value_or(""));
  return ToolUse{.required = type == "any", .parallel = !single};
}

// The model ends its thinking by itself: budget_tokens is the client's guess.
Thinking thinking_of(const ClientJson& body) {
  const ClientJson* thinking = find(body, "thinking");
  if (thinking == nullptr) return {};
  const std::string type = type_of(*thinking);
  if (type != "enabled" && type != "adaptive" && type != "disabled") {
    throw BadField("thinking",
                   "thinking must be an object of the type \"enabled\", \"adaptive\" or "
                   "\"disabled\"");
  }
  (void)integer_of(*thinking, "budget_tokens");
  const std::string display = string_of(*thinking, "display").value_or("summarized");
  if (display != "summarized" && display != "omitted") {
    throw BadField("thinking", "display of thinking must be \"summarized\" or \"omitted\"");
  }
  using enum Thinking::Shown;
  if (type == "disabled") return {.wanted = false, .shown = kNot};
  return {.wanted = true, .shown = display == "omitted" ? kEmpty : kText};
}

std::string effort_of(const ClientJson& body) {
  const ClientJson* config = find(body, "output_config");
  if (config == nullptr || !config->is_object()) return {};
  const std::string effort = string_of(*config, "effort").value_or("");
  for (const char* known : {"", "low", "medium", "high", "xhigh", "max"}) {
    if (effort == known) return effort;
  }
  throw BadField("output_config",
                 fmt::format("output_config.effort must be low, medium, high, xhigh or max, got {}",
                             cut(effort)));
}

void read_answer_fields(const ClientJson& body, TextRequest* asked) {
  SamplingParams& p = asked->sampling;
  p.temperature = float_of(body, "temperature").value_or(p.temperature);
  p.top_p = float_of(body, "top_p").value_or(p.top_p);
  p.top_k = int32_of(body, "top_k").value_or(p.top_k);
  asked->chosen = chosen_of(body);
  asked->max_tokens = int32_of(body, "max_tokens");
  if (!asked->max_tokens) throw BadField("max_tokens", "max_tokens must be given");
  if (const ClientJson* stops = find(body, "stop_sequences")) {
    asked->stop_strings = strings_of(*stops, "stop_sequences", "a list of strings");
  }
  read_format(body, asked);
  read_any_whitespace(body, asked);
}

}  // namespace recurve
