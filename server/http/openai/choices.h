#pragma once
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/http/answer_dialect.h"
#include "server/http/exchange.h"
#include "server/http/openai/fields/request_fields.h"
#include "server/serving/server_core.h"

namespace recurve {

// What completions and chat completions have in common: answers are choices, as chunks of a stream
// or gathered in one object.
class Choices : public AnswerDialect {
 public:
  bool streams() const final { return form_.stream; }
  std::string take(size_t index, const AnswerEvent& event) final;
  std::string stream_end() final;
  std::string broken(const Refusal& refusal) final;
  std::string whole() final;

 protected:
  // `core` outlives it.
  Choices(const ServerCore& core, const HttpRequest& request)
      : core_(core), id_(request.request_id), created_(std::time(nullptr)) {}

  // What is known of a choice so far.
  struct Choice {
    std::string text = {};
    std::vector<ToolCallPart> calls = {};  // whole ones, but for the last
    nlohmann::json logprobs = nullptr;
    const char* finish_reason = nullptr;
    size_t offset = 0;   // of the next token in the text, in characters
    bool begun = false;  // something of it has been sent
  };

  // What the two say differently.
  virtual const char* id_prefix() const = 0;
  virtual const char* object_name() const = 0;
  // What is said of a choice: all of it, or what is new of it in a stream.
  struct Part {
    size_t choice = 0;
    const std::string& text;
    const std::vector<ToolCallPart>& calls;
    const char* finish_reason = nullptr;
    bool first = true;
  };
  // logprobs: an object, or null.
  virtual nlohmann::json part(const Part& of, nlohmann::json logprobs) const = 0;
  // Appends a token to the logprobs of a choice, which are null before the first.
  virtual void add_logprobs(const SampledToken& token, const Choice& choice,
                            nlohmann::json* to) const = 0;
  // The tokens of request `index`'s prompt have been scored, as was asked for.
  virtual void add_scored(size_t, const std::vector<SampledToken>&) {}
  // Before the first that is said of request `index`'s answers. Of a stream, what is to be sent.
  virtual std::string begin_answers(size_t) { return {}; }

  // Of request `index`, the first of its choices.
  size_t first_choice(size_t index) const { return index * static_cast<size_t>(form_.choices); }
  std::string event(nlohmann::json choices) const;
  const Tokenizer& tokenizer() const { return *model_->text.tokenizer; }
  void advance(int32_t token, Choice* choice) const;

  const ServerCore& core_;
  const std::shared_ptr<ServedModel> model_ = core_.model();
  OpenAiForm form_;
  std::vector<Choice> choices_;            // of all requests; see allot()
  std::vector<RequestAccepted> accepted_;  // a request
  void allot(size_t requests);             // once read

 private:
  std::string write(size_t index, const RequestAccepted& accepted);
  std::string write(size_t index, const PromptScored& scored);
  std::string write(size_t index, const AnswerDelta& delta);
  std::string write(size_t index, const AnswerEnd& end);
  std::string begin_once(size_t index);
  nlohmann::json object() const;
  nlohmann::json usage() const;

  const std::string id_;
  const std::time_t created_;
  std::vector<int64_t> generated_;  // tokens, a request
  std::vector<int64_t> spared_;  // of its prompt, by what another one had left; once it has ended
  std::vector<bool> begun_;      // a request
};

// Puts parts together to calls.
void add_calls(const std::vector<ToolCallPart>& parts, std::vector<ToolCallPart>* calls);

// An event of a stream.
std::string sse(const nlohmann::json& value);

}  // namespace recurve
