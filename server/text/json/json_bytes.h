#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "server/text/work_limits.h"

namespace recurve {

// Values that JSON of so many bytes may have: lists, objects and what is in them. No honest message
// comes near it, and what is made of each value takes some hundred bytes.
constexpr size_t most_values(size_t bytes) { return (size_t{1} << 15) + bytes / 128; }

// The bytes of JSON for nlohmann's parser, which looks at the limits on its way through them.
class JsonBytes {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  static JsonBytes begin(std::string_view text, const WorkLimits& work) {
    return {text.data(), work};
  }
  static JsonBytes end(std::string_view text, const WorkLimits& work) {
    return {text.data() + text.size(), work};
  }
  reference operator*() const { return *at_; }
  JsonBytes& operator++() {
    if (reinterpret_cast<uintptr_t>(++at_) % kLookEvery == 0) work_->check();
    return *this;
  }
  bool operator==(const JsonBytes& other) const { return at_ == other.at_; }
  bool operator!=(const JsonBytes& other) const { return at_ != other.at_; }

 private:
  static constexpr uintptr_t kLookEvery = 1 << 16;
  JsonBytes(const char* at, const WorkLimits& work) : at_(at), work_(&work) {}
  const char* at_;
  const WorkLimits* work_;
};

}  // namespace recurve
