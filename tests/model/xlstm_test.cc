// What the config of an xLSTM-large may not say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/registry.h"
#include "tests/support/temp_dir.h"

namespace recurve {
namespace {

using ::testing::HasSubstr;

std::string error_for(const char* key, const nlohmann::json& value) {
  static const std::unique_ptr<Backend> backend = make_backend("reference");
  nlohmann::json config = {{"model_type", "xlstm"}, {"embedding_dim", 64}, {"num_blocks", 1},
                           {"num_heads", 2},        {"vocab_size", 8},     {key, value}};
  return error_of([&] {
    Checkpoint checkpoint = Checkpoint::random(config, 1, "d/config.json");
    load_model(checkpoint, *backend, {});
  });
}

TEST(XlstmConfig, KernelsSayWhichCellItIs) {
  for (const char* key : {"chunkwise_kernel", "sequence_kernel", "step_kernel"}) {
    EXPECT_EQ(error_for(key, "chunkwise--triton_xl_chunk"), "");
    EXPECT_THAT(error_for(key, "chunkwise--triton_xl_chunk_siging"), HasSubstr(key));
  }
}

}  // namespace
}  // namespace recurve
