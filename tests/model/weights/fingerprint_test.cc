// What Checkpoint::fingerprint() depends on, and what it does not.
#include "model/weights/fingerprint.h"

#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "model/weights/checkpoint.h"
#include "model/weights/convert.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

namespace recurve::fingerprint_test {

constexpr const char* kConfig = R"({"hidden_size": 2, "name": "a"})";
// Floats of "c": three blocks of hashes and a part of one.
constexpr int64_t kLarge = 3 * static_cast<int64_t>(TensorHashes::kBlock) / 4 + 5;

struct Values {
  std::vector<float> a = {1, 2};
  std::vector<uint16_t> b = {0x3f80, 0xc000, 0x4000};
  std::vector<float> c = std::vector<float>(static_cast<size_t>(kLarge), 0.5f);
};

void write_single(const TempDir& dir, const Values& values, const std::string& config = kConfig) {
  write_file(dir / "config.json", config);
  SafetensorsWriter()
      .add_f32("a", {2}, values.a)
      .add_bf16("b", {3}, values.b)
      .add_f32("c", {kLarge}, values.c)
      .write(dir / "model.safetensors");
}

// In two files, in another order.
void write_sharded(const TempDir& dir, const Values& values) {
  write_file(dir / "config.json", kConfig);
  SafetensorsWriter().add_f32("c", {kLarge}, values.c).write(dir / "s1");
  SafetensorsWriter().add_bf16("b", {3}, values.b).add_f32("a", {2}, values.a).write(dir / "s2");
  write_file(dir / "model.safetensors.index.json",
             R"({"weight_map": {"a": "s2", "b": "s2", "c": "s1"}})");
}

// What a loader does with the tensors "a" and "c": copies them as they are or converted, or
// computes with them itself. "b" is always converted.
enum class Use { kCopy, kConvert, kCompute };

std::string fingerprint(const TempDir& dir, Use use = Use::kCopy) {
  const auto backend = make_backend("reference");
  Checkpoint checkpoint = Checkpoint::open(dir.path());
  const TensorView a = checkpoint.take("a", {2}), b = checkpoint.take("b", {3});
  const TensorView c = checkpoint.take("c", {kLarge});
  const Buffer memory = backend->allocate(static_cast<size_t>(kLarge + 8) * sizeof(float));
  const DType to = use == Use::kConvert ? DType::kBF16 : DType::kF32;
  checkpoint.copy_on_finish(b, DType::kF32, *backend, memory.data());
  if (use == Use::kCompute) {
    EXPECT_EQ(host_values(c).size(), static_cast<size_t>(kLarge));
  } else {
    checkpoint.copy_on_finish(a, to, *backend, memory.data() + 16);
    checkpoint.copy_on_finish(c, to, *backend, memory.data() + 24);
    checkpoint.copy_on_finish(c, to, *backend, memory.data() + 24);  // twice, as a tied matrix
  }
  EXPECT_EQ(checkpoint.fingerprint(), "");
  checkpoint.finish();
  return checkpoint.fingerprint();
}

TEST(Fingerprint, IsTheSameForTheSameStoredTensors) {
  const TempDir single, sharded;
  write_single(single, {});
  write_sharded(sharded, {});
  const std::string found = fingerprint(single);
  EXPECT_EQ(found.size(), 32);
  EXPECT_EQ(fingerprint(single), found);
  EXPECT_EQ(fingerprint(sharded), found) << "files do not count";
  for (const Use use : {Use::kConvert, Use::kCompute}) {
    EXPECT_EQ(fingerprint(single, use), found) << "what a tensor is loaded as does not count";
  }
}

TEST(Fingerprint, ChangesWithAnyTensor) {
  const TempDir dir;
  write_single(dir, {});
  const std::string found = fingerprint(dir);
  Values a, b, first, last;
  a.a[1] = 3;
  b.b[0] ^= 1;
  first.c.front() = 1;
  last.c.back() = 1;
  for (const Values& values : {a, b, first, last}) {
    const TempDir other, sharded;
    write_single(other, values);
    write_sharded(sharded, values);
    for (const Use use : {Use::kCopy, Use::kConvert, Use::kCompute}) {
      EXPECT_NE(fingerprint(other, use), found);
    }
    EXPECT_NE(fingerprint(sharded), found);
  }
}

// The same numbers in another type are other stored tensors.
TEST(Fingerprint, ChangesWithTheTypeOfATensor) {
  const TempDir f32, bf16;
  write_file(f32 / "config.json", kConfig);
  write_file(bf16 / "config.json", kConfig);
  SafetensorsWriter().add_f32("a", {1}, {1}).write(f32 / "model.safetensors");
  SafetensorsWriter().add_bf16("a", {1}, {0x3f80}).write(bf16 / "model.safetensors");
  const auto of = [](const TempDir& dir) {
    Checkpoint checkpoint = Checkpoint::open(dir.path());
    checkpoint.take("a", {1});
    checkpoint.finish();
    return checkpoint.fingerprint();
  };
  EXPECT_NE(of(f32), of(bf16));
}

TEST(Fingerprint, ChangesWithWhatTheConfigSaysNotWithHow) {
  const TempDir dir, same, other;
  write_single(dir, {});
  write_single(same, {}, "{\"name\":\"a\",\n\n\"hidden_size\":2}");
  write_single(other, {}, R"({"hidden_size": 2, "name": "b"})");
  EXPECT_EQ(fingerprint(same), fingerprint(dir));
  EXPECT_NE(fingerprint(other), fingerprint(dir));
}

TEST(Fingerprint, OfRandomWeightsIsOfTheSeed) {
  const auto of = [](uint64_t seed) {
    const auto backend = make_backend("reference");
    const Buffer memory = backend->allocate(16);
    Checkpoint checkpoint = Checkpoint::random({{"hidden_size", 2}}, seed);
    checkpoint.copy_on_finish(checkpoint.take("a", {2}), DType::kF32, *backend, memory.data());
    checkpoint.finish();
    return checkpoint.fingerprint();
  };
  EXPECT_EQ(of(1), of(1));
  EXPECT_NE(of(1), of(2));
}

TEST(Fingerprint, IsNoneWhereNothingIsRead) {
  const TempDir dir;
  write_single(dir, {});
  Checkpoint checkpoint = Checkpoint::open(dir.path());
  checkpoint.leave_out_copies();
  for (const char* name : {"a", "b", "c"}) checkpoint.take(name, checkpoint.find(name)->shape);
  checkpoint.finish();
  EXPECT_EQ(checkpoint.fingerprint(), "");
}

TEST(Fingerprint, OfTextsKnowsTheirBorders) {
  const auto of = [](std::vector<std::string> texts) { return fingerprint_of(texts); };
  EXPECT_NE(of({"ab", "c"}), of({"a", "bc"}));
  EXPECT_NE(of({"a", "b"}), of({"b", "a"}));
  EXPECT_NE(of({"a"}), of({"a", ""}));
}

}  // namespace recurve::fingerprint_test
