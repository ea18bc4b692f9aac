#pragma once
#include <string>
#include <vector>

#include "server/http/openai/choices.h"

namespace recurve {

// /v1/chat/completions: answers to messages.
class ChatCompletions final : public Choices {
 public:
  ChatCompletions(const ServerCore& core, const HttpRequest& request)
      : Choices(core, request), session_(request.session) {}

  Refused read(std::string text, const WorkLimits& limits,
               std::vector<TextRequest>* asked) override;

 private:
  const char* id_prefix() const override { return "chatcmpl-"; }
  const char* object_name() const override {
    return form_.stream ? "chat.completion.chunk" : "chat.completion";
  }
  nlohmann::json part(const Part& of, nlohmann::json logprobs) const override;
  nlohmann::json calls_of(const std::vector<ToolCallPart>& calls) const;
  void add_logprobs(const SampledToken& token, const Choice& choice,
                    nlohmann::json* to) const override;

  const std::string session_;
};

}  // namespace recurve
