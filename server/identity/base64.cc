#include "server/identity/base64.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstdint>

namespace recurve {
namespace {

// Of a call of OpenSSL, which counts in int: multiples of 3 bytes, and of 4 characters.
constexpr size_t kBlock = size_t{3} << 20, kTextBlock = kBlock / 3 * 4;

const uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

}  // namespace

void append_base64(std::string_view bytes, std::string* to) {
  size_t at = to->size();
  to->resize(at + (bytes.size() + 2) / 3 * 4 + 1);  // and a final zero
  while (!bytes.empty()) {
    const std::string_view block = bytes.substr(0, kBlock);
    bytes.remove_prefix(block.size());
    at += static_cast<size_t>(EVP_EncodeBlock(reinterpret_cast<uint8_t*>(to->data() + at),
                                              bytes_of(block), static_cast<int>(block.size())));
  }
  to->pop_back();
}

std::optional<std::string> decoded_base64(std::string_view text) {
  const auto of_alphabet = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' ||
           c == '/';
  };
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  const std::string_view digits = text.substr(0, text.size() - padding);
  if (text.size() % 4 != 0 || !std::ranges::all_of(digits, of_alphabet)) return {};
  std::string bytes(text.size() / 4 * 3, '\0');
  for (size_t at = 0; !text.empty();) {
    const std::string_view block = text.substr(0, kTextBlock);
    text.remove_prefix(block.size());
    at += static_cast<size_t>(EVP_DecodeBlock(reinterpret_cast<uint8_t*>(bytes.data() + at),
                                              bytes_of(block), static_cast<int>(block.size())));
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

}  // namespace recurve
