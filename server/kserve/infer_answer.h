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

// Converts an answer to the requested tensors: all in one response, or in a stream those since the
// last response. One thread at a time.
class InferAnswer {
 public:
  // The references outlive it.
  InferAnswer(const InferForm& form, const std::string& model, const Tokenizer& tokenizer);

  // Adds an event. In a stream, returns the response to send for it, if any.
  std::optional<inference::ModelInferResponse> take(const AnswerEvent& event);
  // Without a stream: the response, after the last event.
  inference::ModelInferResponse whole() { return respond(/*last=*/true); }

 private:
  using Response = inference::ModelInferResponse;

  // One choice: what was added since the last response, except where noted.
  struct Choice {
    std::string text = {};
    std::vector<int32_t> ids = {};
    nlohmann::ordered_json logprobs = nullptr;
    double sum_logprob = 0;              // of the whole answer
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
