#include "server/startup/startup_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/startup/engine_options.h"
#include "server/text/tokenizers/tokenizer.h"

namespace recurve::startup_table_test {

using ::testing::HasSubstr;
using ::testing::Not;

// The table of a golden checkpoint.
std::string table_of(const std::string& checkpoint, const std::string& state_dir = "",
                     const std::string& weights = "auto") {
  Options options;
  options.weights = weights;
  options.state_dir = state_dir;
  options.state_disk = uint64_t{1} << 30;
  options.model = std::string(RECURVE_SOURCE_DIR) + "/tests/golden/" + checkpoint;
  options.device = "reference";
  const auto backend = make_backend(options.device);
  Checkpoint files = open_checkpoint(options);
  LoadedModel loaded;
  loaded.model = load_model(files, *backend, load_options(options));
  const ModelInfo& model = loaded.model->info();
  loaded.text.tokenizer = std::make_shared<IdTokenizer>(static_cast<int32_t>(model.vocab));
  loaded.info = {
      .model_name = "golden",
      .family = model.family,
      .weight_type = files.weight_formats(),
      .state_bytes = 1,
      .tokens = {.bos = {}, .eos = {7}, .eos_files = {"config.json, generation_config.json"}},
      .slots = 1,
      .max_host_bytes = 1};
  loaded.plan.steps = [](int) { return StepMemory(); };
  EngineStats stats;
  stats.sessions = 3;
  stats.prefix_states_disk = 12;
  stats.prefix_bytes_disk = 3 << 20;
  return startup_table(options, loaded, *backend, stats) +
         listening_table(options, {{"grpc", "[::1]:0", 4711}, {"http", "127.0.0.1:0", 4712}});
}

TEST(StartupTable, SaysWhichTensorTheHeadIs) {
  EXPECT_THAT(
      table_of("xlstm/tied_with_head"),
      HasSubstr("\n  head       lm_head.weight, which differs from the embedding though the "
                "config ties them\n"));
  EXPECT_THAT(table_of("xlstm/tied_bf16"), HasSubstr("\n  head       the embedding\n"));
  EXPECT_THAT(table_of("xlstm/single"), HasSubstr("\n  head       lm_head.weight\n"));
}

TEST(StartupTable, SaysWhichTokensEndAnswersAndInWhichFile) {
  EXPECT_THAT(table_of("xlstm/single"),
              HasSubstr("\n  end tokens 7 (config.json, generation_config.json)\n"));
}

TEST(StartupTable, SaysWhichPortsAreBound) {
  EXPECT_THAT(table_of("xlstm/single"), HasSubstr("\n  grpc       [::1]:4711\n"
                                                  "  http       http://127.0.0.1:4712/\n"));
}

TEST(StartupTable, SaysWhatAnEarlierServerHasStored) {
  EXPECT_THAT(table_of("xlstm/single", "/states"),
              HasSubstr("\n  state dir  /states, at most 1.0 GiB; found 3 sessions, 12 cached "
                        "prefixes, 3.0 MiB\n"));
}

TEST(StartupTable, RecommendsInt8WhereInt4WasMeasuredToCostMuch) {
  const auto recommendation = HasSubstr("with gla, int4 increases the bits per byte by up to 3 %");
  EXPECT_THAT(table_of("gla/gla", "", "int4"), recommendation);
  EXPECT_THAT(table_of("gla/gla", "", "int8"), Not(recommendation));
  EXPECT_THAT(table_of("gla/retnet", "", "int4"), Not(HasSubstr("prefer --weights int8")));
}

}  // namespace recurve::startup_table_test
