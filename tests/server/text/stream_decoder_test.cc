#include "server/text/stream_decoder.h"

#include <gtest/gtest.h>

#include <span>

#include "server/text/tokenizers/tokenizer_json.h"
#include "tests/server/text/data.h"

namespace recurve::stream_decoder_test {

// A tokenizer of single bytes (id = byte), a control token and some words.
class FakeTokenizer : public Tokenizer {
 public:
  explicit FakeTokenizer(LeadingSpace leading_space) : leading_space_(leading_space) {
    for (int byte = 0; byte < 256; ++byte) bytes_.emplace_back(1, static_cast<char>(byte));
    bytes_.insert(bytes_.end(), {"", " the", " ", "x y"});
  }
  static constexpr int32_t kControl = 256, kThe = 257, kSpace = 258, kWords = 259;

  std::unique_ptr<TextEncoder> encoder(SpecialTokens, TextPosition,
                                       const WorkLimits&) const override {
    return {};
  }
  int32_t size() const override { return static_cast<int32_t>(bytes_.size()); }
  std::string_view token_bytes(int32_t id) const override {
    return id >= 0 && id < size() ? std::string_view(bytes_[static_cast<size_t>(id)])
                                  : std::string_view();
  }
  bool is_special(int32_t id) const override { return id == kControl; }
  std::optional<int32_t> id_of(std::string_view) const override { return std::nullopt; }
  std::optional<int32_t> bos_id() const override { return std::nullopt; }
  std::optional<int32_t> eos_id() const override { return std::nullopt; }
  LeadingSpace leading_space() const override { return leading_space_; }
  bool has_space_mark(int32_t id) const override { return id == kThe || id == kSpace; }
  std::string description() const override { return "bytes"; }

 private:
  LeadingSpace leading_space_;
  std::vector<std::string> bytes_;
};

using Ids = std::vector<int32_t>;
constexpr int32_t kControl = FakeTokenizer::kControl, kThe = FakeTokenizer::kThe,
                  kSpace = FakeTokenizer::kSpace, kWords = FakeTokenizer::kWords;

TEST(StreamDecoder, WholeCharactersOnly) {
  const FakeTokenizer bytes(LeadingSpace::kKeep);
  StreamDecoder decoder(bytes);
  EXPECT_EQ(decoder.push('a'), "a");
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.push(0x9F), "");
  EXPECT_EQ(decoder.push(kControl), "");  // control tokens are no text and break none
  EXPECT_EQ(decoder.push(0xA6), "");
  EXPECT_EQ(decoder.push(0x99), "\xF0\x9F\xA6\x99");
  EXPECT_EQ(decoder.push(0xE2), "");
  EXPECT_EQ(decoder.push(kWords), "\xEF\xBF\xBDx y");
  EXPECT_EQ(decoder.push(0xFF), "\xEF\xBF\xBD");
  EXPECT_EQ(decoder.push(0xC3), "");
  EXPECT_EQ(decoder.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(StreamDecoder, IdsOutOfRangeAreNoText) {
  const FakeTokenizer bytes(LeadingSpace::kKeep);
  EXPECT_EQ(decode(bytes, Ids{'a', -1, 1 << 30, 'b'}), "ab");
}

TEST(StreamDecoder, LeadingSpace) {
  const Ids ids = {kControl, kThe, kSpace, kThe};
  const Ids spaces = {kSpace, kSpace, kThe, kThe};
  const Ids byte_first = {'a', kThe};
  const FakeTokenizer keep(LeadingSpace::kKeep);
  EXPECT_EQ(decode(keep, ids), " the  the");
  const FakeTokenizer once(LeadingSpace::kStripOnce);
  EXPECT_EQ(decode(once, ids), "the  the");
  EXPECT_EQ(decode(once, spaces), "  the the");
  EXPECT_EQ(decode(once, byte_first), "a the");
  EXPECT_EQ(decode(once, ids, TextPosition::kContinued), " the  the");
  const FakeTokenizer all(LeadingSpace::kStripAll);
  EXPECT_EQ(decode(all, ids), "the  the");
  EXPECT_EQ(decode(all, spaces), "the the");
  EXPECT_EQ(decode(all, byte_first), "a the");
  EXPECT_EQ(decode(all, ids, TextPosition::kContinued), " the  the");
}

TEST(StreamDecoder, StreamEqualsWhole) {
  const auto tokenizer = parse_tokenizer_json(
      testing::read_text(testing::golden_tokenizer_dir() / "tokenizer.json"), "golden");
  const std::string text = "Für Élise 🦙🦙 — 中文，标点。 \u1112 ﬁne\n\n   end";
  const Ids ids = tokenizer->encode(text);
  StreamDecoder decoder(*tokenizer);
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string piece = decoder.push(id);
    EXPECT_TRUE(is_valid_utf8(piece));
    streamed += piece;
  }
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_EQ(streamed, text);
}

// Where each id begins in the text, in characters.
TEST(StreamDecoder, OffsetsOfIds) {
  const FakeTokenizer once(LeadingSpace::kStripOnce);
  StreamDecoder decoder(once);
  std::vector<size_t> offsets;
  //         control  the       é           control   broken       broken  x y     incomplete
  for (int32_t id : {kControl, kThe, 0xC3, 0xA9, kControl, 0xE2, 0x82, kThe, 0xFF, kWords, 0xC3}) {
    decoder.push(id);
    offsets.push_back(decoder.offset());
  }
  EXPECT_EQ(offsets, (std::vector<size_t>{0, 0, 3, 3, 4, 4, 4, 5, 9, 10, 13}));
  EXPECT_EQ(decoder.characters(), 13u);
}

// As SentencePiece, which wrote the mark, and unlike `tokenizers`, which drops all marks of the
// first token.
TEST(StreamDecoder, AnInnerMarkOfTheFirstTokenIsASpace) {
  const std::string metaspace =
      R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":false})";
  const auto tokenizer = parse_tokenizer_json(
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,)"
      R"("post_processor":null,"pre_tokenizer":)" +
          metaspace + R"(,"decoder":)" + metaspace +
          R"(,"model":{"type":"Unigram","unk_id":0,"byte_fallback":false,"vocab":[["<unk>",0],)"
          R"(["▁in▁the",-1],["▁end",-1],["▁",-2]]}})",
      "file");
  const Ids ids = tokenizer->encode("in the end");
  EXPECT_EQ(ids, (Ids{1, 2}));
  EXPECT_EQ(decode(*tokenizer, ids), "in the end");
  EXPECT_EQ(decode(*tokenizer, ids, TextPosition::kContinued), " in the end");
  EXPECT_EQ(decode(*tokenizer, Ids{3, 2}), " end");
}

}  // namespace recurve::stream_decoder_test
