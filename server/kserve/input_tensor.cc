#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "server/kserve/tensors.h"
#include "server/request/refusal.h"
#include "server/text/utf8.h"

namespace recurve {
namespace {

static_assert(std::endian::native == std::endian::little, "raw contents are little-endian");

using Input = inference::ModelInferRequest::InferInputTensor;

// Nothing for an invalid shape, or one with more elements than fit a message.
std::optional<int64_t> elements_of(const Input& input) {
  constexpr int64_t kMost = int64_t{1} << 31;
  int64_t elements = 1;
  for (const int64_t size : input.shape()) {
    if (size < 0 || size > kMost) return {};
    elements *= size;
    if (elements > kMost) return {};
  }
  return elements;
}

template <typename... Args>
[[noreturn]] void refuse(const Input& input, fmt::format_string<Args...> format, Args&&... args) {
  throw invalid(input.name(), "{} {}", input.name(),
                fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace

InputTensor::InputTensor(Input& input, std::string* raw) : input_(input), raw_(raw) {
  const TensorSpec* spec = find(kInputs, input.name());
  if (spec == nullptr) {
    throw invalid(input.name(), "unknown input \"{}\", expected one of {}", cut(input.name()),
                  names(kInputs));
  }
  if (input.datatype() != spec->datatype) {
    refuse(input, "must be {}, got {}", spec->datatype, cut(input.datatype()));
  }
  if (input.parameters().contains("shared_memory_region")) {
    refuse(input, "must be in the message: shared memory is not supported");
  }
  const auto elements = elements_of(input);
  if (!elements) refuse(input, "has an invalid shape");
  elements_ = *elements;
  if (spec->dimension == 1 && elements_ != 1) {
    refuse(input, "must have one element, got {}", elements_);
  }
}

bool InputTensor::flag() const {
  if (raw_ == nullptr) {
    check_count(input_.contents().bool_contents_size());
    return input_.contents().bool_contents(0);
  }
  check_bytes(1);
  return raw_->front() != 0;
}

std::string InputTensor::text() {
  std::string text;
  if (raw_ == nullptr) {
    check_count(input_.contents().bytes_contents_size());
    text = std::move(*input_.mutable_contents()->mutable_bytes_contents(0));
  } else {
    uint32_t size = 0;
    if (raw_->size() >= sizeof size) std::memcpy(&size, raw_->data(), sizeof size);
    check_bytes(sizeof size + size);
    text = std::move(*raw_);
    text.erase(0, sizeof size);
  }
  if (!is_valid_utf8(text)) refuse(input_, "must be valid UTF-8");
  return text;
}

std::vector<int32_t> InputTensor::ids() const {
  if (raw_ == nullptr) {
    const auto& values = input_.contents().int_contents();
    check_count(values.size());
    return {values.begin(), values.end()};
  }
  check_bytes(static_cast<size_t>(elements_) * sizeof(int32_t));  // before the allocation
  std::vector<int32_t> ids(static_cast<size_t>(elements_));
  if (!ids.empty()) std::memcpy(ids.data(), raw_->data(), raw_->size());
  return ids;
}

void InputTensor::check_count(int got) const {
  if (got == elements_) return;
  refuse(input_, "must have the {} values of its shape, got {}", elements_, got);
}

void InputTensor::check_bytes(size_t wanted) const {
  if (raw_->size() == wanted) return;
  refuse(input_, "must have {} bytes in raw_input_contents, got {}", wanted, raw_->size());
}

}  // namespace recurve
