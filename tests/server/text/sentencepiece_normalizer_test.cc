// SentencePiece models in other forms than those at hand: what is done to a text before it is cut,
// and pieces that a user has defined, against the library.
#include "server/text/sentencepiece/sentencepiece_normalizer.h"

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "server/text/sentencepiece/sentencepiece_model.h"
#include "server/text/sentencepiece/sentencepiece_tokenizer.h"
#include "server/text/utf8.h"
#include "tests/server/text/data.h"
#include "tests/support/amount.h"
#include "tests/support/temp_dir.h"

namespace recurve::sentencepiece_normalizer_test {

using Ids = std::vector<int32_t>;

// A field of a protobuf message that is bytes.
std::string field(int number, const std::string& bytes) {
  std::string out(1, static_cast<char>(number << 3 | 2));
  size_t size = bytes.size();
  for (; size >= 0x80; size >>= 7) out.push_back(static_cast<char>(size | 0x80));
  out.push_back(static_cast<char>(size));
  return out + bytes;
}

// The map of NFKC, from a model that has it.
std::string nfkc_map() {
  const auto path = testing::shared_data() / "tokenizers/sentencepiece_test_model.model";
  return std::string(read_sentencepiece_model(testing::read_text(path)).charsmap);
}

struct Change {
  bool rewrites, adds_prefix, collapses;  // what is done to a text
  bool defines;                           // pieces of a user's
  bool has_unused;                        // a piece that is none, which unigram models may have
};
Change change_of(int bits) {
  return {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0, (bits & 16) != 0};
}

// The bytes of a model with other settings and more pieces; `before`: what it is read as.
std::string changed(const std::string& model, const SentencePieceModel& before,
                    const Change& change) {
  const std::string flags = {3 << 3, static_cast<char>(change.adds_prefix), 4 << 3,
                             static_cast<char>(change.collapses)};
  std::string out = model + field(3, flags + field(2, change.rewrites ? nfkc_map() : ""));
  const auto add = [&](const std::string& name, PieceType type) {
    const auto has_name = [&](const auto& piece) { return piece.name == name; };
    if (std::any_of(before.pieces.begin(), before.pieces.end(), has_name)) return;
    out += field(1, field(1, name) + std::string{3 << 3, static_cast<char>(type)});
  };
  if (change.defines) {
    for (const char* name : {"[INST]", "abc", "abc de", "\u2460", "e\u0301\u2581x"}) {
      add(name, PieceType::kUserDefined);
    }
  }
  if (change.has_unused) add("\u2581ingthe", PieceType::kUnused);
  return out;
}

class Normalized : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const auto data = testing::shared_data() / "tokenizers";
    RECURVE_NEEDS_DATA(data / "sentencepiece_test_model.model");
    const auto demo = std::filesystem::path(RECURVE_SOURCE_DIR) / "weights_tools/demo/xlstm-books";
    const std::string& file = GetParam();
    bytes_ = testing::read_text((file == "tokenizer.model" ? demo : data) / file);
    model_ = read_sentencepiece_model(bytes_);
  }
  std::string bytes_;
  SentencePieceModel model_;
};

std::string random_text(std::mt19937& random) {
  static const std::vector<std::string> kUnits = {
      " ",          "  ",     "   ",    "\t",          "\n",           "\u3000",  "\u00A0",
      "\u2581",     "the ",   "ing",    "ab",          "abc de",       "a",       "Q",
      "7",          "-",      "--",     ".",           "\u00e9",       "e\u0301", "\u0301",
      "\uFB01",     "\u2460", "\u3300", "\uFF21",      "\uFF76\uFF9E", "\u1112",  "\u1161\u11AB",
      "\u200B",     "\x01",   "\u4e2d", "\u00AD",      "[INST]",       "[INS",    "<s>",
      "\U0001F999", "\uFDFA", "\u0958", "\u1E9B\u0323"};
  std::string text;
  for (uint32_t i = random() % 60; i > 0; --i) text += kUnits[random() % kUnits.size()];
  return text;
}

// Whole, and in parts of any size.
TEST_P(Normalized, RandomTextsEncodeAsTheLibrary) {
  std::mt19937 random(14);
  // Where less is tried, each setting is on and off.
  for (int how = 0; how < 32; how += testing::amount(1, 5)) {
    if (change_of(how).has_unused && model_.type == ModelType::kBpe) continue;
    const std::string bytes = changed(bytes_, model_, change_of(how));
    const auto tokenizer = parse_sentencepiece(bytes, "changed");
    sentencepiece::SentencePieceProcessor library;
    ASSERT_TRUE(library.LoadFromSerializedProto(bytes).ok());
    for (size_t run = 0; run < testing::amount(150, 20); ++run) {
      const std::string text = random_text(random);
      const Ids wanted = library.EncodeAsIds(text);
      ASSERT_EQ(tokenizer->encode(text), wanted) << how << ": " << text;
      Ids ids;
      const auto encoder = tokenizer->encoder(SpecialTokens::kAsText, TextPosition::kStart, {});
      for (size_t at = 0; at < text.size();) {
        const std::string_view rest = std::string_view(text).substr(at);
        const size_t size = std::max<size_t>(4, random() % 20);
        const std::string_view part = rest.substr(0, whole_characters(rest, size));
        encoder->push(part, false, &ids);
        at += part.size();
      }
      encoder->push({}, true, &ids);
      ASSERT_EQ(ids, wanted) << how << ", in parts: " << text;
    }
  }
}

// In blocks, and texts without a place to cut.
TEST_P(Normalized, LongStretchesEncodeAsTheLibrary) {
  std::mt19937 random(15);
  const std::string bytes = changed(bytes_, model_, change_of(15));
  const auto tokenizer = parse_sentencepiece(bytes, "changed");
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.LoadFromSerializedProto(bytes).ok());
  for (const std::vector<std::string>& alphabet : std::vector<std::vector<std::string>>{
           {"e", "n", "r"}, {"\uFF21", "\uFF42", "\u2460"}, {"a", "b"}, {" ", "e\u0301"}}) {
    std::string text;
    while (text.size() < testing::amount(60'000, 30'000)) {
      text += alphabet[random() % alphabet.size()];
    }
    EXPECT_TRUE(tokenizer->encode(text) == library.EncodeAsIds(text)) << alphabet[0];
  }
}

// The library cuts such a piece again.
TEST_P(Normalized, UnusedPiecesAreRefusedInBpe) {
  const std::string bytes = changed(bytes_, model_, change_of(31));
  const std::string message = error_of([&] { parse_sentencepiece(bytes, "changed"); });
  if (model_.type != ModelType::kBpe) {
    EXPECT_EQ(message, "");
  } else {
    EXPECT_NE(message.find("is of type UNUSED, which is not supported in BPE"), message.npos)
        << message;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Normalized,
                         ::testing::Values("tokenizer.model", "mistral_tokenizer.model.v1",
                                           "mistral_instruct_tokenizer_240323.model.v3",
                                           "sentencepiece_test_model.model"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

}  // namespace recurve::sentencepiece_normalizer_test
