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

// /v1/responses: an answer that is kept, unless `store` is false, and from which conversations
// branch by `previous_response_id`.
//
// A response that is kept is a session of the server's own, which nothing changes afterwards. One
// that follows it is a fork, which absorbs only what is new, where instructions and tools are the
// same and the chat template can go on. Otherwise the conversation is read anew from its messages,
// which are kept too; of a template that no session can begin with, they are all that is kept.
class Responses final : public AnswerDialect {
 public:
  // The first two outlive it.
  Responses(ServerCore& core, ResponseStore& store, const HttpRequest& request);

  Refused read(std::string text, const WorkLimits& limits,
               std::vector<TextRequest>* asked) override;
  void prepare(std::vector<TextRequest>* asked, std::function<void(Refused)> go) override;
  bool streams() const override { return form_.stream; }
  // The last event has all of it.
  std::optional<GatheredForm> gathers() const override {
    return streams() ? kGatheredEvents : kGatheredResponse;
  }
  std::string take(size_t index, const AnswerEvent& event) override;
  std::string stream_end() override { return {}; }
  std::string broken(const Refusal& refusal) override;
  std::string whole() override;
  void ended(bool complete) override;

 private:
  using Go = std::function<void(Refused)>;

  void read_fields(ClientJson& body, size_t bytes);
  Refused read_previous(const std::string& id);
  Refused choose_prompt(const WorkLimits& limits, TextRequest* asked);
  bool session_can(Conversation messages, bool begin, const WorkLimits& limits) const;
  Conversation conversation(std::vector<ChatMessage> messages) const;
  Conversation whole_conversation() const;
  void make_session(Go go);
  void session_made(const SessionResult& result, Go go);

  std::string write(const RequestAccepted& accepted);
  std::string write(const PromptScored&) { return {}; }
  std::string write(const AnswerDelta& delta);
  std::string write(const AnswerEnd& end);
  std::string event(const char* type, nlohmann::json fields);
  nlohmann::json object() const;
  nlohmann::json usage() const;
  void keep();

  ServerCore& core_;
  const std::shared_ptr<ServedModel> model_ = core_.model();
  ResponseStore& store_;
  const Identity caller_;
  const std::string session_;  // that the header names, which none can
  const std::string id_;
  const std::time_t created_;
  OpenAiForm form_;

  // What was asked.
  nlohmann::json said_;  // the fields that the answer repeats
  bool stores_ = true;
  std::string instructions_, tools_, variables_, definition_;
  std::vector<ChatMessage> input_;
  std::shared_ptr<const StoredResponse> previous_;  // null: none
  bool goes_on_ = false;                            // from the state of previous_
  bool keeps_state_ = false;                        // of its own, from the beginning
  TextRequest* asked_ = nullptr;                    // until it begins

  // What is said.
  bool has_session_ = false;
  bool kept_ = false;
  RequestAccepted accepted_;
  int64_t generated_ = 0;
  int64_t spared_ = 0;  // tokens of the input, by what another one had left; once it has ended
  ResponseItems items_;
  const char* status_ = "in_progress";
  const char* cut_by_ = nullptr;  // why the answer is incomplete
  int64_t events_ = 0;
};

// Takes the messages for the chat template out of a body of `bytes`. Throws BadField for content
// that is neither text nor a call of a function.
std::vector<ChatMessage> take_messages_of_input(ClientJson& body, size_t bytes);
// The functions of `tools`, in the form of chat completions; empty: none.
std::string tools_of_response(const ClientJson& body);

// GET and DELETE /v1/responses/ID.
Refused find_response(const HttpRequest& request, ServedModel& model, ResponseStore& store,
                      nlohmann::json* object);
Refused delete_response(const HttpRequest& request, ServedModel& model, ResponseStore& store,
                        nlohmann::json* object);

}  // namespace recurve
