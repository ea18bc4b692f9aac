#include "server/startup/token_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "model/special_ids.h"
#include "server/text/tokenizers/tokenizer.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

namespace recurve::token_rules_test {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

// Ten tokens, of which some are control tokens; what its files say about BOS and EOS is given.
class TenTokens final : public Tokenizer {
 public:
  TenTokens(std::set<int32_t> special, std::optional<int32_t> bos, std::optional<int32_t> eos)
      : special_(std::move(special)), bos_(bos), eos_(eos) {}

  std::unique_ptr<TextEncoder> encoder(SpecialTokens, TextPosition,
                                       const WorkLimits&) const override {
    return {};
  }
  int32_t size() const override { return 10; }
  std::string_view token_bytes(int32_t id) const override {
    return id >= 0 && id < 10 && !is_special(id) ? "!" : "";
  }
  bool is_special(int32_t id) const override { return special_.contains(id); }
  std::optional<int32_t> id_of(std::string_view) const override { return {}; }
  std::optional<int32_t> bos_id() const override { return bos_; }
  std::optional<int32_t> eos_id() const override { return eos_; }
  std::string description() const override { return "ten tokens"; }

 private:
  const std::set<int32_t> special_;
  const std::optional<int32_t> bos_, eos_;
};

ModelInfo config(std::optional<int32_t> bos, const std::vector<int32_t>& eos,
                 bool force_bos = true) {
  ModelInfo info;
  info.bos = bos;
  for (const int32_t id : eos) info.eos.push_back({id, "config.json"});
  info.force_bos = force_bos;
  return info;
}

TokenRules rules_of(const ModelInfo& model, const Tokenizer& tokenizer) {
  return resolve_token_rules(model, {}, tokenizer);
}

TEST(TokenRules, AllThatIsStatedCounts) {
  const TokenRules rules = rules_of(config(1, {2, 3}), TenTokens({0, 1, 2, 3}, 0, 0));
  EXPECT_EQ(rules.bos, 1);
  EXPECT_THAT(rules.eos, ElementsAre(2, 3, 0));
  EXPECT_THAT(rules.eos_files, ElementsAre("config.json", "config.json", "the tokenizer"));
  EXPECT_TRUE(rules.force_bos);
}

// It would be looked up in the embedding.
TEST(TokenRules, ABosThatTheModelHasNotIsNotUsed) {
  for (const int32_t beyond : {10, 1'000'000'000}) {
    EXPECT_FALSE(rules_of(config(beyond, {}), IdTokenizer(10)).bos);
    EXPECT_FALSE(rules_of(config(beyond, {}), TenTokens({0}, {}, {})).bos);
  }
}

// A checkpoint that is served for ids alone ends where its config says.
TEST(TokenRules, WithoutATokenizerTheConfigCounts) {
  const TokenRules rules = rules_of(config(1, {2, 10}), IdTokenizer(10));
  EXPECT_EQ(rules.bos, 1);
  EXPECT_THAT(rules.eos, ElementsAre(2));
}

// Control tokens first: clients that ask for one get the first.
TEST(TokenRules, AnEndThatIsAWordCountsToo) {
  const TenTokens tokenizer({0, 1, 2}, 0, 0);
  const TokenRules rules = rules_of(config(0, {5, 1}), tokenizer);
  EXPECT_THAT(rules.eos, ElementsAre(1, 0, 5));
  EXPECT_EQ(ends_line(rules, tokenizer),
            "1 (config.json), 0 (the tokenizer), 5 \"!\" (config.json)");
}

// xLSTM-7b: EOS in config.json is 2, which is "!" and the default of transformers' config class;
// that of the tokenizer is 0.
TEST(TokenRules, ADefaultThatIsAWordGivesWayToTheTokenizers) {
  ModelInfo xlstm = config(0, {2});
  xlstm.eos[0].is_default = true;
  EXPECT_THAT(rules_of(xlstm, TenTokens({0, 1}, 0, 0)).eos, ElementsAre(0));
  EXPECT_THAT(rules_of(xlstm, TenTokens({0, 1, 2}, 0, 0)).eos, ElementsAre(2, 0));
  EXPECT_THAT(rules_of(xlstm, TenTokens({0, 1}, 0, {})).eos, ElementsAre(2)) << "there is no other";
}

TEST(TokenRules, UnknownIdsAreIgnored) {
  const TokenRules rules = rules_of(config(1 << 30, {-1, 10, 50277}), TenTokens({0, 1}, 1, 0));
  EXPECT_EQ(rules.bos, 1);
  EXPECT_THAT(rules.eos, ElementsAre(0));
}

TEST(TokenRules, WithoutAnEosTheMarkBetweenDocumentsEndsAText) {
  EXPECT_THAT(rules_of(config(0, {}), TenTokens({0}, {}, {})).eos, ElementsAre(0));
  EXPECT_THAT(rules_of(config({}, {10}), TenTokens({0}, 0, {})).eos, ElementsAre(0));
}

TEST(TokenRules, NothingIsGuessedWithoutASource) {
  const TokenRules rules = rules_of(config({}, {}), TenTokens({}, {}, {}));
  EXPECT_EQ(rules.bos, std::nullopt);
  EXPECT_THAT(rules.eos, IsEmpty());
  EXPECT_FALSE(rules.force_bos) << "there is none to force";
}

TEST(TokenRules, AModelThatDoesWithoutBosGetsNone) {
  const TokenRules rules = rules_of(config(0, {0}, false), TenTokens({0}, 0, 0));
  EXPECT_EQ(rules.bos, std::nullopt);
  EXPECT_FALSE(rules.force_bos);
  EXPECT_THAT(rules.eos, ElementsAre(0));
}

// What transformers makes of the files around a tokenizer: tests/golden/tokenizer/control.json.
class StatedTokens : public ::testing::TestWithParam<const char*> {
 protected:
  static std::filesystem::path folder() {
    return std::filesystem::path(RECURVE_SOURCE_DIR) / "tests/golden/tokenizer";
  }
  static json read(const std::filesystem::path& path) {
    return json::parse(std::ifstream(path, std::ios::binary));
  }
  static void write(const std::filesystem::path& path, const json& values) {
    std::ofstream(path, std::ios::binary) << values.dump();
  }

  // The model's ids and the tokenizer of a directory with these files.
  struct Loaded {
    ModelInfo model;
    TokenFiles files;
    std::unique_ptr<Tokenizer> tokenizer;
  };
  static Loaded load(const json& files) {
    TempDir dir;
    if (GetParam() == std::string("tokenizer.json")) {
      json tokenizer = read(folder() / "gemma/tokenizer.json");
      for (json& token : tokenizer["added_tokens"]) token["special"] = token["id"] < 3;
      write(dir / GetParam(), tokenizer);
    } else {
      std::filesystem::copy_file(folder() / "gemma" / GetParam(), dir / GetParam());
    }
    write(dir / "config.json", json::object());
    SafetensorsWriter().add_f32("a", {1}, {1}).write(dir / "model.safetensors");
    for (const auto& [name, values] : files.items()) write(dir / name, values);
    Loaded loaded;
    loaded.model.eos = read_special_ids(Checkpoint::open(dir.path())).eos;
    loaded.files = token_files(loaded.model, dir.path());
    loaded.tokenizer = load_tokenizer(dir.path(), loaded.files);
    return loaded;
  }
};

TEST_P(StatedTokens, AreControlTokensWhereAnyFileSaysSo) {
  for (const json& one : read(folder() / "control.json")) {
    const Loaded loaded = load(one["files"]);
    std::vector<int32_t> control;
    for (int32_t id = 0; id < loaded.tokenizer->size(); ++id) {
      if (loaded.tokenizer->is_special(id)) control.push_back(id);
    }
    EXPECT_EQ(control, one["control"].get<std::vector<int32_t>>()) << one["name"];
    // A user's message never has their ids, and an answer does not show them.
    for (const char* name : {"<start_of_turn>", "<end_of_turn>", "<table>"}) {
      const int32_t id = loaded.tokenizer->id_of(name).value();
      const auto ids = loaded.tokenizer->encode(std::string("a") + name);
      const bool found = std::ranges::find(ids, id) != ids.end();
      EXPECT_EQ(found, !loaded.tokenizer->is_special(id)) << one["name"] << name;
      EXPECT_EQ(loaded.tokenizer->token_bytes(id), found ? name : "") << one["name"];
      const auto parsed = loaded.tokenizer->encode(std::string("a") + name, SpecialTokens::kParse);
      EXPECT_EQ(parsed.back(), id) << one["name"];
    }
  }
}

TEST_P(StatedTokens, EndAnswersWhicheverFileSaysSo) {
  for (const json& one : read(folder() / "control.json")) {
    const Loaded loaded = load(one["files"]);
    const TokenRules rules = resolve_token_rules(loaded.model, loaded.files, *loaded.tokenizer);
    std::vector<std::pair<int32_t, std::string>> wanted = one["ends"], found;
    const auto is_own = [](const auto& end) { return end.first == 1; };
    if (GetParam() == std::string("tokenizer.model") && std::ranges::none_of(wanted, is_own)) {
      wanted.emplace_back(1, "the tokenizer");
    }
    for (size_t i = 0; i < rules.eos.size(); ++i) {
      found.emplace_back(rules.eos[i], rules.eos_files[i]);
    }
    EXPECT_THAT(found, UnorderedElementsAreArray(wanted)) << one["name"];
  }
}

INSTANTIATE_TEST_SUITE_P(Files, StatedTokens,
                         ::testing::Values("tokenizer.model", "tokenizer.json"),
                         [](const auto& info) { return std::string(info.param).substr(10); });

TEST(SpecialIds, OfAFileThatIsNoneAreRefused) {
  TempDir dir;
  SafetensorsWriter().add_f32("a", {1}, {1}).write(dir / "model.safetensors");
  std::ofstream(dir / "config.json") << R"({"model_type": "xlstm", "eos_token_id": [2, 3]})";
  const auto read = [&](const char* generation) {
    std::ofstream(dir / "generation_config.json") << generation;
    return read_special_ids(Checkpoint::open(dir.path())).eos;
  };
  // What transformers derives from a config says no more than the config.
  const auto derived = read(R"({"_from_model_config": true, "eos_token_id": 2})");
  ASSERT_EQ(derived.size(), 3);
  EXPECT_TRUE(derived[0].is_default && !derived[1].is_default && derived[2].is_default);
  EXPECT_FALSE(read(R"({"eos_token_id": 2})").back().is_default);
  EXPECT_EQ(read(R"({"eos_token_id": null})").size(), 2);
  EXPECT_EQ(error_of([&] { read(R"({"eos_token_id": [1, "</s>"]})"); }),
            (dir / "generation_config.json").string() +
                ": eos_token_id: wanted a token id, found \"</s>\"");
  EXPECT_THAT(error_of([&] { read("{"); }), HasSubstr("generation_config.json: wanted JSON"));
}

}  // namespace recurve::token_rules_test
