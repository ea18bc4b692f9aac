#include "server/text/json/read_file.h"

#include <fmt/core.h>

#include <fstream>
#include <stdexcept>

namespace recurve {
namespace {

constexpr uintmax_t kMaxFileBytes = 128u << 20;  // the largest public ones have 35 MB

}  // namespace

std::string read_text_file(const std::filesystem::path& path) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) throw std::runtime_error(fmt::format("{}: {}", path.string(), error.message()));
  if (size > kMaxFileBytes) {
    throw std::runtime_error(fmt::format("{}: a tokenizer file has at most {} bytes, found {}",
                                         path.string(), kMaxFileBytes, size));
  }
  std::string text(size, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(text.data(), static_cast<std::streamsize>(size))) {
    throw std::runtime_error(fmt::format("{}: cannot be read", path.string()));
  }
  return text;
}

}  // namespace recurve
