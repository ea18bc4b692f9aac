#pragma once
#include <string>
#include <vector>

#include "server/http/openai/choices.h"

namespace recurve {

// /v1/completions: answers to one prompt or to several, each with its own choices, in the order of
// the prompts. With echo, a choice's text and log-probabilities begin with those of the prompt.
class Completions final : public Choices {
 public:
  Completions(ServerCore& core, const HttpRequest& request) : Choices(core, request) {}

  Refused read(std::string text, const WorkLimits& limits,
               std::vector<TextRequest>* asked) override;
  std::optional<GatheredForm> gathers() const override;

 private:
  // The prompt at the beginning of a choice.
  struct Echo {
    std::string text = {};
    std::vector<int32_t> ids = {};          // of the prompt as the client has it, without BOS
    std::vector<SampledToken> scored = {};  // of the absorbed ids, from the second on
  };

  const char* id_prefix() const override { return "cmpl-"; }
  const char* object_name() const override { return "text_completion"; }
  nlohmann::json part(const Part& of, nlohmann::json logprobs) const override;
  void add_logprobs(const SampledToken& token, size_t offset, nlohmann::json* to) const override;
  void add_scored(size_t index, const std::vector<SampledToken>& tokens) override;
  std::string begin_answers(size_t index) override;

  Refused read_echo(const WorkLimits& limits, TextRequest* asked);
  void write_echo(const Echo& echo, Choice* choice, nlohmann::json* logprobs) const;

  bool logprobs_ = false;
  std::vector<Echo> echoes_;  // a request; empty: no echo
};

// /v1/chat/completions: answers to messages.
class ChatCompletions final : public Choices {
 public:
  ChatCompletions(ServerCore& core, const HttpRequest& request) : Choices(core, request) {}

  Refused read(std::string text, const WorkLimits& limits,
               std::vector<TextRequest>* asked) override;

 private:
  const char* id_prefix() const override { return "chatcmpl-"; }
  const char* object_name() const override {
    return form_.stream ? "chat.completion.chunk" : "chat.completion";
  }
  nlohmann::json part(const Part& of, nlohmann::json logprobs) const override;
  nlohmann::json calls_of(const std::vector<ToolCallPart>& calls) const;
  void add_logprobs(const SampledToken& token, size_t offset, nlohmann::json* to) const override;
};

}  // namespace recurve
