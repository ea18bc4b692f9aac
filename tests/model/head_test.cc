// Which tensor makes the logits where the config ties them to the embedding: that which the file
// has. Against transformers in golden_test.cc (xlstm/tied_with_head).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/engine/model_runner.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::head_test {

struct HeadCase {
  const char* directory;  // of a golden checkpoint that is not tied
  const char* tie_key;
  const char* embedding;
};

class HeadTest : public ::testing::TestWithParam<HeadCase> {
 protected:
  std::filesystem::path source() const { return golden_dir() / GetParam().directory; }
  // A case of the files in the directory; absolute, so it stands for itself.
  ModelCase here() const { return {dir_.path().string(), DType::kF32}; }

  // The golden config with the head tied.
  void write_tied_config() const {
    nlohmann::json config = Checkpoint::open(source()).config();
    config.erase("time_step_limit");  // without limits, which JSON cannot write
    config[GetParam().tie_key] = true;
    write_file(dir_ / "config.json", config.dump());
  }
  // The golden weights, with the bytes of one tensor instead of those of the head; no name: without
  // a head.
  void write_weights(const std::string& head_from) const {
    const SafetensorsFile file(source() / "model.safetensors");
    SafetensorsWriter writer;
    for (const TensorView& view : file.tensors()) {
      if (view.name == "lm_head.weight" && head_from.empty()) continue;
      const TensorView& from =
          view.name == "lm_head.weight" ? *file.find(head_from) : *file.find(view.name);
      writer.add(std::string(view.name), name_of(from.type), from.shape,
                 {reinterpret_cast<const char*>(from.data), from.bytes});
    }
    write_file(dir_ / "model.safetensors", writer.bytes());
  }

  static std::vector<float> logits_of(ModelRunner& runner) {
    const StateSlot slot = *runner.pool().acquire();
    return runner.forward({{&slot, {3, 1, 4, 1, 5}}});
  }

  const TempDir dir_;
};

TEST_P(HeadTest, OneThatDiffersIsTaken) {
  write_tied_config();
  write_weights("lm_head.weight");
  ModelRunner tied(here(), "reference"), untied({GetParam().directory, DType::kF32}, "reference");
  EXPECT_EQ(logits_of(tied), logits_of(untied));
  EXPECT_EQ(tied.model().info().parameters, untied.model().info().parameters);
  EXPECT_EQ(tied.model().info().head,
            "lm_head.weight, which differs from the embedding though the config ties them");
  EXPECT_EQ(untied.model().info().head, "lm_head.weight");
}

TEST_P(HeadTest, OneThatIsTheSameIsTheEmbedding) {
  write_tied_config();
  write_weights("");
  ModelRunner without(here(), "reference");
  const std::vector<float> wanted = logits_of(without);
  EXPECT_EQ(without.model().info().head, "the embedding");
  write_weights(GetParam().embedding);
  ModelRunner with(here(), "reference");
  EXPECT_EQ(logits_of(with), wanted);
  EXPECT_EQ(with.model().info().head, "the embedding; lm_head.weight is the same");
  EXPECT_EQ(with.model().info().parameters, without.model().info().parameters);
}

TEST_P(HeadTest, OneOfAnotherShapeIsRefusedByName) {
  write_tied_config();
  std::string norm;
  const SafetensorsFile file(source() / "model.safetensors");
  for (const TensorView& view : file.tensors()) {
    if (view.shape.size() == 1) norm = view.name;
  }
  write_weights(norm);
  EXPECT_THAT(error_of([&] { ModelRunner runner(here(), "reference"); }),
              ::testing::HasSubstr("tensor \"lm_head.weight\": wanted F32, F16 or BF16 ["));
}

INSTANTIATE_TEST_SUITE_P(
    Families, HeadTest,
    ::testing::Values(HeadCase{"xlstm/single", "tie_word_embeddings", "backbone.embeddings.weight"},
                      HeadCase{"mamba2/hf", "tie_word_embeddings", "backbone.embeddings.weight"},
                      HeadCase{"gla/gla", "tie_word_embeddings", "model.embeddings.weight"},
                      HeadCase{"xlstm_blocks/cuda", "tie_weights", "token_embedding.weight"},
                      HeadCase{"rnn/lstm_heads", "tie_word_embeddings", "embeddings.weight"}),
    [](const auto& info) {
      std::string name = info.param.directory;
      for (char& c : name) c = c == '/' ? '_' : c;
      return name;
    });

}  // namespace recurve::testing::head_test
