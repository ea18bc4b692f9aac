// The tokenizer of RWKV's World models over its whole vocabulary, against the package rwkv:
// tests/golden/world_tokenizer/run.sh makes the folder that RECURVE_WORLD names, and runs this.
#include <cstdlib>

#include "tests/server/text/world.h"

namespace recurve::world_vocabulary_test {

TEST(WorldVocabularyTest, TheWholeIsThePackages) {
  const char* folder = std::getenv("RECURVE_WORLD");
  ASSERT_NE(folder, nullptr) << "to be run by tests/golden/world_tokenizer/run.sh";
  const auto tokenizer = load_tokenizer(folder);
  EXPECT_EQ(tokenizer->size(), 65530);
  testing::expect_as_the_package(*tokenizer, folder);
}

}  // namespace recurve::world_vocabulary_test
