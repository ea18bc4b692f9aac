#include "server/http/openai/responses/responses.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/http/body_fields.h"
#include "server/http/openai/fields/request_fields.h"
#include "server/http/openai/logprobs.h"
#include "server/http/openai/responses/stored_responses.h"
#include "server/serving/bind.h"

namespace recurve {
namespace {

using nlohmann::json;
using Kind = SessionCommand::Kind;

// Of what a response may include, log-probabilities alone exist here: reasoning is never encrypted,
// and there are no files, images and searches.
bool wants_logprobs(const ClientJson& body) {
  constexpr std::string_view kLogprobs = "message.output_text.logprobs";
  constexpr std::string_view kKnown[] = {kLogprobs,
                                         "reasoning.encrypted_content",
                                         "file_search_call.results",
                                         "web_search_call.results",
                                         "web_search_call.action.sources",
                                         "message.input_image.image_url",
                                         "computer_call_output.output.image_url",
                                         "code_interpreter_call.outputs"};
  const ClientJson* include = find(body, "include");
  if (include == nullptr) return false;
  const std::vector<std::string> names = strings_of(*include, "include", "a list of strings");
  for (const std::string& name : names) {
    if (std::ranges::find(kKnown, name) != std::end(kKnown)) continue;
    throw BadField("include", fmt::format("include has an unknown name, {}", cut(name)));
  }
  return std::ranges::find(names, kLogprobs) != names.end();
}

// Fields that the response repeats.
constexpr const char* kRepeated[] = {"instructions",
                                     "max_output_tokens",
                                     "metadata",
                                     "parallel_tool_calls",
                                     "temperature",
                                     "text",
                                     "tools",
                                     "previous_response_id",
                                     "tool_choice",
                                     "top_logprobs",
                                     "truncation",
                                     "top_p",
                                     "user",
                                     "reasoning",
                                     "prompt_cache_key"};

void check_repeated(const ClientJson& body) {
  constexpr size_t kMostBytes = 1 << 20;
  for (size_t bytes = 0; const char* field : kRepeated) {
    const ClientJson* value = find(body, field);
    if (value == nullptr) continue;
    bytes += value->is_string() ? value->get_ref<const std::string&>().size() : dump(*value).size();
    if (bytes <= kMostBytes) continue;
    throw BadField(field, fmt::format("{} must have at most {} bytes, with the other fields that "
                                      "the response repeats, got {}: send long text in input",
                                      field, kMostBytes, bytes));
  }
}

json or_default(const ClientJson& body, const char* field, json otherwise) {
  const ClientJson* value = find(body, field);
  return value != nullptr ? json(*value) : std::move(otherwise);
}

}  // namespace

Responses::Responses(ServerCore& core, ResponseStore& store, const HttpRequest& request)
    : core_(core),
      store_(store),
      caller_(request.caller),
      session_(request.session),
      id_(make_name("resp_")),
      created_(std::time(nullptr)),
      items_(
          id_.substr(5),
          [this](const char* type, json fields) {
            return form_.stream ? event(type, std::move(fields)) : std::string();
          },
          [this](const char* type, std::string_view fields) {
            return form_.stream ? text_event(type, fields) : std::string();
          }) {}

// Reading.

Refused Responses::read(std::string text, const WorkLimits& limits,
                        std::vector<TextRequest>* asked) {
  const size_t bytes = text.size();
  std::optional<std::string> previous;
  TextRequest& to = asked->emplace_back();
  const auto read = [&](ClientJson& body) {
    if (!session_.empty()) {
      throw BadField("x-recurve-session",
                     "x-recurve-session must be left out: previous_response_id says what a "
                     "response goes on from");
    }
    ignored_tools_ = take_other_tools(body);
    check_repeated(body);
    read_common(body, &to, &form_);
    read_constraint(body, &to);
    to.max_tokens = int32_of(body, "max_output_tokens");
    to.names.prompt = "input";
    to.is_chat = true;
    to.names.max_tokens = "max_output_tokens";
    to.names.logprobs = "top_logprobs";
    to.tools = tool_use_of(body);
    const int32_t top = int32_of(body, "top_logprobs").value_or(0);
    const bool logprobs = wants_logprobs(body);
    if (top != 0 && !logprobs) {
      throw BadField("top_logprobs",
                     "top_logprobs needs include to have \"message.output_text.logprobs\"");
    }
    if (logprobs) to.logprobs = top;
    previous = string_of(body, "previous_response_id");
    read_fields(body, to.chosen.adapter.empty() ? model_.adapter : to.chosen.adapter, bytes);
  };
  Refused refused = read_openai_body(std::move(text), limits, OpenAiResource::kResponses,
                                     {core_, &model_, caller_}, read);
  to.model = model_;
  to.caller = caller_;
  if (!refused) refused = choose_adapter(model_, &to.chosen);
  if (!refused && previous) refused = read_previous(*previous);
  if (!refused) refused = choose_prompt(limits, &to);
  return refused;
}

void Responses::read_fields(ClientJson& body, const std::string& adapter, size_t bytes) {
  stores_ = bool_of(body, "store").value_or(true);
  instructions_ = string_of(body, "instructions").value_or("");
  tools_ = tools_of_response(body);
  if (const ClientJson* variables = template_variables(body)) variables_ = dump(*variables);
  read_effort(body, &switches_);
  const bool compared = stores_ || find(body, "previous_response_id") != nullptr;
  if (compared)
    definition_ = dump(json{adapter, instructions_, tools_, variables_, switches_.effort,
                            static_cast<int>(switches_.thinking.value_or(true))});
  repeated_ = {
      {"instructions", or_default(body, "instructions", nullptr)},
      {"max_output_tokens", or_default(body, "max_output_tokens", nullptr)},
      {"metadata", or_default(body, "metadata", json::object())},
      {"parallel_tool_calls", or_default(body, "parallel_tool_calls", true)},
      {"previous_response_id", or_default(body, "previous_response_id", nullptr)},
      {"prompt_cache_key", or_default(body, "prompt_cache_key", nullptr)},
      {"reasoning", or_default(body, "reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
      {"store", stores_},
      {"temperature", or_default(body, "temperature", 1.0)},
      {"text", or_default(body, "text", {{"format", {{"type", "text"}}}})},
      {"tool_choice", or_default(body, "tool_choice", "auto")},
      {"tools", or_default(body, "tools", json::array())},
      {"top_logprobs", or_default(body, "top_logprobs", 0)},
      {"top_p", or_default(body, "top_p", 1.0)},
      {"truncation", or_default(body, "truncation", "disabled")},
      {"user", or_default(body, "user", nullptr)}};
  if (!ignored_tools_.empty()) repeated_["ignored_tools"] = std::move(ignored_tools_);
  input_ = take_messages_of_input(body, bytes);
}

Refused Responses::read_previous(const std::string& id) {
  previous_ = store_.find(caller_.tenant, id, model_->info.default_ttl_seconds);
  if (previous_ == nullptr) return unknown_response(id, "previous_response_id");
  const int64_t bytes = previous_->turn->bytes_of_all(), most = store_.most_bytes_of_turns();
  if (!stores_ || bytes <= most) return {};
  return invalid("previous_response_id",
                 "previous_response_id must name a conversation of at most {} bytes, got {}: send "
                 "store: false, or begin another one",
                 most, bytes);
}

// Whether a session can hold the state is known before one is opened: there are templates that
// write earlier messages differently when others follow. The prompt that was read for it is the
// request's.
Refused Responses::choose_prompt(const WorkLimits& limits, TextRequest* asked) {
  Refused refused;
  const bool same = previous_ != nullptr && previous_->definition == definition_ &&
                    previous_->model == model_->name();
  if (same) {
    refused = read_for_session(conversation(input_), /*begin=*/false, limits, *asked);
    continues_ = parsed_ != nullptr;
  }
  if (!refused && !continues_ && stores_) {
    refused = read_for_session(whole_conversation(), /*begin=*/true, limits, *asked);
    begins_session_ = parsed_ != nullptr;
  }
  if (!refused && parsed_ == nullptr) asked->prompt = whole_conversation();
  // What is not stored is read again only if the state that it continues from has gone.
  if (!stores_ && !continues_) input_.clear();
  return refused;
}

// Sets parsed_ if a session can begin with the messages, or continue with them.
Refused Responses::read_for_session(Conversation messages, bool begin, const WorkLimits& limits,
                                    const TextRequest& asked) {
  TextRequest in_session = asked;
  in_session.prompt = std::move(messages);
  in_session.session = id_;
  in_session.session_is_kept = true;
  auto parsed = std::make_unique<ParsedRequest>();
  if (Refused refused = validate(std::move(in_session), model_->text, limits, parsed.get())) {
    return refused->field == asked.names.prompt ? Refused() : refused;
  }
  const Request& request = parsed->request;
  const bool can = begin ? request.prompt.refusal.empty()
                         : request.continued_prompt && request.continued_prompt->refusal.empty();
  if (can) parsed_ = std::move(parsed);
  return {};
}

// A state has absorbed the answer of its response, except a token that the next request absorbs.
Refused Responses::count_input(std::string text, const WorkLimits& limits, std::string* object) {
  std::vector<TextRequest> asked;
  Refused refused = read(std::move(text), limits, &asked);
  if (!refused && parsed_ == nullptr) {
    parsed_ = std::make_unique<ParsedRequest>();
    refused = validate(std::move(asked.front()), model_->text, limits, parsed_.get());
  }
  if (refused) return refused;
  const Request& request = parsed_->request;
  const PromptReading& prompt = continues_ ? *request.continued_prompt : request.prompt;
  auto tokens = static_cast<int64_t>(prompt.ids.size());
  if (continues_) tokens += previous_->object.at("usage").at("total_tokens").get<int64_t>();
  *object = dump(json{{"object", "response.input_tokens"}, {"input_tokens", tokens}});
  return {};
}

Conversation Responses::conversation(std::vector<ChatMessage> messages) const {
  return {.messages = std::move(messages),
          .tools_json = tools_,
          .variables_json = variables_,
          .field = "input",
          .thinking = switches_.thinking,
          .effort = switches_.effort};
}

Conversation Responses::whole_conversation() const {
  std::vector<const Turn*> turns;
  const Turn* last = previous_ != nullptr ? previous_->turn.get() : nullptr;
  for (const Turn* turn = last; turn != nullptr; turn = turn->before()) turns.push_back(turn);
  std::vector<ChatMessage> messages;
  // One message with those of the system and of developers behind it: see ChatInput.
  if (!instructions_.empty()) messages.push_back({.role = "developer", .content = instructions_});
  for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn) {
    const std::vector<ChatMessage>& said = (*turn)->messages();
    messages.insert(messages.end(), said.begin(), said.end());
  }
  messages.insert(messages.end(), input_.begin(), input_.end());
  return conversation(std::move(messages));
}

// The session. An answer that is not stored needs one only to continue from another.

bool Responses::prepare(std::vector<TextRequest>* asked, Go go) {
  asked_ = &asked->front();
  if (!begins_session_ && !continues_) return true;
  open_session(std::move(go));
  return false;
}

void Responses::open_session(Go go) {
  SessionCommand command{
      .kind = Kind::kOpen, .caller = caller_, .name = reserved_name(id_), .chosen = asked_->chosen};
  if (continues_) {
    command.kind = Kind::kFork;
    command.name = reserved_name(previous_->id);
    command.other = reserved_name(id_);
  }
  command.done = [this, go](SessionResult result) {
    core_.delivery_threads.post(
        [this, go, result = std::move(result)] { session_opened(result, go); });
  };
  if (const Refused refused = model_->post(std::move(command))) go(refused);
}

// Without capacity, an older response is removed; without the earlier state, its messages are used.
void Responses::session_opened(const SessionResult& result, Go go) {
  if (result.reason == EndReason::kDone) {
    has_session_ = true;
    return go({});
  }
  if (continues_ && result.reason == EndReason::kNoSession) {
    continues_ = false;
    parsed_.reset();
    asked_->prompt = whole_conversation();
    return go({});
  }
  if (row_of(result.reason).code == Code::kResourceExhausted) {
    const auto spared = continues_ ? previous_->id : std::string();
    if (const auto oldest = store_.erase_oldest(caller_.tenant, spared)) {
      close_stored(core_, caller_.tenant, *oldest);
      return open_session(std::move(go));
    }
    return go(Refusal{.reason = EndReason::kExhausted,
                      .message = fmt::format("no capacity to store the response: {}; or send "
                                             "store: false",
                                             result.message)});
  }
  go(refusal_of(result));
}

// Writing.

std::string Responses::take(size_t, const AnswerEvent& event) {
  return std::visit([&](const auto& of) { return write(of); }, event);
}

std::string Responses::event(const char* type, json fields) {
  fields["type"] = type;
  fields["sequence_number"] = events_++;
  return fmt::format("event: {}\ndata: {}\n\n", type, dump(fields));
}

std::string Responses::text_event(const char* type, std::string_view fields) {
  return fmt::format("event: {0}\ndata: {{{1},\"sequence_number\":{2},\"type\":\"{0}\"}}\n\n", type,
                     fields, events_++);
}

std::string Responses::write(const RequestAccepted& accepted) {
  accepted_ = accepted;
  if (!form_.stream) return {};
  std::string events = event("response.created", {{"response", object()}});
  events += event("response.in_progress", {{"response", object()}});
  return events;
}

std::string Responses::write(const AnswerDelta& delta) {
  generated_ += static_cast<int64_t>(delta.tokens.size());
  json fresh = json::array();
  for (const SampledToken& token : delta.tokens) {
    if (delta.logprobs) fresh.push_back(chat_logprob(token, {*model_->text.tokenizer}));
  }
  std::string events = items_.add_reasoning(delta.reasoning);
  events += items_.add_text(delta.text, std::move(fresh));
  for (const ToolCallPart& call : delta.calls) events += items_.add_call(call);
  return events;
}

std::string Responses::write(const AnswerEnd& end) {
  accepted_.prompt_tokens = end.usage.prompt_tokens;
  saved_tokens_ = end.usage.prefix.tokens;
  generated_ = end.usage.generated_tokens;
  const ChoiceEnd& choice = end.choices.front();
  thought_ = choice.reasoning_tokens;
  if (choice.reason == EndReason::kLength) {
    incomplete_reason_ = "max_output_tokens";
  } else if (choice.cut_call) {
    incomplete_reason_ = "stop";
  }
  const bool whole = incomplete_reason_ == nullptr;
  status_ = whole ? "completed" : "incomplete";
  std::string events = items_.end(status_);
  if (stores_) store_answer();
  if (!form_.stream) return {};
  return events +
         event(whole ? "response.completed" : "response.incomplete", {{"response", object()}});
}

std::string Responses::broken(const Refusal& refusal) {
  json error = error_of(refusal);
  error["code"] = error["error"]["code"];
  error["message"] = cut(refusal.message, kMostSaid);
  error["param"] = nullptr;
  return event("error", std::move(error));
}

std::string Responses::whole() { return dump(object()); }

// Tokens of the conversation's state, or of a shared prefix, count as cached.
json Responses::usage() const {
  const int64_t input = accepted_.session_position + accepted_.prompt_tokens;
  return {
      {"input_tokens", input},
      {"input_tokens_details",
       {{"cached_tokens", accepted_.session_position + saved_tokens_}, {"cache_write_tokens", 0}}},
      {"output_tokens", generated_},
      {"output_tokens_details", {{"reasoning_tokens", thought_}}},
      {"total_tokens", input + generated_}};
}

json Responses::object() const {
  const std::string_view status = status_;
  const bool begun = status == "in_progress";
  json object = repeated_;
  object["id"] = id_;
  object["object"] = "response";
  object["created_at"] = static_cast<int64_t>(created_);
  object["model"] = model_.name();
  object["status"] = status;
  object["background"] = false;
  object["error"] = nullptr;
  object["incomplete_details"] = nullptr;
  if (incomplete_reason_ != nullptr)
    object["incomplete_details"] = {{"reason", incomplete_reason_}};
  object["output"] = begun ? json::array() : items_.list();
  object["usage"] = begun ? json(nullptr) : usage();
  return object;
}

void Responses::store_answer() {
  std::vector<ChatMessage> messages = std::move(input_);
  ChatMessage& answer =
      messages.emplace_back(ChatMessage{.role = "assistant", .content = items_.text()});
  ClientJson fields = ClientJson::object();
  if (auto calls = items_.calls(); !calls.empty()) fields["tool_calls"] = std::move(calls);
  if (auto thoughts = items_.reasoning(); !thoughts.empty()) {
    fields["reasoning_content"] = std::move(thoughts);
  }
  if (!fields.empty()) answer.fields_json = dump(fields);
  stored_ = true;
  const TenantId owner = group_of(caller_.share());
  auto turn = store_.make_turn(owner, previous_ != nullptr ? previous_->turn : nullptr,
                               std::move(messages));
  const auto gone = store_.put(caller_.tenant, owner,
                               {.id = id_,
                                .object = object(),
                                .turn = std::move(turn),
                                .definition = definition_,
                                .model = model_->name()});
  for (const auto& [tenant, id] : gone) close_stored(core_, tenant, id);
}

void Responses::ended(bool complete) {
  if (!has_session_ || (complete && stored_)) return;
  store_.erase(caller_.tenant, id_);
  close_stored(core_, caller_.tenant, id_);
}

}  // namespace recurve
