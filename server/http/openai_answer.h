#pragma once
#include <cstdint>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/openai_request.h"
#include "server/request/events.h"
#include "server/request/refusal.h"
#include "server/text/tokenizer.h"

namespace recurve {

// Writes an answer in the dialect of OpenAI's API: as server-sent events, or gathered in one
// object. One thread at a time.
class OpenAiAnswer {
 public:
  // The references outlive it.
  OpenAiAnswer(const OpenAiForm& form, const std::string& model, const Tokenizer& tokenizer)
      : form_(form), model_(model), tokenizer_(tokenizer), created_(std::time(nullptr)) {}

  // Takes what has come. Of a stream, what is to be sent for it.
  std::string take(const AnswerEvent& event);
  // What a stream ends with that could not be ended as it should.
  static std::string broken(const Refusal& refusal);
  // Without a stream: the whole, once the last event has been taken.
  std::string whole() const;

 private:
  // What is known of a choice so far.
  struct Choice {
    std::string text = {};
    nlohmann::json logprobs = nullptr;
    const char* finish_reason = nullptr;
    size_t offset = 0;  // of the next token in the text, in characters
  };

  std::string write(const RequestAccepted& accepted);
  std::string write(const PromptScored&) { return {}; }  // nothing asks for it
  std::string write(const AnswerDelta& delta);
  std::string write(const AnswerEnd& end);

  Choice& choice(int32_t index);
  nlohmann::json object() const;
  nlohmann::json usage() const;
  std::string event(nlohmann::json choices) const;
  nlohmann::json part(int32_t index, const std::string& text, nlohmann::json logprobs,
                      const char* finish_reason, bool first = false) const;
  std::string name_of(int32_t id) const;
  nlohmann::json chat_token(int32_t id, float logprob) const;
  void add_logprobs(const SampledToken& token, Choice& choice, nlohmann::json* to) const;

  const OpenAiForm& form_;
  const std::string& model_;
  const Tokenizer& tokenizer_;
  const std::time_t created_;
  RequestAccepted accepted_;
  int64_t generated_ = 0;
  std::vector<Choice> choices_;
};

// An error as an object of the dialect. field: what is wrong; empty: no one field.
nlohmann::json error_object(int status, const std::string& message, const std::string& field = {});
// A refusal as one.
nlohmann::json error_of(const Refusal& refusal);
// And its status.
int http_status(Refusal::Code code);

}  // namespace recurve
