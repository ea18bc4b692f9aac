// The tokenizer's part of what a model is; the rest is in model/weights/fingerprint_test.
#include <gtest/gtest.h>

#include "server/startup/loaded_model.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

namespace recurve::model_fingerprint_test {

TEST(ModelFingerprint, ChangesWithTheCheckpointAndWithTheTokenizer) {
  const TempDir dir;
  write_file(dir / "tokenizer.json", "{}");
  const std::string first = model_fingerprint("weights", dir.path());
  EXPECT_EQ(first.size(), 32);
  EXPECT_EQ(model_fingerprint("weights", dir.path()), first);
  EXPECT_NE(model_fingerprint("others", dir.path()), first);
  EXPECT_NE(model_fingerprint("weights", std::nullopt), first);
  write_file(dir / "tokenizer.json", "[]");
  const std::string second = model_fingerprint("weights", dir.path());
  EXPECT_NE(second, first);
  write_file(dir / "tokenizer.model", "x");
  EXPECT_NE(model_fingerprint("weights", dir.path()), second);
}

TEST(ModelFingerprint, KnowsWhichFileIsWhich) {
  const TempDir one, other;
  write_file(one / "tokenizer.json", "x");
  write_file(other / "tokenizer.model", "x");
  EXPECT_NE(model_fingerprint("weights", one.path()), model_fingerprint("weights", other.path()));
}

}  // namespace recurve::model_fingerprint_test
