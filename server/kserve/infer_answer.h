#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kserve/v2/inference.pb.h"
#include "server/kserve/infer_request.h"
#include "server/serving/events.h"
#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// Writes an answer as the tensors that were asked for: gathered in one response, or what has come
// since the last. One thread at a time.
class InferAnswer {
 public:
  // The references outlive it.
  InferAnswer(const InferForm& form, const std::string& model, const Tokenizer& tokenizer);

  // Takes what has come. Of a stream, the response to be sent for it, if there is to be one.
  std::optional<inference::ModelInferResponse> take(const AnswerEvent& event);
  // Without a stream: the whole, once the last event has been taken.
  inference::ModelInferResponse whole() { return respond(/*last=*/true); }

 private:
  using Response = inference::ModelInferResponse;

  // Of one choice, since the last response but for what says otherwise.
  struct Choice {
    std::string text = {};
    std::vector<int32_t> ids = {};
    nlohmann::ordered_json logprobs = nullptr;
    double sum_logprob = 0;              // since the beginning
    const char* finish_reason = "None";  // so far
  };

  void add(const AnswerDelta& delta);
  nlohmann::ordered_json logprobs_of(const SampledToken& token) const;
  Response respond(bool last);
  template <typename T>
  void put(const char* name, const std::vector<T>& values, Response* to) const;

  const InferForm& form_;
  const std::string& model_;
  const Tokenizer& tokenizer_;
  uint32_t prompt_tokens_ = 0;
  std::vector<Choice> choices_;
};

}  // namespace recurve
