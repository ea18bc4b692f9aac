#pragma once
#include <string>
#include <string_view>

#include "kernels/formats/int4.h"
#include "kernels/formats/int8.h"
#include "kernels/formats/plain.h"

namespace recurve {

// Every format of weights there is: one line each. The reference computes with all of them; for
// other backends see LinearOp::packed in their tables.
inline constexpr const WeightFormat* kWeightFormats[] = {
    &kF32Weights,
    &kBf16Weights,
    &kInt8Weights,
    &kInt4Weights,
};

// The format of that name, or null.
inline const WeightFormat* find_weight_format(std::string_view name) {
  for (const WeightFormat* format : kWeightFormats) {
    if (format->name == name) return format;
  }
  return nullptr;
}

// "f32, bf16, ...", for messages.
inline std::string weight_format_names() {
  std::string names;
  for (const WeightFormat* format : kWeightFormats) {
    names += (names.empty() ? "" : ", ") + std::string(format->name);
  }
  return names;
}

}  // namespace recurve
