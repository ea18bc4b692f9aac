#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "server/state/state_form.h"

namespace recurve::testing {

// `bytes` outlives the reader.
inline ReadAt reader_of(const std::string& bytes) {
  return [&bytes](uint64_t offset, std::span<std::byte> to) {
    ASSERT_LE(offset + to.size(), bytes.size()) << "reads only what is there";
    std::memcpy(to.data(), bytes.data() + offset, to.size());
  };
}

// The same with the checksum that its header must have.
inline std::string with_checksum(std::string bytes) {
  uint32_t header = 0;
  std::memcpy(&header, bytes.data() + 12, sizeof header);
  const uint64_t sum = checksum_of(bytes.substr(0, 24) + bytes.substr(32, header));
  std::memcpy(bytes.data() + 24, &sum, sizeof sum);
  return bytes;
}

}  // namespace recurve::testing
