// The tokenizer of xLSTM-7b and Mamba (GPT-NeoX) on real input.
#include <gtest/gtest.h>

#include <sstream>

#include "server/text/stream_decoder.h"
#include "server/text/tokenizers/tokenizer_json.h"
#include "tests/server/text/data.h"
#include "tests/support/amount.h"

namespace recurve::neox_test {

using Ids = std::vector<int32_t>;

class Neox : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto path = folder() / "gpt-neox-20B_tokenizer.json";
    RECURVE_NEEDS_DATA(path);
    static const auto loaded = parse_tokenizer_json(testing::read_text(path), path.string());
    tokenizer_ = loaded.get();
  }
  static std::filesystem::path folder() { return testing::shared_data() / "tokenizers"; }

  const Tokenizer* tokenizer_ = nullptr;
};

TEST_F(Neox, KnownFacts) {
  EXPECT_EQ(tokenizer_->size(), 50277);
  EXPECT_EQ(tokenizer_->description(), "byte-level BPE, 50277 tokens, 50009 merges");
  EXPECT_EQ(tokenizer_->id_of("<|endoftext|>"), 0);
  EXPECT_EQ(tokenizer_->bos_id(), 0);
  EXPECT_EQ(tokenizer_->eos_id(), 0);
  EXPECT_TRUE(tokenizer_->is_special(0));
  EXPECT_TRUE(tokenizer_->is_special(1));
  EXPECT_FALSE(tokenizer_->is_special(2));
  EXPECT_EQ(tokenizer_->token_bytes(2), "!");
  EXPECT_EQ(tokenizer_->token_bytes(50254), std::string(24, ' '));
  EXPECT_EQ(tokenizer_->token_bytes(50276), "  ");
  EXPECT_EQ(tokenizer_->encode(std::string(30, ' ')), (Ids{50254, 50272}));
  EXPECT_EQ(tokenizer_->encode("<|endoftext|>", SpecialTokens::kParse), Ids{0});
  EXPECT_GT(tokenizer_->encode("<|endoftext|>").size(), 1u);
}

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != text.npos;
       begin = end + separator.size()) {
    parts.push_back(text.substr(begin, end - begin));
  }
  parts.push_back(text.substr(begin));
  return parts;
}

TEST_F(Neox, AllOfTheMptTexts) {
  const auto input = folder() / "ggml-vocab-mpt.gguf.inp";
  RECURVE_NEEDS_DATA(input);
  const auto texts = split(testing::read_text(input), "\n__ggml_vocab_test__\n");
  const auto lines = split(testing::read_text(folder() / "ggml-vocab-mpt.gguf.out"), "\n");
  int right = 0;
  ASSERT_EQ(texts.size(), 47u);  // the last is empty: the file ends with a separator
  ASSERT_EQ(lines.size(), 47u);
  for (size_t i = 0; i < 46; ++i) {
    std::istringstream line(lines[i]);
    const Ids wanted{std::istream_iterator<int32_t>(line), {}};
    const Ids ids = tokenizer_->encode(texts[i]);
    EXPECT_EQ(ids, wanted) << texts[i];
    right += ids == wanted;
  }
  EXPECT_EQ(right, 46);
}

TEST_F(Neox, RoundTripOfBooks) {
  for (const char* name : {"tinyshakespeare.txt", "bronte.txt", "gutenberg-2600-war-and-peace.txt",
                           "wikitext-2-valid.txt"}) {
    const auto path = testing::shared_data() / "corpora" / name;
    RECURVE_NEEDS_DATA(path);
    const std::string text = to_valid_utf8(testing::read_text(path).substr(50'000, 300'000));
    const Ids ids = tokenizer_->encode(text);
    EXPECT_LT(ids.size(), text.size() / 2);
    EXPECT_EQ(decode(*tokenizer_, ids), text) << name;  // NFC already
  }
}

// Long words, runs and marks: a quadratic step would take minutes.
TEST_F(Neox, NoQuadraticTime) {
  constexpr size_t kSize = testing::amount(300'000, 60'000);
  const auto repeated = [](std::string_view unit) {
    std::string text;
    while (text.size() < kSize) text += unit;
    return text;
  };
  // U+0323 (class 220) and U+0301 (class 230) in the wrong order, which NFC sorts.
  for (const char* unit :
       {"a", " ", "\n", "\t ", "!", "0", "'", "ab", "<|endoftext", "\xC3\xA9", "\xCC\x81\xCC\xA3",
        "\xE1\x84\x92", "\xF0\x9F\xA6\x99", "\xE3\x80\x80"}) {
    const std::string text = repeated(unit);
    const Ids ids = tokenizer_->encode(text);
    EXPECT_GT(ids.size(), 0u);
    if (unit[0] == '\xCC') continue;  // other bytes after NFC
    EXPECT_EQ(decode(*tokenizer_, ids), text) << unit;
  }
}

}  // namespace recurve::neox_test
