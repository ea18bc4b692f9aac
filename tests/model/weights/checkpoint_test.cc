#include "model/weights/checkpoint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/weights/convert.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

namespace recurve::checkpoint_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() { write_file(dir_ / "config.json", R"({"hidden_size": 2})"); }

  void write_index(const std::string& weight_map) {
    write_file(dir_ / kIndex,
               R"({"metadata": {"total_size": 1}, "weight_map": )" + weight_map + "}");
  }
  // Shards s1 with "a" (2) and "b" (2, 2), s2 with "c" (1).
  void write_two_shards() {
    SafetensorsWriter()
        .add_f32("b", {2, 2}, {3, 4, 5, 6})
        .add_f32("a", {2}, {1, 2})
        .write(dir_ / "s1");
    SafetensorsWriter().add_f32("c", {1}, {7}).write(dir_ / "s2");
  }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  std::string open_error() const {
    return error_of([&] { Checkpoint::open(dir_.path()); });
  }

  const TempDir dir_;
};

TEST_F(CheckpointTest, ReadsASingleFile) {
  SafetensorsWriter().add_bf16("a", {2}, {0x3f80, 0xc000}).write(dir_ / kSingle);
  Checkpoint checkpoint = Checkpoint::open(dir_.path());
  EXPECT_EQ(checkpoint.config().at("hidden_size"), 2);
  EXPECT_EQ(checkpoint.config_file(), path("config.json"));
  EXPECT_FALSE(checkpoint.is_random());
  EXPECT_EQ(host_values(checkpoint.take("a", {2})), (std::vector<float>{1, -2}));
  EXPECT_TRUE(checkpoint.ok());
  checkpoint.finish();
}

TEST_F(CheckpointTest, ReadsShards) {
  write_two_shards();
  write_index(R"({"a": "s1", "b": "s1", "c": "s2"})");
  Checkpoint opened = Checkpoint::open(dir_.path());
  Checkpoint checkpoint = std::move(opened);  // views and names survive a move
  EXPECT_EQ(host_values(checkpoint.take("a", {2})), (std::vector<float>{1, 2}));
  EXPECT_EQ(host_values(checkpoint.take("b", {2, 2})), (std::vector<float>{3, 4, 5, 6}));
  const TensorView c = checkpoint.take("c", {1});
  EXPECT_EQ(c.path(), path("s2"));
  EXPECT_EQ(host_values(c), (std::vector<float>{7}));
  checkpoint.finish();
}

TEST_F(CheckpointTest, RefusesIndexesThatDoNotFitTheShards) {
  write_two_shards();
  const auto error = [this](const std::string& map) {
    write_index(map);
    return open_error();
  };
  EXPECT_THAT(error(R"({"a": "s1", "b": "s1", "c": "s2", "d": "s2"})"),
              AllOf(StartsWith(path("s2") + ": tensor \"d\": wanted it here, as "),
                    HasSubstr(path(kIndex)), HasSubstr("found none")));
  EXPECT_THAT(error(R"({"a": "s1", "c": "s2"})"),
              AllOf(StartsWith(path("s1") + ": tensor \"b\": wanted it in the weight_map of "),
                    HasSubstr("found it only here")));
  EXPECT_THAT(error(R"({"a": "s1", "b": "s2", "c": "s2"})"),
              AllOf(StartsWith(path("s1") + ": tensor \"b\": wanted it in \"s2\" only"),
                    HasSubstr("found it here too")));
  EXPECT_THAT(error(R"({"a": "s1", "b": "s1", "c": "s3"})"),
              AllOf(StartsWith(path(kIndex)), HasSubstr("wanted the file \"s3\"")));
  EXPECT_THAT(error(R"({"a": "s1", "b": "s1", "c": "s2", "a": "s2"})"),
              HasSubstr("wanted each key once, found \"a\" twice"));
  EXPECT_THAT(error("[]"), HasSubstr("wanted an object \"weight_map\", found array"));
  EXPECT_THAT(error("{}"), HasSubstr("wanted tensors in its weight_map, found none"));
  EXPECT_THAT(error(R"({"a": 1})"), HasSubstr("tensor \"a\": wanted the name of a file"));
  write_file(dir_ / kIndex, "{}");
  EXPECT_THAT(open_error(), HasSubstr("wanted an object \"weight_map\", found none"));
}

TEST_F(CheckpointTest, RefusesATensorInTwoShards) {
  SafetensorsWriter().add_f32("a", {1}, {1}).write(dir_ / "s1");
  SafetensorsWriter().add_f32("a", {1}, {2}).add_f32("b", {1}, {2}).write(dir_ / "s2");
  write_index(R"({"a": "s1", "b": "s2"})");
  EXPECT_THAT(open_error(), AllOf(StartsWith(path("s2") + ": tensor \"a\""),
                                  HasSubstr("wanted it in \"s1\" only")));
}

// Either of the two may be stale.
TEST_F(CheckpointTest, RefusesASingleFileNextToShards) {
  write_two_shards();
  write_index(R"({"a": "s1", "b": "s1", "c": "s2"})");
  SafetensorsWriter().add_f32("a", {2}, {8, 9}).write(dir_ / kSingle);
  EXPECT_EQ(open_error(), dir_.path().string() +
                              ": wanted model.safetensors or model.safetensors.index.json, found "
                              "both; remove the one that is stale");
  // An index of that file says the same as the file.
  write_index(R"({"a": "model.safetensors"})");
  EXPECT_EQ(host_values(Checkpoint::open(dir_.path()).take("a", {2})), (std::vector<float>{8, 9}));
}

TEST_F(CheckpointTest, NeverLeavesTheDirectory) {
  write_two_shards();
  for (const std::string shard :
       {"../s1", "/etc/passwd", "sub/s1", "..", ".", "", "s\\\\1", "s1\\u0000"}) {
    write_index(fmt::format(R"({{"a": "{}"}})", shard));
    EXPECT_THAT(open_error(), HasSubstr("wanted the name of a file in the same directory"))
        << shard;
  }
}

TEST_F(CheckpointTest, RefusesDirectoriesThatAreNoModel) {
  EXPECT_EQ(open_error(), dir_.path().string() +
                              ": wanted model.safetensors or model.safetensors.index.json, found "
                              "neither");
  write_file(dir_ / "pytorch_model.bin", "");
  EXPECT_THAT(open_error(), HasSubstr("it has pytorch_model.bin, which python -m weights_tools"));
  write_file(dir_ / "config.json", "{");
  EXPECT_THAT(open_error(), HasSubstr("config.json: wanted JSON"));
  std::filesystem::remove(dir_ / "config.json");
  EXPECT_THAT(open_error(), HasSubstr("config.json: wanted a readable file"));
  EXPECT_THAT(error_of([&] { Checkpoint::open(dir_ / "none"); }),
              HasSubstr("none: wanted the directory of a model, found nothing of that name"));
  EXPECT_THAT(error_of([&] { Checkpoint::open(dir_ / "pytorch_model.bin"); }),
              HasSubstr("wanted the directory of a model, found a file"));
}

TEST_F(CheckpointTest, SaysHowToGetADirectoryOfAModel) {
  std::filesystem::remove(dir_ / "config.json");
  write_file(dir_ / "model.gguf", "GGUF");
  const std::string file = (dir_ / "model.gguf").string();
  const std::string convert = "convert it first: python -m weights_tools convert " + file + " DIR";
  EXPECT_THAT(error_of([&] { Checkpoint::open(file); }), HasSubstr("found a file; " + convert));
  EXPECT_THAT(open_error(), HasSubstr("wanted config.json, found model.gguf; " + convert));
  EXPECT_THAT(error_of([] { Checkpoint::open("org-of-hub/name-1b"); }),
              HasSubstr("download it first: hf download org-of-hub/name-1b --local-dir DIR"));
  for (const char* path : {"/no-such/model", "./no-such", "no-such", "a/b/c"}) {
    EXPECT_THAT(error_of([&] { Checkpoint::open(path); }), ::testing::EndsWith("of that name"));
  }
}

TEST_F(CheckpointTest, ReportsAllThatIsMissingMisshapenOrLeftOver) {
  SafetensorsWriter()
      .add_f32("good", {1}, {1})
      .add_f32("bent", {2, 3}, std::vector<float>(6))
      .add("whole", "I64", {1}, std::string(8, '\0'))
      .add_f32("surplus", {1}, {1})
      .write(dir_ / kSingle);
  Checkpoint checkpoint = Checkpoint::open(dir_.path());
  EXPECT_TRUE(checkpoint.take("good", {1}).present());
  EXPECT_TRUE(checkpoint.ok());
  EXPECT_FALSE(checkpoint.take("gone", {4, 2}).present());
  EXPECT_FALSE(checkpoint.ok());
  EXPECT_FALSE(checkpoint.take_any({"lost", "forgotten"}, {{8}, {2, 4}}).present());
  EXPECT_FALSE(checkpoint.take("bent", {3, 2}).present());
  EXPECT_FALSE(checkpoint.take("whole", {1}).present());
  const std::string file = path(kSingle);
  EXPECT_EQ(error_of([&] { checkpoint.finish(); }),
            dir_.path().string() +
                ": the weights do not fit the config: "
                "2 missing tensors: " +
                file +
                ": tensor \"gone\": wanted F32, F16 or BF16 [4, 2], "
                "found none; " +
                file +
                ": tensor \"lost\" or \"forgotten\": wanted F32, F16 or "
                "BF16 [8] or [2, 4], found none; "
                "2 tensors of the wrong shape or type: " +
                file +
                ": tensor \"bent\": wanted F32, "
                "F16 or BF16 [3, 2], found F32 [2, 3]; " +
                file +
                ": tensor \"whole\": wanted F32, "
                "F16 or BF16 [1], found I64 [1]; "
                "1 tensor that the model does not have: " +
                file +
                ": tensor \"surplus\": wanted "
                "none of that name, found F32 [1]");
}

TEST_F(CheckpointTest, ListsTenOfManyAndCountsTheRest) {
  SafetensorsWriter writer;
  for (int i = 10; i < 35; ++i) writer.add_f32(fmt::format("extra{}", i), {1}, {0});
  writer.write(dir_ / kSingle);
  Checkpoint checkpoint = Checkpoint::open(dir_.path());
  const std::string error = error_of([&] { checkpoint.finish(); });
  EXPECT_THAT(error, AllOf(HasSubstr("25 tensors that the model does not have"),
                           HasSubstr("extra10"), HasSubstr("extra19"), HasSubstr("and 15 more")));
  EXPECT_THAT(error, Not(HasSubstr("extra20")));
}

TEST_F(CheckpointTest, KnowsVariantsAndHarmlessExtras) {
  SafetensorsWriter()
      .add_f32("model.norm.weight", {2, 2}, {1, 2, 3, 4})
      .add_f32("lm_head.weight", {1}, {5})
      .write(dir_ / kSingle);
  Checkpoint checkpoint = Checkpoint::open(dir_.path());
  EXPECT_EQ(checkpoint.detect_prefix({"backbone.", "model.", ""}, "norm.weight"), "model.");
  EXPECT_EQ(checkpoint.detect_prefix({"backbone.", "model.", ""}, "none"), "backbone.");
  EXPECT_NE(checkpoint.find("lm_head.weight"), nullptr);
  EXPECT_EQ(checkpoint.find("head.weight"), nullptr);
  EXPECT_EQ(checkpoint.take_any({"norm.weight", "model.norm.weight"}, {{4}, {2, 2}}).count(), 4);
  EXPECT_TRUE(checkpoint.ok());
  checkpoint.allow_extra({"lm_head.weight", "not.even.there"});
  EXPECT_EQ(error_of([&] { checkpoint.finish(); }), "");
}

TEST(RandomCheckpoint, HasWhateverIsAsked) {
  Checkpoint checkpoint = Checkpoint::random({{"hidden_size", 64}}, 1, "xlstm-7b.json");
  EXPECT_TRUE(checkpoint.is_random());
  EXPECT_EQ(checkpoint.config_file(), "xlstm-7b.json");
  EXPECT_EQ(checkpoint.detect_prefix({"backbone.", ""}, "w"), "backbone.");
  EXPECT_EQ(checkpoint.find("w"), nullptr);
  double mean = 0;
  for (const float v : host_values(checkpoint.take("out_norm.weight", {1000}))) mean += v / 1000;
  EXPECT_NEAR(mean, 1, 0.02);
  EXPECT_THAT(error_of([&] { checkpoint.take("w", {INT64_MAX, 2}); }),
              HasSubstr("xlstm-7b.json: tensor \"w\": wanted a shape that fits memory"));
  checkpoint.finish();
}

}  // namespace recurve::checkpoint_test
