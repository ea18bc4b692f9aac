// Tokenizers of other kinds than byte-level BPE with all bytes, against Hugging Face's
// `tokenizers`: ids and texts of tests/golden/tokenizer/models.json.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "server/text/stream_decoder.h"
#include "server/text/tokenizers/tokenizer_json.h"
#include "tests/server/text/data.h"

namespace recurve::models_golden_test {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

const Json& golden() {
  static const Json json =
      Json::parse(testing::read_text(testing::golden_tokenizer_dir() / "models.json"));
  return json;
}

class ModelsGolden : public ::testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    Json json = the_case()["tokenizer"];
    json["model"].update(golden()["models"][the_case()["model"].get<size_t>()]);
    tokenizer_ = parse_tokenizer_json(json.dump(), "golden");
  }
  const Json& the_case() const { return golden()["cases"][GetParam()]; }
  bool is_unigram() const { return tokenizer_->description().starts_with("Unigram"); }
  // Whether the text has the name of a control token.
  bool names_control(const std::string& text) const {
    for (const Json& token : the_case()["tokenizer"]["added_tokens"]) {
      const bool special = token["special"].get<bool>();
      if (special && text.find(token["content"].get<std::string>()) != text.npos) return true;
    }
    return false;
  }
  void expect_no_control(const Ids& ids) const {
    for (const int32_t id : ids) {
      const bool unknown = tokenizer_->id_of("<unk>") == id;
      EXPECT_TRUE(unknown || !tokenizer_->is_special(id)) << id;
    }
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

// In one thing this is not `tokenizers`, whose Unigram finds "<s>" in what a stranger wrote too.
TEST_P(ModelsGolden, SameIdsAndText) {
  const Json& texts = golden()["texts"];
  for (size_t i = 0; i < texts.size(); ++i) {
    SCOPED_TRACE(texts[i]);
    const auto text = texts[i].get<std::string>();
    const auto as_text = the_case()["as_text"][i].get<Ids>();
    const auto parsed = the_case()["parsed"].value(std::to_string(i), as_text);
    EXPECT_EQ(tokenizer_->encode(text, SpecialTokens::kParse), parsed);
    if (is_unigram() && names_control(text)) {
      expect_no_control(tokenizer_->encode(text));
    } else {
      EXPECT_EQ(tokenizer_->encode(text), as_text);
    }
    if (!the_case().contains("decoded")) continue;
    EXPECT_EQ(decode(*tokenizer_, parsed), the_case()["decoded"].value(std::to_string(i), text));
  }
}

// All texts as one, in parts of one to some thousand bytes.
TEST_P(ModelsGolden, TheSameInParts) {
  std::string all;
  for (int times = 0; times < 4; ++times) {
    for (const Json& text : golden()["texts"]) all += text.get<std::string>();
  }
  std::mt19937 random(5);
  for (const auto position : {TextPosition::kStart, TextPosition::kContinued}) {
    const auto encoder = tokenizer_->encoder(SpecialTokens::kParse, position);
    Ids ids;
    for (std::string_view rest = all; !rest.empty();) {
      size_t size = std::min<size_t>(rest.size(), 1 + random() % (random() % 2 == 0 ? 6000 : 30));
      while (size < rest.size() && (rest[size] & 0xC0) == 0x80) ++size;
      encoder->push(rest.substr(0, size), false, &ids);
      rest.remove_prefix(size);
    }
    encoder->push("", /*last=*/true, &ids);
    EXPECT_EQ(ids, tokenizer_->encode(all, SpecialTokens::kParse, position));
  }
}

// What a text has in front where it begins, and has not where it goes on.
TEST_P(ModelsGolden, ContinuedTextGetsNothingInFront) {
  const Ids start = tokenizer_->encode("the"),
            goes_on = tokenizer_->encode("the", SpecialTokens::kAsText, TextPosition::kContinued);
  EXPECT_EQ(start != goes_on, tokenizer_->marks_start());
}

std::string case_name(const ::testing::TestParamInfo<size_t>& info) {
  std::string name = golden()["cases"][info.param]["name"];
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Kinds, ModelsGolden, ::testing::Range(size_t{0}, golden()["cases"].size()),
                         case_name);

}  // namespace recurve::models_golden_test
