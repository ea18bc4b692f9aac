#pragma once
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/http/answer_dialect.h"
#include "server/http/exchange.h"
#include "server/http/openai/fields/request_fields.h"
#include "server/http/openai/responses/response_items.h"
#include "server/http/openai/responses/response_store.h"
#include "server/serving/server_core.h"

namespace recurve {

// /v1/responses: an answer that is stored, unless `store` is false, and from which conversations
// branch by `previous_response_id`.
//
// A stored response has an internal session, which nothing changes afterwards. A response that
// follows it forks the session and absorbs only what is new, if instructions and tools are the same
// and the chat template can continue. Otherwise the conversation is read from its stored messages;
// if the template cannot begin a session, only messages are stored.
class Responses final : public AnswerDialect {
 public:
  // The first two outlive it.
  Responses(ServerCore& core, ResponseStore& store, const HttpRequest& request);

  Refused read(std::string text, const WorkLimits& limits,
               std::vector<TextRequest>* asked) override;
  bool prepare(std::vector<TextRequest>* asked, std::function<void(Refused)> go) override;
  std::unique_ptr<ParsedRequest> take_parsed(size_t) override { return std::move(parsed_); }
  bool streams() const override { return form_.stream; }
  // The last event repeats the complete response.
  std::optional<GatheredForm> gathers() const override {
    return streams() ? kGatheredEvents : kGatheredResponse;
  }
  std::string take(size_t index, const AnswerEvent& event) override;
  std::string stream_end() override { return {}; }
  std::string broken(const Refusal& refusal) override;
  std::string whole() override;
  void ended(bool complete) override;

  // POST /v1/responses/input_tokens, instead of the others: the tokens of the input that a response
  // to the body would have, with those of the responses before it. Writes the object as JSON.
  Refused count_input(std::string text, const WorkLimits& limits, std::string* object);

 private:
  using Go = std::function<void(Refused)>;

  void read_fields(ClientJson& body, const std::string& adapter, size_t bytes);
  Refused read_previous(const std::string& id);
  Refused choose_prompt(const WorkLimits& limits, TextRequest* asked);
  Refused read_for_session(Conversation messages, bool begin, const WorkLimits& limits,
                           const TextRequest& asked);
  Conversation conversation(std::vector<ChatMessage> messages) const;
  Conversation whole_conversation() const;
  void open_session(Go go);
  void session_opened(const SessionResult& result, Go go);

  std::string write(const RequestAccepted& accepted);
  std::string write(const PromptScored&) { return {}; }
  std::string write(const PromptProgress&) { return {}; }
  std::string write(const AnswerDelta& delta);
  std::string write(const AnswerEnd& end);
  std::string event(const char* type, nlohmann::json fields);
  std::string text_event(const char* type, std::string_view fields);
  nlohmann::json object() const;
  nlohmann::json usage() const;
  void store_answer();

  ServerCore& core_;
  FoundModel model_;  // once read
  ResponseStore& store_;
  const Identity caller_;
  const std::string session_;  // of the header, which must have none
  const std::string id_;
  const std::time_t created_;
  OpenAiForm form_;

  // The request.
  nlohmann::json repeated_;       // the fields that the response repeats
  nlohmann::json ignored_tools_;  // until repeated_ has them
  bool stores_ = true;
  std::string instructions_, tools_, variables_, definition_;
  Conversation switches_;  // of the reasoning alone
  std::vector<ChatMessage> input_;
  std::shared_ptr<const StoredResponse> previous_;  // null: none
  bool continues_ = false;                          // the session of previous_
  bool begins_session_ = false;                     // from the beginning
  TextRequest* asked_ = nullptr;                    // until it begins
  std::unique_ptr<ParsedRequest> parsed_;           // of a session, until it begins

  // The response.
  bool has_session_ = false;
  bool stored_ = false;
  RequestAccepted accepted_;
  int64_t generated_ = 0, thought_ = 0;  // tokens; of these, of reasoning
  int64_t saved_tokens_ = 0;             // of the input, by the prefix cache; set at the end
  ResponseItems items_;
  const char* status_ = "in_progress";
  const char* incomplete_reason_ = nullptr;
  int64_t events_ = 0;
};

// Takes the messages for the chat template out of a body of `bytes`. Throws BadField for content
// that is neither text nor a call of a function.
std::vector<ChatMessage> take_messages_of_input(ClientJson& body, size_t bytes);
// The functions of `tools`, in the form of chat completions; empty: none.
std::string tools_of_response(const ClientJson& body);

// Removes the tools that are no functions from `tools` of a body, which may then be absent. Returns
// a list of their types and names: this server has no built-in tools, and the model can call no
// tool whose input is free text. Throws BadField.
nlohmann::json take_other_tools(ClientJson& body);

}  // namespace recurve
