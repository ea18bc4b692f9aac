#include <gtest/gtest.h>

#include <fstream>

#include "server/text/tokenizers/tokenizer.h"
#include "tests/server/text/data.h"
#include "tests/support/temp_dir.h"

namespace recurve::load_tokenizer_test {

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string golden_json() {
  return testing::read_text(testing::golden_tokenizer_dir() / "tokenizer.json");
}

TEST(LoadTokenizer, None) {
  TempDir dir;
  EXPECT_EQ(
      error_of([&] { load_tokenizer(dir.path()); }),
      dir.path().string() +
          ": no tokenizer found, expected tokenizer.json, tokenizer.model or "
          "rwkv_vocab_v20230424.txt; give its folder with --tokenizer, or none for prompts of "
          "token ids");
}

TEST(LoadTokenizer, TokenizerJson) {
  TempDir dir;
  write(dir / "tokenizer.json", golden_json());
  const auto tokenizer = load_tokenizer(dir.path());
  EXPECT_EQ(tokenizer->size(), 583);
  EXPECT_EQ(tokenizer->bos_id(), 0);
}

TEST(LoadTokenizer, NamesOfTokenizerConfig) {
  TempDir dir;
  write(dir / "tokenizer.json", golden_json());
  write(dir / "tokenizer_config.json",
        R"({"bos_token": "<|padding|>", "eos_token": {"content": "<|endoftext|>"}, "x": [1]})");
  const auto tokenizer = load_tokenizer(dir.path());
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 0);
  write(dir / "tokenizer_config.json", R"({"bos_token": null, "eos_token": "<end>"})");
  EXPECT_NE(error_of([&] { load_tokenizer(dir.path()); }).find("\"<end>\""), std::string::npos);
  write(dir / "tokenizer_config.json", R"({"bos_token": 3})");
  EXPECT_NE(error_of([&] { load_tokenizer(dir.path()); }), "");
  write(dir / "tokenizer_config.json", R"({"bos_token")");
  EXPECT_NE(error_of([&] { load_tokenizer(dir.path()); }), "");
}

TEST(LoadTokenizer, JsonOfAnotherKindGivesWayToSentencePiece) {
  const auto model = testing::shared_data() / "tokenizers/sentencepiece_test_model.model";
  RECURVE_NEEDS_DATA(model);
  TempDir dir;
  write(dir / "tokenizer.json", R"({"model": {"type": "WordLevel"}, "decoder": {"type": "Fuse"}})");
  EXPECT_EQ(error_of([&] { load_tokenizer(dir.path()); }),
            (dir / "tokenizer.json").string() + ": model.type = \"WordLevel\" is not supported");
  write(dir / "tokenizer.model", testing::read_text(model));
  EXPECT_EQ(load_tokenizer(dir.path())->size(), 1000);
  write(dir / "tokenizer.json", golden_json());  // wins if it can be used
  EXPECT_EQ(load_tokenizer(dir.path())->size(), 583);
  write(dir / "tokenizer.json", "{");  // broken is not of another kind
  EXPECT_NE(error_of([&] { load_tokenizer(dir.path()); }), "");
}

TEST(LoadTokenizer, Unreadable) {
  TempDir dir;
  std::filesystem::create_directory(dir / "tokenizer.json");
  EXPECT_NE(error_of([&] { load_tokenizer(dir.path()); }), "");
  TempDir empty;
  write(empty / "tokenizer.model", "");
  EXPECT_NE(error_of([&] { load_tokenizer(empty.path()); }), "");
}

TEST(CheckFits, IdsMustHaveRows) {
  TempDir dir;
  write(dir / "tokenizer.json", golden_json());
  const auto tokenizer = load_tokenizer(dir.path());
  EXPECT_EQ(error_of([&] { check_fits(*tokenizer, 583, "model"); }), "");
  EXPECT_EQ(error_of([&] { check_fits(*tokenizer, 640, "model"); }), "");
  EXPECT_EQ(error_of([&] { check_fits(*tokenizer, 582, "model"); }),
            "model: the tokenizer has 583 ids, but the model's vocabulary only 582 rows: give the "
            "model's own with --tokenizer");
}

}  // namespace recurve::load_tokenizer_test
