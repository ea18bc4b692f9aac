#include "server/http/openai/responses/responses.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/http/body_fields.h"
#include "server/http/openai/fields/tool_fields.h"
#include "server/http/openai/logprobs.h"
#include "server/serving/session_rules.h"

namespace recurve {
namespace {

using nlohmann::json;
using Kind = SessionCommand::Kind;

// Nobody waits for it.
void close_kept(ServedModel& model, TenantId tenant, const std::string& id) {
  (void)post(model.queue, {.kind = Kind::kClose,
                           .caller = {.tenant = tenant},
                           .name = kept_name(id),
                           .done = [](const SessionResult&) {}});
}

Refusal unknown(const std::string& id, const char* field = "") {
  return {.reason = EndReason::kNotFound,
          .message = fmt::format("there is no response \"{}\": it was not stored, was deleted or "
                                 "is too old",
                                 cut(id)),
          .field = field};
}

bool wants_logprobs(const ClientJson& body) {
  const ClientJson* include = find(body, "include");
  if (include == nullptr) return false;
  if (!include->is_array()) throw BadField("include", "include must be a list of strings");
  return std::find(include->begin(), include->end(), "message.output_text.logprobs") !=
         include->end();
}

// Fields that the answer repeats, each as often as it is written.
constexpr const char* kRepeated[] = {"instructions", "max_output_tokens",
                                     "metadata",     "parallel_tool_calls",
                                     "temperature",  "text",
                                     "tools",        "previous_response_id",
                                     "tool_choice",  "top_logprobs",
                                     "truncation",   "top_p",
                                     "user"};

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
      items_(id_.substr(5), [this](const char* type, json fields) {
        return form_.stream ? event(type, std::move(fields)) : std::string();
      }) {}

// What is asked.

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
    check_repeated(body);
    read_common(body, &to, &form_);
    read_constraint(body, &to);
    to.max_tokens = int32_of(body, "max_output_tokens");
    to.tools = tool_use_of(body);
    const int32_t top = int32_of(body, "top_logprobs").value_or(0);
    const bool logprobs = wants_logprobs(body);
    if (top != 0 && !logprobs) {
      throw BadField("top_logprobs",
                     "top_logprobs needs include to have \"message.output_text.logprobs\"");
    }
    if (logprobs) to.logprobs = top;
    previous = string_of(body, "previous_response_id");
    read_fields(body, bytes);
  };
  Refused refused = read_body(std::move(text), limits, Resource::kResponses, *model_, read);
  if (!refused && previous) refused = read_previous(*previous);
  if (!refused) refused = choose_prompt(limits, &to);
  return refused;
}

void Responses::read_fields(ClientJson& body, size_t bytes) {
  stores_ = bool_of(body, "store").value_or(true);
  instructions_ = string_of(body, "instructions").value_or("");
  tools_ = tools_of_response(body);
  if (const ClientJson* variables = template_variables(body)) variables_ = dump(*variables);
  const bool compared = stores_ || find(body, "previous_response_id") != nullptr;
  if (compared) definition_ = dump(json{instructions_, tools_, variables_});
  said_ = {{"instructions", or_default(body, "instructions", nullptr)},
           {"max_output_tokens", or_default(body, "max_output_tokens", nullptr)},
           {"metadata", or_default(body, "metadata", json::object())},
           {"parallel_tool_calls", or_default(body, "parallel_tool_calls", true)},
           {"previous_response_id", or_default(body, "previous_response_id", nullptr)},
           {"store", stores_},
           {"temperature", or_default(body, "temperature", 1.0)},
           {"text", or_default(body, "text", {{"format", {{"type", "text"}}}})},
           {"tool_choice", or_default(body, "tool_choice", "auto")},
           {"tools", or_default(body, "tools", json::array())},
           {"top_logprobs", or_default(body, "top_logprobs", 0)},
           {"top_p", or_default(body, "top_p", 1.0)},
           {"truncation", or_default(body, "truncation", "disabled")},
           {"user", or_default(body, "user", nullptr)}};
  input_ = take_messages_of_input(body, bytes);
}

Refused Responses::read_previous(const std::string& id) {
  previous_ = store_.find(caller_.tenant, id, model_->info.default_ttl_seconds);
  if (previous_ == nullptr) return unknown(id, "previous_response_id");
  const int64_t bytes = previous_->turn->bytes_of_all(), most = store_.most_bytes_of_turns();
  if (!stores_ || bytes <= most) return {};
  return invalid("previous_response_id",
                 "previous_response_id must name a conversation of at most {} bytes, got {}: send "
                 "store: false, or begin another one",
                 most, bytes);
}

// Whether a state can be gone on from, and kept, is known before anything is done with one: there
// are templates that write earlier messages anew when others follow.
Refused Responses::choose_prompt(const WorkLimits& limits, TextRequest* asked) {
  if (previous_ != nullptr && previous_->definition == definition_) {
    goes_on_ = session_can(conversation(input_), /*begin=*/false, limits);
  }
  if (!goes_on_) {
    keeps_state_ = stores_ && session_can(whole_conversation(), /*begin=*/true, limits);
  }
  asked->prompt = goes_on_ ? conversation(input_) : whole_conversation();
  // What is not stored is needed again only where the state that it goes on from has gone.
  if (!stores_ && !goes_on_) input_.clear();
  return {};
}

// Begin with the messages, or go on with them.
bool Responses::session_can(Conversation messages, bool begin, const WorkLimits& limits) const {
  ParsedRequest parsed;
  TextRequest asked{.prompt = std::move(messages), .session = id_, .prefix = PrefixWish::kOff};
  if (validate(std::move(asked), model_->text, limits, &parsed)) return false;
  const Request& request = parsed.request;
  if (begin) return request.prompt.refusal.empty();
  return request.continued_prompt && request.continued_prompt->refusal.empty();
}

Conversation Responses::conversation(std::vector<ChatMessage> messages) const {
  return {.messages = std::move(messages), .tools_json = tools_, .variables_json = variables_};
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

// The session that it runs on: what is not kept needs one only to go on from another.

void Responses::prepare(std::vector<TextRequest>* asked, Go go) {
  asked_ = &asked->front();
  if (!keeps_state_ && !goes_on_) return go({});
  make_session(std::move(go));
}

void Responses::make_session(Go go) {
  SessionCommand command{.kind = Kind::kOpen, .caller = caller_, .name = kept_name(id_)};
  if (goes_on_) {
    command.kind = Kind::kFork;
    command.name = kept_name(previous_->id);
    command.other = kept_name(id_);
  }
  command.done = [this, go](SessionResult result) {
    core_.delivery_threads.post(
        [this, go, result = std::move(result)] { session_made(result, go); });
  };
  if (const Refused refused = post(model_->queue, std::move(command))) go(refused);
}

// Where there is no room, older responses go; where the other's state has gone, its messages do.
void Responses::session_made(const SessionResult& result, Go go) {
  if (result.reason == EndReason::kDone) {
    has_session_ = true;
    asked_->session = id_;
    asked_->session_is_kept = true;
    return go({});
  }
  if (goes_on_ && result.reason == EndReason::kNoSession) {
    goes_on_ = false;
    asked_->prompt = whole_conversation();
    return go({});
  }
  if (row_of(result.reason).code == Code::kResourceExhausted) {
    const auto spared = goes_on_ ? previous_->id : std::string();
    if (const auto oldest = store_.erase_oldest(caller_.tenant, spared)) {
      close_kept(*model_, caller_.tenant, *oldest);
      return make_session(std::move(go));
    }
    return go(Refusal{.reason = EndReason::kExhausted,
                      .message = fmt::format("there is no room to keep the response: {}; or send "
                                             "store: false",
                                             result.message)});
  }
  go(refusal_of(result));
}

// What is said.

std::string Responses::take(size_t, const AnswerEvent& event) {
  return std::visit([&](const auto& of) { return write(of); }, event);
}

std::string Responses::event(const char* type, json fields) {
  fields["type"] = type;
  fields["sequence_number"] = events_++;
  return fmt::format("event: {}\ndata: {}\n\n", type, dump(fields));
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
    if (delta.logprobs) fresh.push_back(chat_logprob(token, *model_->text.tokenizer));
  }
  std::string events = items_.add_text(delta.text, std::move(fresh));
  for (const ToolCallPart& call : delta.calls) events += items_.add_call(call);
  return events;
}

std::string Responses::write(const AnswerEnd& end) {
  accepted_.prompt_tokens = end.usage.prompt_tokens;
  spared_ = end.usage.prefix.tokens;
  generated_ = end.usage.generated_tokens;
  const ChoiceEnd& choice = end.choices.front();
  if (choice.reason == EndReason::kLength) {
    cut_by_ = "max_output_tokens";
  } else if (choice.cut_call) {
    cut_by_ = "stop";
  }
  const bool whole = cut_by_ == nullptr;
  status_ = whole ? "completed" : "incomplete";
  std::string events = items_.end(status_);
  if (stores_) keep();
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

// What the conversation's state, or another prompt that began alike, had absorbed before counts as
// cached.
json Responses::usage() const {
  const int64_t input = accepted_.session_position + accepted_.prompt_tokens;
  return {{"input_tokens", input},
          {"input_tokens_details",
           {{"cached_tokens", accepted_.session_position + spared_}, {"cache_write_tokens", 0}}},
          {"output_tokens", generated_},
          {"output_tokens_details", {{"reasoning_tokens", 0}}},
          {"total_tokens", input + generated_}};
}

json Responses::object() const {
  const std::string_view status = status_;
  const bool begun = status == "in_progress";
  json object = said_;
  object["id"] = id_;
  object["object"] = "response";
  object["created_at"] = static_cast<int64_t>(created_);
  object["model"] = model_->info.model_name;
  object["status"] = status;
  object["background"] = false;
  object["error"] = nullptr;
  object["incomplete_details"] = nullptr;
  if (cut_by_ != nullptr) object["incomplete_details"] = {{"reason", cut_by_}};
  object["output"] = begun ? json::array() : items_.list();
  object["usage"] = begun ? json(nullptr) : usage();
  return object;
}

void Responses::keep() {
  std::vector<ChatMessage> messages = std::move(input_);
  ChatMessage& answer =
      messages.emplace_back(ChatMessage{.role = "assistant", .content = items_.text()});
  if (const auto calls = items_.calls(); !calls.empty()) {
    answer.fields_json = dump(ClientJson{{"tool_calls", calls}});
  }
  kept_ = true;
  const TenantId owner = group_of(caller_.share());
  auto turn = store_.make_turn(owner, previous_ != nullptr ? previous_->turn : nullptr,
                               std::move(messages));
  const auto gone = store_.put(
      caller_.tenant, owner,
      {.id = id_, .object = object(), .turn = std::move(turn), .definition = definition_});
  for (const auto& [tenant, id] : gone) close_kept(*model_, tenant, id);
}

void Responses::ended(bool complete) {
  if (!has_session_ || (complete && kept_)) return;
  store_.erase(caller_.tenant, id_);
  close_kept(*model_, caller_.tenant, id_);
}

// What is kept.

Refused find_response(const HttpRequest& request, ServedModel& model, ResponseStore& store,
                      json* object) {
  const std::string& id = request.names.front();
  const auto found = store.find(request.caller.tenant, id, model.info.default_ttl_seconds);
  if (found == nullptr) return unknown(id);
  *object = found->object;
  return {};
}

Refused delete_response(const HttpRequest& request, ServedModel& model, ResponseStore& store,
                        json* object) {
  const std::string& id = request.names.front();
  if (!store.erase(request.caller.tenant, id)) return unknown(id);
  close_kept(model, request.caller.tenant, id);
  *object = {{"id", id}, {"object", "response"}, {"deleted", true}};
  return {};
}

}  // namespace recurve
