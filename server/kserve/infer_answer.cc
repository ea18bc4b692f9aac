#include "server/kserve/infer_answer.h"

#include <cmath>
#include <type_traits>
#include <utility>

#include "server/kserve/tensors.h"

namespace recurve {
namespace {

using nlohmann::ordered_json;  // the sampled token precedes the other candidates

// JSON has no infinity; other servers write this value.
double finite(float logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

std::string dump(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// As bytes; a text follows its length.
template <typename T>
std::string raw_of(const std::vector<T>& values) {
  std::string raw;
  const auto append = [&](const void* bytes, size_t size) {
    raw.append(static_cast<const char*>(bytes), size);
  };
  for (const T& value : values) {
    if constexpr (std::is_same_v<T, std::string>) {
      const auto size = static_cast<uint32_t>(value.size());
      append(&size, sizeof size);
      append(value.data(), value.size());
    } else {
      append(&value, sizeof value);
    }
  }
  return raw;
}

void fill(const std::vector<std::string>& values, inference::InferTensorContents* to) {
  for (const std::string& value : values) to->add_bytes_contents(value);
}
void fill(const std::vector<float>& values, inference::InferTensorContents* to) {
  to->mutable_fp32_contents()->Add(values.begin(), values.end());
}
void fill(const std::vector<uint32_t>& values, inference::InferTensorContents* to) {
  to->mutable_uint_contents()->Add(values.begin(), values.end());
}
void fill(const std::vector<int32_t>& values, inference::InferTensorContents* to) {
  to->mutable_int_contents()->Add(values.begin(), values.end());
}

}  // namespace

InferAnswer::InferAnswer(const InferForm& form, const std::string& model,
                         const Tokenizer& tokenizer)
    : form_(form), model_(model), tokenizer_(tokenizer), choices_(form.choices) {
  for (Choice& choice : choices_) choice.text = form.prefix;
}

std::optional<inference::ModelInferResponse> InferAnswer::take(const AnswerEvent& event) {
  if (const auto* accepted = std::get_if<RequestAccepted>(&event)) {
    prompt_tokens_ = static_cast<uint32_t>(accepted->prompt_tokens);
    return {};
  }
  const auto* end = std::get_if<AnswerEnd>(&event);
  if (const auto* delta = std::get_if<AnswerDelta>(&event)) add(*delta);
  for (size_t c = 0; end != nullptr && c < end->choices.size(); ++c) {
    choices_[c].finish_reason = row_of(end->choices[c].reason).finish_reason;
  }
  if (!form_.stream) return {};
  return respond(/*last=*/end != nullptr);
}

void InferAnswer::add(const AnswerDelta& delta) {
  Choice& choice = choices_[static_cast<size_t>(delta.choice)];
  choice.text += delta.text;
  for (const SampledToken& token : delta.tokens) {
    choice.ids.push_back(token.id);
    if (!delta.logprobs) continue;
    choice.sum_logprob += static_cast<double>(token.logprob);
    if (form_.outputs.logprobs) choice.logprobs.push_back(logprobs_of(token));
  }
}

// By token id: the sampled token, and the most likely ones with their ranks.
ordered_json InferAnswer::logprobs_of(const SampledToken& token) const {
  const auto entry = [&](int32_t id, float logprob) -> ordered_json {
    return {{"logprob", finite(logprob)}, {"decoded_token", tokenizer_.token_bytes(id)}};
  };
  ordered_json all = ordered_json::object();
  all[std::to_string(token.id)] = entry(token.id, token.logprob);
  int rank = 0;
  for (const TokenLogprob& candidate : token.top) {
    ordered_json& one = all[std::to_string(candidate.id)] = entry(candidate.id, candidate.logprob);
    one["rank"] = ++rank;
  }
  return all;
}

template <typename T>
void InferAnswer::put(const char* name, const std::vector<T>& values, Response* to) const {
  auto* output = to->add_outputs();
  output->set_name(name);
  output->set_datatype(std::string(find(kOutputs, name)->datatype));
  output->add_shape(static_cast<int64_t>(values.size()));
  if (form_.raw) {
    to->add_raw_output_contents(raw_of(values));
  } else {
    fill(values, output->mutable_contents());
  }
}

InferAnswer::Response InferAnswer::respond(bool last) {
  Response response;
  response.set_model_name(model_);
  response.set_model_version(kModelVersion);
  response.set_id(form_.id);
  // Tells clients of a stream whether this is the request's last response.
  (*response.mutable_parameters())["triton_final_response"].set_bool_param(last);

  std::vector<std::string> texts, reasons, logprobs;
  std::vector<float> sums;
  std::vector<uint32_t> tokens;
  for (Choice& choice : choices_) {
    texts.push_back(std::exchange(choice.text, {}));
    reasons.push_back(choice.finish_reason);
    logprobs.push_back(dump(std::exchange(choice.logprobs, nullptr)));
    sums.push_back(static_cast<float>(choice.sum_logprob));
    tokens.push_back(static_cast<uint32_t>(choice.ids.size()));
  }
  const InferOutputs& wanted = form_.outputs;
  if (wanted.text) put("text_output", texts, &response);
  if (wanted.finish_reason) put("finish_reason", reasons, &response);
  if (wanted.cumulative_logprob) put("cumulative_logprob", sums, &response);
  if (wanted.logprobs) put("logprobs", logprobs, &response);
  if (wanted.num_input_tokens) {
    put("num_input_tokens", std::vector<uint32_t>{prompt_tokens_}, &response);
  }
  if (wanted.num_output_tokens) put("num_output_tokens", tokens, &response);
  if (wanted.ids) put("output_ids", choices_.front().ids, &response);
  for (Choice& choice : choices_) choice.ids.clear();
  return response;
}

}  // namespace recurve
