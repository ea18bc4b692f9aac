// A text that comes in parts has the ids of the whole, wherever the parts end: every committed
// tokenizer and variant, and SentencePiece models of real checkpoints, on texts put together at
// random from what is hard about them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "server/text/sentencepiece/sentencepiece_tokenizer.h"
#include "server/text/tokenizers/tokenizer_json.h"
#include "server/text/utf8.h"
#include "tests/server/text/data.h"
#include "tests/support/amount.h"

namespace recurve::text_encoder_test {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

// What could be cut in the wrong place: runs, contractions, marks, jamos, spaces of every kind,
// control tokens and their beginnings.
const std::vector<std::string> kHard = {" ",
                                        "  ",
                                        "\n",
                                        "\r\n",
                                        "\t ",
                                        "\u00A0",
                                        "\u3000",
                                        "\u2028",
                                        "a",
                                        "It's",
                                        "they'll've",
                                        "'",
                                        "'r",
                                        "e",
                                        "1234567",
                                        "0",
                                        "!",
                                        "...",
                                        "?!",
                                        "$",
                                        "e\u0301",
                                        "\u0301\u0323",
                                        "\u0323",
                                        "\uAC00\u11A8",
                                        "\u1100",
                                        "\u1161",
                                        "\u11A8",
                                        "\uFB01",
                                        "\u212B",
                                        "\u0958",
                                        "\u09C7\u09BE",
                                        "\U0001F999",
                                        "\u4E2D\u6587",
                                        "\u3002",
                                        "\u0431\u0443\u043A\u0432\u0430",
                                        "<|endoftext|>",
                                        "<|endo",
                                        "<|",
                                        "<|padding|>",
                                        "<s>",
                                        "</s>",
                                        "<",
                                        "s>",
                                        "[INST]",
                                        "\u2581",
                                        "word",
                                        " Word",
                                        "        ",
                                        "\n\n\n",
                                        "_",
                                        "\u200D",
                                        "\u200C",
                                        "\u01C5",
                                        "\u00BD",
                                        "\u0130",
                                        "\u00DF",
                                        "\u017F",
                                        "<0x0A>",
                                        "http://x.y/z?a=b&c"};

class Source {
 public:
  explicit Source(uint32_t seed) : random_(seed) {}

  size_t below(size_t n) { return random_() % n; }

  // At least `size` bytes; sometimes a long run of one thing.
  std::string text(size_t size, const std::vector<std::string>& units) {
    std::string out;
    while (out.size() < size) {
      const std::string& unit = units[below(units.size())];
      const size_t times = below(200) == 0 ? 1 + below(3000) : below(8) == 0 ? 1 + below(5) : 1;
      for (size_t i = 0; i < times; ++i) out += unit;
      if (below(3) == 0) out += ' ';
    }
    return out;
  }
  // Parts of whole characters: some of a few bytes, some longer than what is read together.
  Ids in_parts(const Tokenizer& tokenizer, std::string_view text, SpecialTokens special,
               TextPosition position) {
    Ids ids;
    const auto encoder = tokenizer.encoder(special, position);
    while (!text.empty()) {
      const size_t size = below(4) == 0 ? below(7000) : below(40);
      const size_t part = utf8_prefix(text.substr(0, size)).whole;
      const bool last = part == text.size() && below(2) == 0;
      encoder->push(text.substr(0, part), last, &ids);
      text.remove_prefix(part);
      if (last) return ids;
    }
    encoder->push("", /*last=*/true, &ids);
    return ids;
  }

 private:
  std::mt19937 random_;
};

void expect_the_same_in_parts(const Tokenizer& tokenizer, const std::string& text, Source& source) {
  for (const auto special : {SpecialTokens::kAsText, SpecialTokens::kParse}) {
    for (const auto position : {TextPosition::kStart, TextPosition::kContinued}) {
      const Ids whole = tokenizer.encode(text, special, position);
      for (size_t run = 0; run < testing::amount(2, 1); ++run) {
        const Ids parts = source.in_parts(tokenizer, text, special, position);
        const auto differ = std::mismatch(whole.begin(), whole.end(), parts.begin(), parts.end());
        ASSERT_TRUE(whole == parts)
            << "from id " << differ.first - whole.begin() << " of " << whole.size();
      }
    }
  }
}

Json read_golden(const char* name) {
  return Json::parse(testing::read_text(testing::golden_tokenizer_dir() / name));
}

// The same as apply() in make_golden.py.
std::string patched(Json json, const Json& patch) {
  for (const auto& [key, value] : patch.items()) {
    if (key == "model") {
      json["model"].update(value);
    } else if (key == "more_added_tokens") {
      for (const Json& token : value) json["added_tokens"].push_back(token);
    } else if (key != "merges_as") {  // another spelling of the same
      json[key] = value;
    }
  }
  return json.dump();
}

TEST(TextEncoder, EveryGoldenVariant) {
  const Json base = read_golden("tokenizer.json"), expected = read_golden("expected.json");
  std::vector<std::string> units = kHard;
  for (const Json& text : expected["texts"]) units.push_back(text);
  std::erase_if(units, [](const std::string& unit) { return unit.size() > 500; });
  Source source(1);
  for (const Json& variant : expected["cases"]) {
    SCOPED_TRACE(variant["name"].get<std::string>());
    const auto tokenizer = parse_tokenizer_json(patched(base, variant["patch"]), "golden");
    expect_the_same_in_parts(*tokenizer, source.text(testing::amount(20'000, 2'000), units),
                             source);
    for (const Json& text : expected["texts"]) {
      expect_the_same_in_parts(*tokenizer, text.get<std::string>(), source);
    }
  }
}

TEST(TextEncoder, EveryTokenizerOfCharacters) {
  std::vector<std::string> units = kHard;
  for (const char* unit : {"a", "the", "th", "e", "0", "1", "\u00E9"}) units.push_back(unit);
  Source source(4);
  const Json expected = read_golden("characters.json");
  for (const Json& one : expected["cases"]) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const auto tokenizer = parse_tokenizer_json(one["tokenizer"].dump(), "golden");
    expect_the_same_in_parts(*tokenizer, source.text(20'000, units), source);
  }
}

TEST(TextEncoder, GptNeox) {
  const auto path = testing::shared_data() / "tokenizers/gpt-neox-20B_tokenizer.json";
  RECURVE_NEEDS_DATA(path);
  const auto tokenizer = parse_tokenizer_json(testing::read_text(path), path.string());
  Source source(2);
  for (int text = 0; text < 4; ++text) {
    const size_t size = testing::amount(50'000, 10'000);
    expect_the_same_in_parts(*tokenizer, source.text(size, kHard), source);
  }
}

// All text that waits is a few words' and what is read together, however long the text is.
TEST(TextEncoder, HoldsLittleOfATextOfWords) {
  const auto tokenizer = parse_tokenizer_json(read_golden("tokenizer.json").dump(), "golden");
  const auto encoder = tokenizer->encoder(SpecialTokens::kAsText, TextPosition::kStart);
  Ids ids;
  size_t most = 0;
  for (int i = 0; i < 100'000; ++i) {
    encoder->push("some words, and 12 more\n", false, &ids);
    most = std::max(most, encoder->held());
    ids.clear();
  }
  EXPECT_LT(most, 8192u);
}

// Parts of one byte: what waits must not be looked at again for each.
TEST(TextEncoder, AWordWithoutEndInTinyParts) {
  const auto tokenizer = parse_tokenizer_json(read_golden("tokenizer.json").dump(), "golden");
  const auto encoder = tokenizer->encoder(SpecialTokens::kAsText, TextPosition::kStart);
  Ids ids;
  for (int i = 0; i < 2'000'000; ++i) encoder->push("a", false, &ids);
  EXPECT_TRUE(ids.empty());
  EXPECT_EQ(encoder->held(), 2'000'000u);
  encoder->push("", true, &ids);
  EXPECT_EQ(ids, tokenizer->encode(std::string(2'000'000, 'a')));
}

class SentencePieceParts : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto path = testing::shared_data() / "tokenizers" / GetParam();
    RECURVE_NEEDS_DATA(path);
    tokenizer_ = parse_sentencepiece(testing::read_text(path), path.string());
  }
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(SentencePieceParts, HardTexts) {
  Source source(3);
  for (int text = 0; text < 3; ++text) {
    const size_t size = testing::amount(100'000, 20'000);
    expect_the_same_in_parts(*tokenizer_, source.text(size, kHard), source);
  }
}

TEST_P(SentencePieceParts, HoldsLittleOfATextOfWords) {
  const auto encoder = tokenizer_->encoder(SpecialTokens::kAsText, TextPosition::kStart);
  Ids ids;
  size_t most = 0;
  for (int i = 0; i < 20'000; ++i) {
    encoder->push("some words, and 12 more\n", false, &ids);
    most = std::max(most, encoder->held());
    ids.clear();
  }
  EXPECT_LT(most, 20'000u);
}

INSTANTIATE_TEST_SUITE_P(Models, SentencePieceParts,
                         ::testing::Values("mistral_tokenizer.model.v1",
                                           "mistral_instruct_tokenizer_240323.model.v3",
                                           "sentencepiece_test_model.model"),
                         [](const auto& info) { return "model" + std::to_string(info.index); });

}  // namespace recurve::text_encoder_test
