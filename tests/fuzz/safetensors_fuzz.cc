// Any bytes as a safetensors file: refused in one sentence, or tensors that lie in the data.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string_view>

#include "kernels/check.h"
#include "model/weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const recurve::SafetensorsHeader header = recurve::parse_safetensors(bytes, "fuzz");
    CHECK(header.data_begin <= size);
    uint64_t covered = 0;
    for (const recurve::SafetensorsEntry& entry : header.entries) {
      CHECK(entry.begin <= entry.end && entry.end <= size - header.data_begin);
      const auto count = recurve::checked_count(entry.shape);
      CHECK(count &&
            static_cast<uint64_t>(*count) * size_of(entry.type) == entry.end - entry.begin);
      covered += entry.end - entry.begin;
    }
    CHECK(covered == size - header.data_begin);
  } catch (const std::runtime_error& error) {
    const std::string_view sentence = error.what();
    CHECK(sentence.starts_with("fuzz: ") && sentence.size() < 2000);
    CHECK(sentence.find('\n') == sentence.npos);
  }
  return 0;
}
