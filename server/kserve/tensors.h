#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "kserve/v2/inference.pb.h"

namespace recurve {

// A tensor of requests or answers.
struct TensorSpec {
  std::string_view name;
  std::string_view datatype;  // in requests
  inference::DataType type;   // in configurations
  int64_t dimension;          // its only one; -1: any
};

inline constexpr TensorSpec kInputs[] = {
    {"text_input", "BYTES", inference::TYPE_STRING, 1},
    {"input_ids", "INT32", inference::TYPE_INT32, -1},  // instead of text_input
    {"stream", "BOOL", inference::TYPE_BOOL, 1},
    {"sampling_parameters", "BYTES", inference::TYPE_STRING, 1},  // an object of JSON
    {"exclude_input_in_output", "BOOL", inference::TYPE_BOOL, 1},
    {"return_finish_reason", "BOOL", inference::TYPE_BOOL, 1},
    {"return_cumulative_logprob", "BOOL", inference::TYPE_BOOL, 1},
    {"return_logprobs", "BOOL", inference::TYPE_BOOL, 1},
    {"return_num_input_tokens", "BOOL", inference::TYPE_BOOL, 1},
    {"return_num_output_tokens", "BOOL", inference::TYPE_BOOL, 1},
    {"return_output_ids", "BOOL", inference::TYPE_BOOL, 1},
};

// Each has one element per choice, except num_input_tokens with one and output_ids with one per
// token of the only choice.
inline constexpr TensorSpec kOutputs[] = {
    {"text_output", "BYTES", inference::TYPE_STRING, -1},
    {"finish_reason", "BYTES", inference::TYPE_STRING, -1},
    {"cumulative_logprob", "FP32", inference::TYPE_FP32, -1},
    {"logprobs", "BYTES", inference::TYPE_STRING, -1},
    {"num_input_tokens", "UINT32", inference::TYPE_UINT32, 1},
    {"num_output_tokens", "UINT32", inference::TYPE_UINT32, -1},
    {"output_ids", "INT32", inference::TYPE_INT32, -1},
};

// null: no tensor has that name.
template <size_t N>
const TensorSpec* find(const TensorSpec (&specs)[N], std::string_view name) {
  const auto* found = std::ranges::find(specs, name, &TensorSpec::name);
  return found == std::end(specs) ? nullptr : found;
}

// All names, for an error.
template <size_t N>
std::string names(const TensorSpec (&specs)[N]) {
  std::string all;
  for (const TensorSpec& spec : specs) all += (all.empty() ? "" : ", ") + std::string(spec.name);
  return all;
}

// One input of a request with its values. All methods throw a Refusal with kInvalid if the input is
// not as expected.
class InputTensor {
 public:
  // raw: its entry of raw_input_contents; null: its values are in the input. Both outlive it.
  // Refuses an unknown input, and another type or shape.
  InputTensor(inference::ModelInferRequest::InferInputTensor& input, std::string* raw);

  const std::string& name() const { return input_.name(); }

  // Each for its type in kInputs.
  bool flag() const;                 // BOOL
  std::string text();                // BYTES, moved out; UTF-8
  std::vector<int32_t> ids() const;  // INT32

 private:
  void check_count(int got) const;
  void check_bytes(size_t wanted) const;

  inference::ModelInferRequest::InferInputTensor& input_;
  std::string* const raw_;
  int64_t elements_ = 0;
};

}  // namespace recurve
