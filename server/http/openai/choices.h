#pragma once
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/http/answer_dialect.h"
#include "server/http/exchange.h"
#include "server/http/openai/carried_state.h"
#include "server/http/openai/fields/request_fields.h"
#include "server/http/openai/logprobs.h"
#include "server/serving/server_core.h"

namespace recurve {

// The common part of completions and chat completions: answers are choices, as chunks of a stream
// or gathered in one object.
class Choices : public AnswerDialect {
 public:
  bool streams() const final { return form_.stream; }
  bool prepare(std::vector<TextRequest>*, std::function<void(Refused)> go) final {
    return state_.open(std::move(go));
  }
  bool complete(std::function<void(Refused)> go) final { return state_.take(std::move(go)); }
  void ended(bool) final { state_.close(); }
  std::string take(size_t index, const AnswerEvent& event) final;
  std::string stream_end() final;
  std::string broken(const Refusal& refusal) final;
  std::string whole() final;

 protected:
  // `core` outlives it.
  Choices(ServerCore& core, const HttpRequest& request)
      : core_(core),
        state_(core, request.caller),
        caller_(request.caller),
        session_(request.session),
        id_(request.request_id),
        created_(std::time(nullptr)) {}

  // A choice so far.
  struct Choice {
    std::string text = {}, reasoning = {};
    std::vector<ToolCallPart> calls = {};  // complete, except the last
    nlohmann::json logprobs = nullptr;
    const char* finish_reason = nullptr;
    size_t answer_offset = 0;  // of the answer in the text, in characters
    bool begun = false;        // something of it has been sent
  };

  // Where the two differ.
  virtual const char* id_prefix() const = 0;
  virtual const char* object_name() const = 0;
  // A choice for a response: all of it, or what is new of it in a stream.
  struct Part {
    size_t choice = 0;
    const std::string &text, &reasoning;
    const std::vector<ToolCallPart>& calls;
    const char* finish_reason = nullptr;
    bool first = true;
  };
  // logprobs: an object, or null.
  virtual nlohmann::json part(const Part& of, nlohmann::json logprobs) const = 0;
  // Appends a token to the logprobs of a choice, which are null before the first. `offset`: of its
  // text in the choice's, in characters.
  virtual void add_logprobs(const SampledToken& token, size_t offset, nlohmann::json* to) const = 0;
  // The scored tokens of request `index`'s prompt.
  virtual void add_scored(size_t, const std::vector<SampledToken>&) {}
  // Called before the first event of request `index`. Returns events that a stream sends first.
  virtual std::string begin_answers(size_t) { return {}; }

  // The first choice of request `index`.
  size_t first_choice(size_t index) const { return index * static_cast<size_t>(form_.choices); }
  std::string event(const nlohmann::json& choices) const;
  const Tokenizer& tokenizer() const { return *model_->text.tokenizer; }
  TokenNames names() const { return {tokenizer(), form_.tokens_as_ids}; }

  // Finds model_.
  ModelQuery query() { return {core_, &model_, caller_, session_}; }
  // Puts the requests that were read to the model, and the only one to a carried state.
  Refused apply_state(std::vector<TextRequest>* asked);

  const ServerCore& core_;
  FoundModel model_;  // once read
  OpenAiForm form_;
  CarriedState state_;
  const Identity caller_;
  const std::string session_;
  std::vector<Choice> choices_;            // of all requests; see allot()
  std::vector<RequestAccepted> accepted_;  // a request
  void allot(size_t requests);             // once read

 private:
  std::string write(size_t index, const RequestAccepted& accepted);
  std::string write(size_t index, const PromptScored& scored);
  std::string write(size_t, const PromptProgress&) { return {}; }
  std::string write(size_t index, const AnswerDelta& delta);
  std::string write(size_t index, const AnswerEnd& end);
  std::string begin_once(size_t index);
  nlohmann::json object() const;
  nlohmann::json usage() const;
  const std::string& constant_fields() const;

  const std::string id_;
  const std::time_t created_;
  std::vector<int64_t> generated_;  // tokens, a request
  std::vector<int64_t> thought_;    // of these, of reasoning; set at its end
  std::vector<int64_t> saved_;      // tokens of its prompt, by the prefix cache; set at its end
  std::vector<bool> begun_;         // a request
  mutable std::string constant_fields_;
};

// Assembles calls from their parts.
void add_calls(const std::vector<ToolCallPart>& parts, std::vector<ToolCallPart>* calls);

}  // namespace recurve
