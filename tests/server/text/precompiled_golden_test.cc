// Normalizers of type Precompiled and Nmt against Hugging Face's `tokenizers`:
// tests/golden/tokenizer/precompiled.json.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "server/text/normalizers/normalizer_chain.h"
#include "server/text/tokenizers/tokenizer_json.h"
#include "tests/server/text/data.h"

namespace recurve::precompiled_golden_test {

using Json = nlohmann::json;

const Json& golden() {
  static const Json json =
      Json::parse(testing::read_text(testing::golden_tokenizer_dir() / "precompiled.json"));
  return json;
}

TEST(PrecompiledGolden, SameText) {
  for (const Json& one : golden()["normalizers"]) {
    const NormalizerChain chain = read_normalizer(&one["normalizer"]);
    for (size_t i = 0; i < golden()["texts"].size(); ++i) {
      SCOPED_TRACE(golden()["texts"][i]);
      EXPECT_EQ(chain.normalize(golden()["texts"][i].get<std::string>()),
                one["normalized"][i].get<std::string>())
          << one["name"];
    }
  }
}

TEST(PrecompiledGolden, SameIds) {
  const auto tokenizer = parse_tokenizer_json(golden()["tokenizer"].dump(), "golden");
  for (size_t i = 0; i < golden()["texts"].size(); ++i) {
    SCOPED_TRACE(golden()["texts"][i]);
    EXPECT_EQ(tokenizer->encode(golden()["texts"][i].get<std::string>()),
              golden()["ids"][i].get<std::vector<int32_t>>());
  }
}

// All texts as one, in parts of one character to some hundred; what waits is never more than what
// is left of one cluster.
TEST(PrecompiledGolden, TheSameInParts) {
  std::string all;
  for (const Json& text : golden()["texts"]) all += text.get<std::string>();
  std::mt19937 random(5);
  for (const Json& one : golden()["normalizers"]) {
    const NormalizerChain chain = read_normalizer(&one["normalizer"]);
    Normalization parts(chain, TextPosition::kStart, {});
    std::string normalized;
    for (std::string_view rest = all; !rest.empty();) {
      size_t size = std::min<size_t>(rest.size(), 1 + random() % (random() % 2 == 0 ? 300 : 3));
      while (size < rest.size() && (rest[size] & 0xC0) == 0x80) ++size;
      normalized += parts.push(rest.substr(0, size), /*last=*/false);
      EXPECT_LE(parts.held(), 5u);
      rest.remove_prefix(size);
    }
    normalized += parts.push("", /*last=*/true);
    EXPECT_EQ(normalized, chain.normalize(all)) << one["name"];
  }
}

Json charsmap(const std::string& base64) {
  return {{"type", "Precompiled"}, {"precompiled_charsmap", base64}};
}

TEST(CharsMap, BrokenOnesAreRefused) {
  const auto refusal = [](const std::string& base64) -> std::string {
    const Json json = charsmap(base64);
    try {
      read_normalizer(&json);
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "accepted";
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), text.npos) << text;
  };
  has(refusal(""), "its trie has 0 bytes");
  has(refusal("AAA"), "base64");
  has(refusal("A*AA"), "base64");
  has(refusal("/////w=="), "its trie has 4294967295 bytes, the whole map 4");
  has(refusal(std::string(6 << 20, 'A')), "more than");
}

// Whatever the bytes are, a map is refused or works.
TEST(CharsMap, DamagedOnesAreRefusedOrWork) {
  static constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto whole =
      golden()["normalizers"][1]["normalizer"]["precompiled_charsmap"].get<std::string>();
  std::mt19937 random(6);
  int refused = 0;
  for (int run = 0; run < 500; ++run) {
    std::string damaged = whole;
    for (int i = 0; i < 1 + run % 20; ++i) {
      damaged[8 + random() % (damaged.size() - 16)] = kAlphabet[random() % kAlphabet.size()];
    }
    const Json json = charsmap(damaged);
    try {
      const NormalizerChain chain = read_normalizer(&json);
      for (const Json& text : golden()["texts"]) chain.normalize(text.get<std::string>());
    } catch (const std::runtime_error& e) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

}  // namespace recurve::precompiled_golden_test
