#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace recurve::testing {

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::filesystem::path golden_tokenizer_dir() {
  return std::filesystem::path(RECURVE_SOURCE_DIR) / "tests/golden/tokenizer";
}

// The folder of data that is not committed; tests that need it skip without it.
inline std::filesystem::path shared_data() {
  const char* folder = std::getenv("RECURVE_DATA");
  if (folder != nullptr) return folder;
  return std::filesystem::path(RECURVE_SOURCE_DIR).parent_path() / "shared/data";
}

}  // namespace recurve::testing

#define RECURVE_NEEDS_DATA(path)                                                    \
  if (!std::filesystem::exists(path)) {                                             \
    GTEST_SKIP() << (path) << " is not there; set RECURVE_DATA to the data folder"; \
  }
