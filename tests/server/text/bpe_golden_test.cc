// BPE against Hugging Face's `tokenizers`: ids of tests/golden/tokenizer, byte-level
// (expected.json) and of characters (characters.json).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "server/text/stream_decoder.h"
#include "server/text/tokenizers/tokenizer_json.h"
#include "tests/server/text/data.h"

namespace recurve::bpe_golden_test {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

const Json& golden() {
  static const Json json =
      Json::parse(testing::read_text(testing::golden_tokenizer_dir() / "expected.json"));
  return json;
}

const Json& base() {
  static const Json json =
      Json::parse(testing::read_text(testing::golden_tokenizer_dir() / "tokenizer.json"));
  return json;
}

// The same as apply() in make_golden.py.
std::string patched(const Json& patch) {
  Json json = base();
  for (const auto& [key, value] : patch.items()) {
    if (key == "model") {
      json["model"].update(value);
    } else if (key == "more_added_tokens") {
      for (const Json& token : value) json["added_tokens"].push_back(token);
    } else if (key == "merges_as") {
      for (Json& merge : json["model"]["merges"]) {
        merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
      }
    } else {
      json[key] = value;
    }
  }
  return json.dump();
}

class BpeGolden : public ::testing::TestWithParam<size_t> {
 protected:
  const Json& the_case() const { return golden()["cases"][GetParam()]; }
  const Json& texts() const { return golden()["texts"]; }
  // Of all cases but the first there are those that differ from the first's.
  Ids ids_as_text(size_t i) const {
    const auto first = golden()["cases"][0]["as_text"][i].get<Ids>();
    return GetParam() == 0 ? first : the_case()["as_text"].value(std::to_string(i), first);
  }
};

TEST_P(BpeGolden, SameIds) {
  const auto tokenizer = parse_tokenizer_json(patched(the_case()["patch"]), "golden");
  for (size_t i = 0; i < texts().size(); ++i) {
    const auto text = texts()[i].get<std::string>();
    EXPECT_EQ(tokenizer->encode(text), ids_as_text(i)) << texts()[i];
    if (!the_case().contains("parsed")) continue;
    EXPECT_EQ(tokenizer->encode(text, SpecialTokens::kParse), the_case()["parsed"][i].get<Ids>())
        << texts()[i];
  }
}

std::string case_name(const ::testing::TestParamInfo<size_t>& info) {
  std::string name = golden()["cases"][info.param]["name"];
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Variants, BpeGolden, ::testing::Range(size_t{0}, golden()["cases"].size()),
                         case_name);

TEST(BpeGoldenCharacters, SameIdsAndText) {
  const Json json =
      Json::parse(testing::read_text(testing::golden_tokenizer_dir() / "characters.json"));
  ASSERT_EQ(json["cases"].size(), 5u);
  for (const Json& one : json["cases"]) {
    SCOPED_TRACE(one["name"]);
    const auto tokenizer = parse_tokenizer_json(one["tokenizer"].dump(), "golden");
    EXPECT_EQ(tokenizer->size(), one["size"]);
    for (size_t i = 0; i < one["texts"].size(); ++i) {
      const auto text = one["texts"][i].get<std::string>();
      EXPECT_EQ(tokenizer->encode(text), one["as_text"][i].get<Ids>()) << one["texts"][i];
      const auto parsed = one["parsed"][i].get<Ids>();
      EXPECT_EQ(tokenizer->encode(text, SpecialTokens::kParse), parsed) << one["texts"][i];
      EXPECT_EQ(decode(*tokenizer, parsed), one["decoded"][i].get<std::string>());
    }
    Ids every(one["size"].get<size_t>());
    std::iota(every.begin(), every.end(), 0);
    EXPECT_EQ(decode(*tokenizer, every), one["every_id"].get<std::string>());
  }
}

TEST(BpeGoldenDecode, SameText) {
  const auto tokenizer = parse_tokenizer_json(base().dump(), "golden");
  const Json& first = golden()["cases"][0];
  for (size_t i = 0; i < first["parsed"].size(); ++i) {
    EXPECT_EQ(decode(*tokenizer, first["parsed"][i].get<Ids>()),
              first["decoded"][i].get<std::string>())
        << first["decoded"][i];
  }
}

// One tokenizer serves all requests: run under TSan.
TEST(BpeGoldenDecode, FromManyThreads) {
  const auto tokenizer = parse_tokenizer_json(base().dump(), "golden");
  const Json& first = golden()["cases"][0];
  const auto encode_all = [&] {
    for (size_t i = 0; i < golden()["texts"].size(); ++i) {
      const auto text = golden()["texts"][i].get<std::string>();
      EXPECT_EQ(tokenizer->encode(text), first["as_text"][i].get<Ids>());
      EXPECT_EQ(decode(*tokenizer, first["parsed"][i].get<Ids>()),
                first["decoded"][i].get<std::string>());
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(encode_all);
  for (std::thread& thread : threads) thread.join();
}

TEST(BpeGoldenDecode, WholeTokenizer) {
  const auto tokenizer = parse_tokenizer_json(base().dump(), "golden");
  EXPECT_EQ(tokenizer->size(), 583);
  EXPECT_EQ(tokenizer->id_of("<|endoftext|>"), 0);
  EXPECT_EQ(tokenizer->id_of("<|padding|>"), 1);
  EXPECT_EQ(tokenizer->id_of("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer->bos_id(), 0);
  EXPECT_EQ(tokenizer->eos_id(), 0);
  EXPECT_TRUE(tokenizer->is_special(0));
  EXPECT_FALSE(tokenizer->is_special(2));
  EXPECT_FALSE(tokenizer->is_special(-1));
  EXPECT_FALSE(tokenizer->is_special(583));
  EXPECT_EQ(tokenizer->token_bytes(0), "");
  EXPECT_EQ(tokenizer->token_bytes(2), "!");
  EXPECT_EQ(tokenizer->token_bytes(582), "  ");
  EXPECT_EQ(tokenizer->token_bytes(-1), "");
  EXPECT_EQ(tokenizer->token_bytes(583), "");
}

}  // namespace recurve::bpe_golden_test
