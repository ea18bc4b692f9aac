// SentencePiece models of real checkpoints: encoding and decoding against the library's own.
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <filesystem>
#include <random>

#include "server/text/sentencepiece/sentencepiece_model.h"
#include "server/text/sentencepiece/sentencepiece_tokenizer.h"
#include "server/text/stream_decoder.h"
#include "server/text/utf8.h"
#include "tests/server/text/data.h"
#include "tests/support/amount.h"
#include "tests/support/temp_dir.h"

namespace recurve::sentencepiece_test {

using Ids = std::vector<int32_t>;

// What is known of each file (data/README.md; `spm_encode` of SentencePiece 0.1.97).
struct Known {
  std::string file;
  int32_t pieces;
  Ids hello_world;
  int32_t byte_zero;  // id of <0x00>, -1: no bytes
  LeadingSpace leading_space;
};

const std::vector<Known> kModels = {
    {"mistral_tokenizer.model.v1", 32000, {22557, 1526}, 3, LeadingSpace::kStripOnce},
    {"mistral_instruct_tokenizer_240323.model.v3",
     32768,
     {23325, 2294},
     771,
     LeadingSpace::kStripOnce},
    {"sentencepiece_test_model.model", 1000, {151, 88, 21, 887}, -1, LeadingSpace::kStripAll},
};

const std::vector<std::string> kTexts = {
    "",
    " ",
    "Hello world",
    " Hello",
    "  two  three ",
    "a\nb\r\n",
    "\xF0\x9F\xA6\x99 \xC3\xA9",
    "\xE4\xB8\xAD\xE6\x96\x87",
    "<s>[INST] a</s>",
    "1234 5.6",
    "\xE2\x96\x81mark",
    "tab\there",
    "I'm sure; they'll see...",
};

class SentencePiece : public ::testing::TestWithParam<Known> {
 protected:
  void SetUp() override {
    const auto path = testing::shared_data() / "tokenizers" / GetParam().file;
    RECURVE_NEEDS_DATA(path);
    bytes_ = testing::read_text(path);
    tokenizer_ = parse_sentencepiece(bytes_, GetParam().file);
    ASSERT_TRUE(library_.LoadFromSerializedProto(bytes_).ok());
  }
  Ids library_encode(const std::string& text) const { return library_.EncodeAsIds(text); }

  std::string bytes_;
  std::unique_ptr<Tokenizer> tokenizer_;
  sentencepiece::SentencePieceProcessor library_;
};

TEST_P(SentencePiece, KnownFacts) {
  EXPECT_EQ(tokenizer_->size(), GetParam().pieces);
  EXPECT_EQ(tokenizer_->bos_id(), 1);
  EXPECT_EQ(tokenizer_->eos_id(), 2);
  EXPECT_EQ(tokenizer_->id_of("<s>"), 1);
  EXPECT_EQ(tokenizer_->id_of("no such piece"), std::nullopt);
  EXPECT_TRUE(tokenizer_->is_special(1));
  EXPECT_TRUE(tokenizer_->is_special(2));
  EXPECT_FALSE(tokenizer_->is_special(0));  // <unk> stands for text
  EXPECT_FALSE(tokenizer_->is_special(-1));
  EXPECT_FALSE(tokenizer_->is_special(tokenizer_->size()));
  EXPECT_EQ(tokenizer_->token_bytes(1), "");
  EXPECT_EQ(tokenizer_->token_bytes(0), " \xE2\x81\x87 ");
  EXPECT_EQ(tokenizer_->token_bytes(tokenizer_->size()), "");
  EXPECT_EQ(tokenizer_->leading_space(), GetParam().leading_space);
  EXPECT_EQ(tokenizer_->encode("Hello world"), GetParam().hello_world);
}

TEST_P(SentencePiece, BytePieces) {
  if (GetParam().byte_zero < 0) GTEST_SKIP() << "a model without byte pieces";
  for (int byte = 0; byte < 256; ++byte) {
    const std::string wanted(1, static_cast<char>(byte));
    EXPECT_EQ(tokenizer_->token_bytes(GetParam().byte_zero + byte), wanted) << byte;
    EXPECT_FALSE(tokenizer_->has_space_mark(GetParam().byte_zero + byte)) << byte;
  }
}

TEST_P(SentencePiece, EncodesAndDecodesAsTheLibrary) {
  for (const std::string& text : kTexts) {
    const Ids ids = tokenizer_->encode(text);
    EXPECT_EQ(ids, library_encode(text)) << text;
    EXPECT_EQ(decode(*tokenizer_, ids), library_.DecodeIds(ids)) << text;
  }
}

// Any ids but bytes, which the library and Python replace differently where they are not UTF-8.
TEST_P(SentencePiece, RandomIdsDecodeAsTheLibrary) {
  std::mt19937 random(11);
  const int32_t space = *tokenizer_->id_of("\xE2\x96\x81");
  for (int run = 0; run < 2000; ++run) {
    Ids ids;
    while (ids.size() < 6) {
      const auto any = static_cast<int32_t>(random() % static_cast<uint32_t>(GetParam().pieces));
      const Ids choice = {any, any, space, 0, 1, 2};
      const int32_t id = choice[random() % choice.size()];
      if (!library_.IsByte(id)) ids.push_back(id);
    }
    ASSERT_EQ(decode(*tokenizer_, ids), library_.DecodeIds(ids)) << ::testing::PrintToString(ids);
  }
}

TEST_P(SentencePiece, ContinuedTextKeepsItsSpace) {
  const Ids ids = tokenizer_->encode("the");
  EXPECT_EQ(decode(*tokenizer_, ids), "the");
  EXPECT_EQ(decode(*tokenizer_, ids, TextPosition::kContinued), " the");
}

// Long texts are cut into blocks, which the library is not told. Unigram models settle ties between
// segmentations ("--" "-", "-" "--") by the rounding of sums from the text's beginning: there both
// are right.
TEST_P(SentencePiece, LongTextsEncodeAsTheLibrary) {
  const bool unigram = GetParam().byte_zero < 0;
  const auto score = [&](const Ids& ids) {
    double sum = 0;
    for (const int32_t id : ids) sum += static_cast<double>(library_.GetScore(id));
    return sum;
  };
  for (const char* name : {"bronte.txt", "gutenberg-2701-moby-dick.txt", "wikitext-2-valid.txt"}) {
    const auto path = testing::shared_data() / "corpora" / name;
    RECURVE_NEEDS_DATA(path);
    const std::string text =
        to_valid_utf8(testing::read_text(path).substr(20'000, testing::amount(150'000, 40'000)));
    const Ids ids = tokenizer_->encode(text), wanted = library_encode(text);
    ASSERT_EQ(ids.size(), wanted.size()) << name;
    size_t differ = 0;
    for (size_t i = 0; i < ids.size(); ++i) differ += ids[i] != wanted[i];
    EXPECT_LE(differ, unigram ? 10u : 0u) << name;
    EXPECT_NEAR(score(ids), score(wanted), 1e-4) << name;
    EXPECT_EQ(decode(*tokenizer_, ids), library_.DecodeIds(wanted)) << name;
  }
}

// Text behind other text has the ids that it has there, if no token reaches over the border.
TEST_P(SentencePiece, ContinuedTextHasNoDummyPrefix) {
  const std::string before = "It was done";
  for (const std::string after : {" Hello world", " a", "\nLine", "  two  three", " ",
                                  ", and so on", "", "!? \xE4\xB8\xAD\xE6\x96\x87"}) {
    Ids ids = tokenizer_->encode(before);
    for (const int32_t id :
         tokenizer_->encode(after, SpecialTokens::kAsText, TextPosition::kContinued)) {
      ids.push_back(id);
    }
    EXPECT_EQ(ids, library_encode(before + after)) << "\"" << after << "\"";
  }
  EXPECT_TRUE(tokenizer_->marks_start());
  // Where a token would reach over it, the text at least is the same.
  Ids ids = tokenizer_->encode("It was d");
  for (const int32_t id :
       tokenizer_->encode("one by", SpecialTokens::kAsText, TextPosition::kContinued)) {
    ids.push_back(id);
  }
  EXPECT_EQ(decode(*tokenizer_, ids), "It was done by");
}

TEST_P(SentencePiece, ControlTokensInText) {
  EXPECT_EQ(tokenizer_->encode("</s>"), library_encode("</s>"));
  Ids wanted = {1};
  for (const int32_t id : library_encode("a")) wanted.push_back(id);
  wanted.push_back(2);
  EXPECT_EQ(tokenizer_->encode("<s>a</s>", SpecialTokens::kParse), wanted);
}

TEST_P(SentencePiece, InvalidUtf8IsReplaced) {
  EXPECT_EQ(tokenizer_->encode("a\xFF"
                               "b"),
            library_encode("a\xEF\xBF\xBD"
                           "b"));
}

// Cut anywhere, the file is refused; the library alone takes some cuts for a smaller model.
TEST_P(SentencePiece, TruncatedFile) {
  std::mt19937 random(5);
  for (size_t run = 0; run < testing::amount(300, 60); ++run) {
    const size_t size = random() % (bytes_.size() - 200);
    const std::string message =
        error_of([&] { parse_sentencepiece(bytes_.substr(0, size), "cut"); });
    EXPECT_NE(message, "") << size;
    EXPECT_EQ(message.find("cut: "), 0u) << message;
    EXPECT_EQ(message.find('\n'), message.npos) << message;
  }
}

std::string model_name(const ::testing::TestParamInfo<Known>& info) {
  return "pieces" + std::to_string(info.param.pieces);
}
INSTANTIATE_TEST_SUITE_P(Models, SentencePiece, ::testing::ValuesIn(kModels), model_name);

// A model that is segmented without the library: in blocks that it is not told, and with what its
// single precision makes of ties.
class OwnUnigram : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto path = std::filesystem::path(RECURVE_SOURCE_DIR) /
                      "weights_tools/demo/xlstm-books/tokenizer.model";
    const std::string bytes = testing::read_text(path);
    tokenizer_ = parse_sentencepiece(bytes, path.string());
    ASSERT_TRUE(library_.LoadFromSerializedProto(bytes).ok());
  }
  std::unique_ptr<Tokenizer> tokenizer_;
  sentencepiece::SentencePieceProcessor library_;
};

TEST_F(OwnUnigram, RandomTextsEncodeAsTheLibrary) {
  std::mt19937 random(12);
  const std::vector<std::string> bits = {" ",          "  ",     "\n",  "the", "e",      "--",
                                         "---",        "a",      "7",   "'s",  "\u00e9", "\u4e2d",
                                         "\U0001F999", "\u2581", "<s>", ".",   "Q"};
  for (size_t run = 0; run < testing::amount(4000, 500); ++run) {
    std::string text;
    for (uint32_t i = random() % 400; i > 0; --i) {
      const auto letter = static_cast<char>('a' + random() % 26);
      text += random() % 2 == 0 ? std::string(1, letter) : bits[random() % bits.size()];
    }
    ASSERT_EQ(tokenizer_->encode(text), library_.EncodeAsIds(text)) << text;
  }
}

TEST_F(OwnUnigram, StretchesWithoutABorderEncodeAsTheLibrary) {
  std::mt19937 random(13);
  for (const std::string alphabet : {"0123456789", "1", " ", "-"}) {
    std::string text;
    while (text.size() < testing::amount(200'000, 40'000))
      text.push_back(alphabet[random() % alphabet.size()]);
    EXPECT_EQ(tokenizer_->encode(text), library_.EncodeAsIds(text)) << alphabet;
  }
}

// What the library refuses, and what is not supported here.
TEST(SentencePieceFile, ContradictionsAreRefused) {
  const auto path =
      std::filesystem::path(RECURVE_SOURCE_DIR) / "weights_tools/demo/xlstm-books/tokenizer.model";
  const std::string model = testing::read_text(path);
  const auto piece = [](const std::string& name, PieceType type) {
    const std::string fields = std::string{1 << 3 | 2, static_cast<char>(name.size())} + name +
                               std::string{3 << 3, static_cast<char>(type)};
    return std::string{1 << 3 | 2, static_cast<char>(fields.size())} + fields;
  };
  const auto trainer = [](int field, int value) {
    std::string fields(1, static_cast<char>((field << 3 & 0x7F) | (field > 15 ? 0x80 : 0)));
    if (field > 15) fields += static_cast<char>(field >> 4);
    fields += static_cast<char>(value);
    return std::string{2 << 3 | 2, static_cast<char>(fields.size())} + fields;
  };
  struct Case {
    std::string added, wanted;
    bool the_library_takes_it = false;
  };
  const std::vector<Case> cases = {
      {piece("", PieceType::kNormal), "is empty"},
      {piece("the", PieceType::kNormal) + piece("the", PieceType::kNormal), "occurs twice"},
      {piece("<none>", PieceType::kUnknown), "expected one piece of type UNKNOWN, found 2"},
      {piece("<0xZZ>", PieceType::kByte), "of type BYTE must be"},
      {trainer(35, 0), "byte_fallback is false, but 256 of 256 bytes have a piece"},
      {trainer(3, 3), "model_type 3 is not supported", true},
      {trainer(3, 4), "model_type 4 is not supported", true},
      {trainer(24, 1), "treat_whitespace_as_suffix is not supported", true},
  };
  EXPECT_EQ(error_of([&] { parse_sentencepiece(model, "m"); }), "");
  for (const Case& one : cases) {
    const std::string message = error_of([&] { parse_sentencepiece(model + one.added, "m"); });
    EXPECT_NE(message.find(one.wanted), message.npos) << one.wanted << ": " << message;
    sentencepiece::SentencePieceProcessor library;
    EXPECT_EQ(library.LoadFromSerializedProto(model + one.added).ok(), one.the_library_takes_it)
        << one.wanted;
  }
}

// Names of tokens that a model chooses, and what stands for unknown text.
TEST(SentencePieceFile, ChosenNames) {
  const auto path = testing::shared_data() / "tokenizers/sentencepiece_test_model.model";
  RECURVE_NEEDS_DATA(path);
  const std::string unknown = {'\xE2', 2, 1, '?'};             // field 44
  const std::string bos = {'\xF2', 2, 4, '<', '/', 's', '>'};  // field 46
  const std::string eos = {'\xFA', 2, 4, 'n', 'o', 'n', 'e'};  // field 47
  const std::string fields = unknown + bos + eos;
  const std::string bytes =
      testing::read_text(path) + std::string{2 << 3 | 2, static_cast<char>(fields.size())} + fields;
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.LoadFromSerializedProto(bytes).ok());
  const auto tokenizer = parse_sentencepiece(bytes, "chosen");
  EXPECT_EQ(tokenizer->bos_id(), library.bos_id());
  EXPECT_EQ(tokenizer->bos_id(), 2);
  EXPECT_EQ(tokenizer->eos_id(), std::nullopt);
  EXPECT_EQ(library.eos_id(), -1);
  EXPECT_EQ(tokenizer->token_bytes(0), library.DecodeIds(Ids{0}));
}

TEST(SentencePieceFile, Garbage) {
  std::mt19937 random(3);
  for (int run = 0; run < 1000; ++run) {
    std::string bytes(random() % 200, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    EXPECT_NE(error_of([&] { parse_sentencepiece(bytes, "garbage"); }), "");
  }
  EXPECT_EQ(error_of([&] { parse_sentencepiece("{\"model\": 1}", "tokenizer.model"); }),
            "tokenizer.model: the file is truncated or not a SentencePiece model");
}

}  // namespace recurve::sentencepiece_test
