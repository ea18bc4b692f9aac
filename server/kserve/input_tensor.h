#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kserve/v2/inference.pb.h"

namespace recurve {

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
