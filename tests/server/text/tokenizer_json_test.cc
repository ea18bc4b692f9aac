// What a tokenizer.json may not be: each is one sentence, never a crash.
#include "server/text/tokenizers/tokenizer_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/text/json/json_fields.h"
#include "server/text/stream_decoder.h"
#include "tests/server/text/data.h"
#include "tests/support/temp_dir.h"

namespace recurve::tokenizer_json_test {

using Json = nlohmann::json;

const std::string& golden_text() {
  static const std::string text =
      testing::read_text(testing::golden_tokenizer_dir() / "tokenizer.json");
  return text;
}

std::string error_from(const std::string& text) {
  return error_of([&] { parse_tokenizer_json(text, "file"); });
}

// The error after `change` has been made to a good tokenizer.
template <class Change>
std::string error_after(Change change) {
  Json json = Json::parse(golden_text());
  change(json);
  return error_from(json.dump());
}

TEST(TokenizerJson, EveryTruncationIsRefused) {
  for (size_t size = 0; size < golden_text().size() - 2; size += 97) {
    EXPECT_EQ(error_from(golden_text().substr(0, size)).find("file: not valid JSON at byte "), 0u);
  }
}

TEST(TokenizerJson, NotJson) {
  for (const char* text : {"", "null", "[]", "3", "\"x\"", "{}", "{\"model\":[]}", "{\"model\":{}}",
                           "\xFF\xFE", "{\"model\":{\"vocab\":{},\"merges\":[]}}"}) {
    const std::string message = error_from(text);
    EXPECT_EQ(message.find("file: "), 0u) << text;
    EXPECT_EQ(message.find('\n'), message.npos) << text;
  }
}

TEST(TokenizerJson, DeepNesting) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  EXPECT_EQ(error_from(deep), "file: the JSON is nested more than 32 levels deep");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"pre_tokenizer\":";
  EXPECT_EQ(error_from(objects), "file: the JSON is nested more than 32 levels deep");
}

TEST(TokenizerJson, WrongTypes) {
  EXPECT_EQ(error_after([](Json& j) { j["model"] = 3; }), "file: model must be an object, found 3");
  EXPECT_EQ(error_after([](Json& j) { j["model"].erase("vocab"); }),
            "file: model.vocab is missing");
  EXPECT_EQ(error_after([](Json& j) { j["model"]["vocab"] = Json::array(); }),
            "file: model.vocab must be an object of tokens and ids, found an array of 0");
  EXPECT_EQ(error_after([](Json& j) { j["model"]["merges"] = "a b"; }),
            "file: model.merges must be an array, found \"a b\"");
  EXPECT_EQ(error_after([](Json& j) { j["added_tokens"] = 1; }),
            "file: added_tokens must be an array, found 1");
  EXPECT_EQ(error_after([](Json& j) { j["added_tokens"][0]["special"] = "yes"; }),
            "file: added_tokens[].special must be true or false, found \"yes\"");
  EXPECT_EQ(error_after([](Json& j) { j["pre_tokenizer"]["add_prefix_space"] = 0; }),
            "file: pre_tokenizer.add_prefix_space must be true or false, found 0");
  EXPECT_EQ(error_after([](Json& j) { j["normalizer"] = "NFC"; }),
            "file: normalizer must be an object, found \"NFC\"");
}

TEST(TokenizerJson, BadIds) {
  for (const Json& id : {Json(-1), Json(1.5), Json("7"), Json(nullptr), Json(Json::array()),
                         Json(4294967296), Json(2147483647), Json(18446744073709551615u)}) {
    EXPECT_NE(error_after([&](Json& j) { j["model"]["vocab"]["!"] = id; }), "") << id;
    EXPECT_NE(error_after([&](Json& j) { j["added_tokens"][5]["id"] = id; }), "") << id;
  }
  EXPECT_EQ(error_after([](Json& j) { j["model"]["vocab"]["!"] = 3; }),
            "file: id 3 is given to both \"!\" and \"\\\"\"");
  EXPECT_EQ(error_after([](Json& j) { j["model"]["vocab"]["!"] = 2'000'000'000; }),
            "file: the largest of 583 ids is 2000000000: too many ids are missing");
  EXPECT_EQ(error_after([](Json& j) { j["added_tokens"][0]["id"] = 600; }),
            "file: \"<|endoftext|>\" has id 600 in added_tokens and 0 in model.vocab");
  EXPECT_EQ(error_after([](Json& j) { j["added_tokens"][5]["id"] = 10; }),
            "file: id 10 is given to both \"                     \" and \")\"");
  EXPECT_EQ(error_after([](Json& j) { j["added_tokens"].push_back(j["added_tokens"][0]); }),
            "file: added_tokens has \"<|endoftext|>\" twice");
}

TEST(TokenizerJson, IdsInAnyOrderWithSmallHoles) {
  Json json = Json::parse(golden_text());
  const auto before = parse_tokenizer_json(json.dump(), "file");
  auto& vocabulary = json["model"]["vocab"];
  std::swap(vocabulary["a"], vocabulary["b"]);
  vocabulary["!"] = 700;
  const auto after = parse_tokenizer_json(json.dump(), "file");
  EXPECT_EQ(after->size(), 701);
  EXPECT_EQ(after->encode("!"), std::vector<int32_t>{700});
  EXPECT_EQ(after->id_of("a"), before->id_of("b"));
  EXPECT_EQ(after->token_bytes(2), "");  // where "!" was
  EXPECT_EQ(decode(*after, after->encode("ab!")), "ab!");
}

TEST(TokenizerJson, BadMerges) {
  const auto with = [](const Json& merge) {
    return error_after([&](Json& j) { j["model"]["merges"].push_back(merge); });
  };
  EXPECT_EQ(with("a zzzz"),
            "file: model.merges needs the token \"zzzz\", which is not in model.vocab");
  EXPECT_EQ(with({"Q", "Z"}),
            "file: model.merges needs the token \"QZ\", which is not in model.vocab");
  EXPECT_EQ(with("ab"), "file: an entry of model.merges must be two tokens, found \"ab\"");
  EXPECT_EQ(with("a b c"), "file: an entry of model.merges must be two tokens, found \"a b c\"");
  EXPECT_EQ(with({"a"}), "file: an entry of model.merges must be two tokens, found an array of 1");
  EXPECT_EQ(with(Json::array({1, 2})),
            "file: an entry of model.merges must be two tokens, found an array of 2");
  EXPECT_EQ(with(5), "file: an entry of model.merges must be two tokens, found 5");
}

TEST(TokenizerJson, BadAddedTokens) {
  EXPECT_NE(error_after([](Json& j) { j["added_tokens"][3]["content"] = ""; }), "");
  EXPECT_NE(error_after([](Json& j) { j["added_tokens"][3]["content"] = std::string(2000, 'x'); }),
            "");
  EXPECT_NE(error_after([](Json& j) { j["added_tokens"][3].erase("lstrip"); }), "");
}

// transformers switches both off when it encodes a text.
TEST(TokenizerJson, TruncationAndPaddingChangeNothing) {
  Json json = Json::parse(golden_text());
  const std::string text = "It was a dark and stormy night; the rain fell in torrents.";
  const auto plain = parse_tokenizer_json(json.dump(), "file")->encode(text);
  json["truncation"] = {
      {"direction", "Right"}, {"max_length", 4}, {"strategy", "LongestFirst"}, {"stride", 0}};
  json["padding"] = {{"strategy", {{"Fixed", 64}}},
                     {"direction", "Right"},
                     {"pad_to_multiple_of", nullptr},
                     {"pad_id", 1},
                     {"pad_type_id", 0},
                     {"pad_token", "<|padding|>"}};
  EXPECT_EQ(parse_tokenizer_json(json.dump(), "file")->encode(text), plain);
  EXPECT_GT(plain.size(), 4u);
}

// Well formed, and would change the ids: refused by name.
TEST(TokenizerJson, NotImplemented) {
  const auto unsupported = [](const std::string& path, const Json& value) -> std::string {
    Json json = Json::parse(golden_text());
    json[Json::json_pointer(path)] = value;
    try {
      parse_tokenizer_json(json.dump(), "file");
    } catch (const UnsupportedTokenizer& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(unsupported("/model/type", "WordLevel"),
            "file: model.type = \"WordLevel\" is not supported");
  EXPECT_EQ(unsupported("/model/type", "WordPiece"),
            "file: a byte-level model of type WordPiece is not supported");
  EXPECT_EQ(unsupported("/model/dropout", 0.1), "file: model.dropout = 0.1 is not supported");
  EXPECT_EQ(unsupported("/model/byte_fallback", true),
            "file: model.byte_fallback = true is not supported");
  EXPECT_EQ(unsupported("/model/continuing_subword_prefix", "##"),
            "file: model.continuing_subword_prefix = \"##\" is not supported");
  EXPECT_EQ(unsupported("/model/end_of_word_suffix", "</w>"),
            "file: model.end_of_word_suffix = \"</w>\" is not supported");
  EXPECT_EQ(unsupported("/model/new_option", 1),
            "file: model has \"new_option\" = 1, which is not supported");
  EXPECT_EQ(unsupported("/new_part", Json::object()),
            "file: tokenizer has \"new_part\" = an object of 0, which is not supported");
  EXPECT_EQ(unsupported("/normalizer", {{"type", "ByteLevel"}}),
            "file: normalizer.type = \"ByteLevel\" is not supported");
  EXPECT_EQ(unsupported("/normalizer", {{"type", "NFC"}, {"form", 2}}),
            "file: normalizer has \"form\" = 2, which is not supported");
  EXPECT_EQ(unsupported("/pre_tokenizer", {{"type", "UnicodeScripts"}}),
            "file: pre_tokenizer.type = \"UnicodeScripts\" is not supported");
  EXPECT_EQ(unsupported("/pre_tokenizer/extra", true),
            "file: pre_tokenizer has \"extra\" = true, which is not supported");
  EXPECT_NE(unsupported("/pre_tokenizer", nullptr), "");
  EXPECT_NE(unsupported("/pre_tokenizer", {{"type", "Split"},
                                           {"pattern", {{"Regex", "(?<n>a)"}}},
                                           {"behavior", "Isolated"},
                                           {"invert", false}}),
            "");
  EXPECT_EQ(unsupported("/added_tokens/0/lang", "en"),
            "file: added_tokens[] has \"lang\" = \"en\", which is not supported");
  EXPECT_EQ(unsupported("/decoder", {{"type", "CTC"}}),
            "file: decoder.type = \"CTC\" is not supported");
  EXPECT_NE(unsupported("/decoder", {{"type", "Fuse"}}), "");
  EXPECT_NE(unsupported("/decoder", nullptr), "");
}

TEST(TokenizerJson, NeutralValuesAreNotRefused) {
  EXPECT_EQ(error_after([](Json& j) {
              j["model"]["dropout"] = 0.0;
              j["model"]["continuing_subword_prefix"] = "";
              j["model"]["end_of_word_suffix"] = "";
              j["model"].erase("ignore_merges");
              j["model"].erase("type");
              j["pre_tokenizer"].erase("use_regex");
            }),
            "");
}

// Without pre_tokenizer and with the decoder Fuse it is one of characters.
TEST(TokenizerJson, Characters) {
  const auto characters = [](Json& j) {
    j["pre_tokenizer"] = nullptr;
    j["decoder"] = {{"type", "Fuse"}};
  };
  EXPECT_EQ(error_after([&](Json& j) {
              characters(j);
              j["model"]["vocab"].erase("Q");
              j["model"]["merges"] = Json::array();
            }),
            "");
  EXPECT_EQ(error_after([&](Json& j) {
              characters(j);
              j["model"]["unk_token"] = "no such token";
            }),
            "file: model.unk_token needs the token \"no such token\", which is not in model.vocab");
}

// As models.json has it for `tokenizers`: a byte without a token is left out of texts, or unknown.
TEST(TokenizerJson, MissingByte) {
  Json json = Json::parse(golden_text());
  json["model"]["vocab"].erase("Q");
  json["model"]["merges"] = Json::array();
  const auto dropping = parse_tokenizer_json(json.dump(), "file");
  EXPECT_EQ(dropping->encode("aQQb"), dropping->encode("ab"));
  EXPECT_EQ(dropping->description(),
            "byte-level BPE, 583 tokens, 0 merges, 1 byte without a token: left out of texts");
  json["model"]["unk_token"] = "<|padding|>";
  const auto replacing = parse_tokenizer_json(json.dump(), "file");
  EXPECT_EQ(replacing->encode("QQ"), (std::vector<int32_t>{1, 1}));
  json["model"]["fuse_unk"] = true;
  const auto fusing = parse_tokenizer_json(json.dump(), "file");
  EXPECT_EQ(fusing->encode("QQ"), std::vector<int32_t>{1});
  EXPECT_EQ(fusing->description(),
            "byte-level BPE, 583 tokens, 0 merges, 1 byte without a token: read as unknown");
  EXPECT_EQ(error_after([](Json& j) {
              j["model"]["vocab"] = {{"<|endoftext|>", 0}, {"words", 2}};
              j["model"]["merges"] = Json::array();
            }),
            "file: model.vocab has no token of a single byte");
}

TEST(TokenizerJson, BadUnigram) {
  const auto with = [](const Json& vocab, const Json& unknown) {
    return error_from(Json{{"model", {{"type", "Unigram"}, {"vocab", vocab}, {"unk_id", unknown}}},
                           {"decoder", {{"type", "Fuse"}}}}
                          .dump());
  };
  const auto piece = [](const Json& text, const Json& score) { return Json::array({text, score}); };
  const Json good = Json::array({piece("a", -1.0), piece("b", -2)});
  EXPECT_EQ(with(good, 0), "");
  EXPECT_EQ(with(good, 2), "file: model.unk_id must be an id of model.vocab, found 2");
  EXPECT_EQ(with(good, nullptr), "file: model.unk_id is missing");
  EXPECT_EQ(with(Json::array({piece("a", -1.0), piece("a", -2.0)}), 0),
            "file: model.vocab has \"a\" twice");
  EXPECT_EQ(with(Json::array({piece("a", "b")}), 0),
            "file: an entry of model.vocab must be a piece and its score, found an array of 2");
  EXPECT_EQ(with(Json::array(), 0), "file: model.unk_id must be an id of model.vocab, found 0");
}

TEST(TokenizerJson, BadDecoders) {
  const auto with = [](const Json& step) {
    return error_after([&](Json& j) {
      j["pre_tokenizer"] = nullptr;
      j["decoder"] = {{"type", "Sequence"}, {"decoders", Json::array({step, step})}};
    });
  };
  EXPECT_EQ(with({{"type", "Fuse"}}), "");
  EXPECT_EQ(
      with({{"type", "ByteFallback"}}),
      "file: a decoder with a step of type \"ByteFallback\" at this position is not supported");
  EXPECT_EQ(with({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}),
            "file: decoder.type = \"Strip\" is not supported");
}

TEST(TokenizerJson, LongChains) {
  const Json step = {{"type", "Digits"}, {"individual_digits", true}};
  EXPECT_EQ(error_after([&](Json& j) {
              const Json steps(1'000, step);
              j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
            }),
            "file: pre_tokenizer is a chain of more than 64 steps, which is not supported");
}

TEST(TokenizerJson, InvalidUtf8InTextIsReplaced) {
  const auto tokenizer = parse_tokenizer_json(golden_text(), "file");
  EXPECT_EQ(tokenizer->encode("a\xF0\x9F"
                              "b\xFF"),
            tokenizer->encode("a\xEF\xBF\xBD"
                              "b\xEF\xBF\xBD"));
}

}  // namespace recurve::tokenizer_json_test
