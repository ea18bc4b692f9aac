#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/text/stream_decoder.h"
#include "server/text/tokenizers/tokenizer.h"
#include "server/text/utf8.h"
#include "tests/server/text/data.h"

namespace recurve::testing {

inline std::string from_hex(const std::string& digits) {
  std::string bytes;
  for (size_t at = 0; at < digits.size(); at += 2) {
    bytes.push_back(static_cast<char>(std::stoi(digits.substr(at, 2), nullptr, 16)));
  }
  return bytes;
}

// The text in parts of so many characters.
inline std::vector<int32_t> encode_in_parts(const Tokenizer& tokenizer, std::string_view text,
                                            size_t characters) {
  const auto encoder = tokenizer.encoder(SpecialTokens::kAsText, TextPosition::kStart);
  std::vector<int32_t> ids;
  while (!text.empty()) {
    size_t end = 0;
    for (size_t count = 0; count < characters && end < text.size(); ++count) {
      do ++end;
      while (end < text.size() && is_continuation(text[end]));
    }
    encoder->push(text.substr(0, end), false, &ids);
    text.remove_prefix(end);
  }
  encoder->push({}, true, &ids);
  return ids;
}

// What make_golden.py has written of the package's tokenizer. folder: with expected.json.
inline void expect_as_the_package(const Tokenizer& tokenizer, const std::filesystem::path& folder) {
  const auto expected = nlohmann::json::parse(read_text(folder / "expected.json"));
  ASSERT_GT(expected["bytes"].size(), 256u);
  int32_t largest = 0;
  for (const auto& [id, hex] : expected["bytes"].items()) {
    const int32_t number = std::stoi(id);
    largest = std::max(largest, number);
    ASSERT_EQ(tokenizer.token_bytes(number), from_hex(hex.get<std::string>())) << id;
    ASSERT_FALSE(tokenizer.is_special(number)) << id;
  }
  EXPECT_EQ(tokenizer.size(), largest + 1);
  size_t count = 0;
  for (const auto& pair : expected["texts"]) {
    const auto text = pair[0].get<std::string>();
    const auto ids = pair[1].get<std::vector<int32_t>>();
    ASSERT_EQ(tokenizer.encode(text), ids) << text;
    ASSERT_EQ(decode(tokenizer, ids), text);
    ASSERT_EQ(encode_in_parts(tokenizer, text, 1 + count++ % 5), ids) << text;
  }
  ASSERT_GT(count, 500u);
}

}  // namespace recurve::testing
