#include "server/http/anthropic/messages.h"

#include <fmt/format.h>

#include <utility>

#include "server/http/anthropic/message_fields.h"
#include "server/http/body_fields.h"
#include "server/serving/chat_prompt.h"
#include "server/serving/gathered_answer.h"

namespace recurve {

using nlohmann::json;

namespace {

std::string event(std::string_view type, std::string_view fields) {
  return fmt::format("event: {0}\ndata: {{\"type\":\"{0}\"{1}{2}}}\n\n", type,
                     fields.empty() ? "" : ",", fields);
}

// Clients send it back with the thinking, and need one; this server does not check it.
constexpr std::string_view kSignature = "none";

// The names in the events of a block: of its kind.
struct DeltaNames {
  const char *type, *field;
};
constexpr DeltaNames kDeltaNames[] = {
    {"text_delta", "text"}, {"thinking_delta", "thinking"}, {"input_json_delta", "partial_json"}};

Conversation take_prompt(ClientJson& body, size_t bytes, const Thinking& thinking) {
  Conversation conversation = take_conversation(body, bytes);
  conversation.thinking = thinking.wanted;
  conversation.effort = effort_of(body);
  return conversation;
}

const char* stop_reason_of(const ChoiceEnd& end) {
  if (end.reason == EndReason::kLength || end.cut_call) return "max_tokens";
  if (end.tool_calls > 0) return "tool_use";
  return end.reason == EndReason::kStopString ? "stop_sequence" : "end_turn";
}

}  // namespace

Messages::Messages(const ServerCore& core, const HttpRequest& request)
    : core_(core),
      caller_(request.caller),
      session_(request.session),
      id_("msg_" + request.request_id) {}

Refused Messages::read(std::string text, const WorkLimits& limits,
                       std::vector<TextRequest>* asked) {
  const size_t bytes = text.size();
  const auto read = [&](ClientJson& body) {
    TextRequest& to = asked->emplace_back(TextRequest{.session = session_});
    to.is_chat = true;
    to.names = {.prompt = "messages", .stop_strings = "stop_sequences"};
    stream_ = bool_of(body, "stream").value_or(false);
    read_answer_fields(body, &to);
    to.tools = messages_tool_use(body);
    thinking_ = thinking_of(body);
    to.prompt = take_prompt(body, bytes, thinking_);
  };
  Refused refused = read_messages_body(std::move(text), limits, MessagesResource::kMessages,
                                       {core_, &model_, caller_, session_}, read);
  if (!refused) asked->front().model = model_;
  return refused;
}

std::string Messages::take(size_t, const AnswerEvent& event) {
  return std::visit([&](const auto& of) { return write(of); }, event);
}

std::string Messages::write(const RequestAccepted& accepted) {
  accepted_ = accepted;
  if (!stream_) return {};
  return event("message_start", fmt::format("\"message\":{}", object())) + event("ping", "");
}

// Appends to a block of text or thinking, which is begun if the last one is of another kind.
std::string Messages::add(Kind kind, const std::string& text) {
  if (text.empty()) return {};
  std::string events;
  if (blocks_.empty() || blocks_.back().kind != kind) events = open({.kind = kind});
  return events + add(text);
}

// Appends to the last block.
std::string Messages::add(std::string_view text) {
  Block& block = blocks_.back();
  block.text += text;
  if (!stream_) return {};
  const DeltaNames& names = kDeltaNames[static_cast<size_t>(block.kind)];
  return event("content_block_delta",
               fmt::format(R"("index":{},"delta":{{"type":"{}","{}":{}}})", blocks_.size() - 1,
                           names.type, names.field, dump(json(text))));
}

std::string Messages::open(Block block) {
  std::string events = close();
  json begun = {{"type", "text"}, {"text", ""}};
  if (block.kind == Kind::kThinking) {
    begun = {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
  } else if (block.kind == Kind::kCall) {
    begun = {
        {"type", "tool_use"}, {"id", block.id}, {"name", block.name}, {"input", json::object()}};
  }
  blocks_.push_back(std::move(block));
  if (!stream_) return {};
  return events + event("content_block_start", fmt::format(R"("index":{},"content_block":{})",
                                                           blocks_.size() - 1, dump(begun)));
}

std::string Messages::close() {
  if (!stream_ || blocks_.empty()) return {};
  std::string events;
  if (blocks_.back().kind == Kind::kThinking) {
    events =
        event("content_block_delta",
              fmt::format(R"("index":{},"delta":{{"type":"signature_delta","signature":"{}"}})",
                          blocks_.size() - 1, kSignature));
  }
  return events + event("content_block_stop", fmt::format("\"index\":{}", blocks_.size() - 1));
}

std::string Messages::write(const AnswerDelta& delta) {
  generated_ += static_cast<int64_t>(delta.tokens.size());
  std::string events;
  if (thinking_.shown == Thinking::Shown::kText) events = add(Kind::kThinking, delta.reasoning);
  const bool hides = thinking_.shown == Thinking::Shown::kEmpty && blocks_.empty();
  if (hides && !delta.reasoning.empty()) events = open({.kind = Kind::kThinking});
  events += add(Kind::kText, delta.text);
  for (const ToolCallPart& call : delta.calls) {
    if (!call.name.empty()) events += open({.kind = Kind::kCall, .id = call.id, .name = call.name});
    if (!call.arguments.empty()) events += add(call.arguments);
  }
  return events;
}

std::string Messages::write(const AnswerEnd& end) {
  accepted_.prompt_tokens = end.usage.prompt_tokens;
  saved_tokens_ = end.usage.prefix.tokens;
  generated_ = end.usage.generated_tokens;
  const ChoiceEnd& choice = end.choices.front();
  thought_ = choice.reasoning_tokens;
  stop_reason_ = stop_reason_of(choice);
  if (choice.reason == EndReason::kStopString) stop_sequence_ = choice.stop_string;
  std::string events = close();
  // Its arguments are no JSON. Who reads a stream knows it by the stop_reason.
  if (choice.cut_call && !blocks_.empty()) blocks_.pop_back();
  if (!stream_) return {};
  return events +
         event("message_delta",
               fmt::format(R"("delta":{{"stop_reason":"{}","stop_sequence":{}}},"usage":{})",
                           stop_reason_, dump(stop_sequence_), dump(usage()))) +
         event("message_stop", "");
}

std::string Messages::broken(const Refusal& refusal) {
  return fmt::format("event: error\ndata: {}\n\n", dump(error_of(refusal, anthropic_error)));
}

std::string Messages::whole() { return object(); }

// Tokens of a session's state, or of a shared prefix, count as read from the cache, and not as
// input.
json Messages::usage() const {
  return {{"input_tokens", accepted_.prompt_tokens - saved_tokens_},
          {"cache_read_input_tokens", accepted_.session_position + saved_tokens_},
          {"cache_creation_input_tokens", 0},
          {"output_tokens", generated_},
          {"output_tokens_details", {{"thinking_tokens", thought_}}}};
}

// The message, whose blocks are freed one by one. Arguments are copied as text: a client determines
// how deeply they are nested.
std::string Messages::object() {
  std::string message = fmt::format(R"({{"id":{},"type":"message","role":"assistant","model":{},)",
                                    dump(json(id_)), dump(json(model_.name())));
  size_t bytes = message.size() + 512;
  for (const Block& block : blocks_) {
    bytes += static_cast<size_t>(bytes_in_json(block.text)) + block.id.size() +
             2 * block.name.size() + 64;
  }
  message.reserve(bytes);
  message += "\"content\":[";
  for (Block& block : blocks_) {
    if (&block != &blocks_.front()) message += ',';
    if (block.kind != Kind::kCall) {
      const bool thinks = block.kind == Kind::kThinking;
      if (thinks) message += fmt::format(R"({{"signature":"{}",)", kSignature);
      message += thinks ? R"("type":"thinking","thinking":)" : R"({"type":"text","text":)";
      message += dump(json(std::move(block.text)));
    } else {
      message += fmt::format(R"({{"type":"tool_use","id":{},"name":{},"input":)",
                             dump(json(block.id)), dump(json(block.name)));
      const bool is_object = block.text.starts_with('{') && json::accept(block.text);
      message += is_object ? block.text : dump(json{{"arguments", std::move(block.text)}});
    }
    message += '}';
  }
  const std::string reason = stop_reason_ == nullptr ? "null" : fmt::format("\"{}\"", stop_reason_);
  message += fmt::format(R"(],"stop_reason":{},"stop_sequence":{},"usage":{}}})", reason,
                         dump(stop_sequence_), dump(usage()));
  return message;
}

Refused count_tokens(HttpRequest& request, const ServerCore& core, const WorkLimits& limits,
                     std::string* object) {
  const size_t bytes = request.body.size();
  Conversation conversation;
  FoundModel model;
  const auto read = [&](ClientJson& body) {
    (void)messages_tool_use(body);
    conversation = take_prompt(body, bytes, thinking_of(body));
  };
  Refused refused =
      read_messages_body(std::move(request.body), limits, MessagesResource::kCountTokens,
                         {core, &model, request.caller}, read);
  std::vector<int32_t> ids;
  if (!refused) {
    refused =
        read_messages(std::move(conversation), /*continued=*/false, model->text, limits, &ids);
  }
  if (!refused) *object = fmt::format("{{\"input_tokens\":{}}}", ids.size());
  return refused;
}

}  // namespace recurve
