#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <stdexcept>
#include <vector>

#include "kernels/activation_type.h"
#include "kernels/arithmetic.h"

namespace recurve::backend_test {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Pair;
using ::testing::StartsWith;

#if RECURVE_CPU
constexpr bool kHasCpu = true;
#else
constexpr bool kHasCpu = false;
#endif

// RECURVE_KERNELS for the length of a test.
class Forced {
 public:
  explicit Forced(const char* value) { setenv("RECURVE_KERNELS", value, 1); }
  ~Forced() { unsetenv("RECURVE_KERNELS"); }
};

std::map<std::string, std::string> implementations(const Backend& backend) {
  std::map<std::string, std::string> found;
  backend.kernels().for_each([&](const char* op, const char* name) { found[op] = name; });
  return found;
}

std::string error_of(std::string_view device) {
  try {
    make_backend(device);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

// The sum of 1, 2^24 and -2^24 by a linear layer: 0 where one vector lane adds them in this order,
// as 2^24 + 1 is no number of fp32; 1 where each is in a separate lane, which are added as
// dot_tile-inl.h says.
float sum_by(Backend& backend) {
  constexpr int kColumns = 16;
  const std::vector<float> ones(kColumns, 1.0f);
  std::vector<float> x(kColumns);
  x[0] = 1, x[1] = 0x1p24f, x[2] = -0x1p24f;
  float sum = 0;
  const auto stream = backend.make_stream();
  backend.kernels().linear(
      {.rows = 1, .W = {DType::kF32, 1, kColumns, ones.data()}, .x = x.data(), .y = &sum}, *stream);
  stream->wait();
  return sum;
}

TEST(Backend, ReferenceHasEveryOp) {
  const auto backend = make_backend("reference");
  EXPECT_EQ(backend->name(), "reference");
  EXPECT_THAT(implementations(*backend), Contains(Key("mlstm")));
  for (const auto& [op, name] : implementations(*backend)) EXPECT_EQ(name, "reference") << op;
}

TEST(Backend, CpuSaysItsThreadsAndVectors) {
  if (!kHasCpu) GTEST_SKIP() << "built without Highway";
  const auto backend = make_backend("cpu", 3);
  EXPECT_THAT(backend->name(), StartsWith("cpu, 3 threads, "));
  const auto ops = implementations(*backend);
  // Of a step's ops all that compute much; what chooses tokens is the reference's on the CPU too.
  for (const auto& [op, name] : ops) {
    const bool scalar = op == "feature_map" || op == "take_tokens" || op == "sample";
    EXPECT_THAT(name, StartsWith(scalar ? "reference" : "cpu/")) << op;
  }
}

TEST(Backend, ArithmeticDoesNotDependOnThreadsNorOnTheNumberOfTheGpu) {
  EXPECT_EQ(arithmetic_of(make_backend("reference")->name()), "reference");
  EXPECT_EQ(arithmetic_of("cuda:1, NVIDIA H100, sm_90"), "NVIDIA H100, sm_90");
  EXPECT_EQ(arithmetic_of("cpu, 1 thread, avx2, amx, activations in f32, bf16"),
            "cpu, avx2, amx, activations in f32, bf16");
  if (!kHasCpu) GTEST_SKIP() << "built without Highway";
  const std::string one = make_backend("cpu", 1)->name();
  EXPECT_EQ(arithmetic_of(one), arithmetic_of(make_backend("cpu", 3)->name()));
  EXPECT_EQ("cpu, 1 thread, " + arithmetic_of(one).substr(5), one);
}

TEST(Backend, UnknownDeviceIsRefusedWithThoseThereAre) {
  EXPECT_THAT(error_of("tpu"), AllOf(HasSubstr("'tpu'"), HasSubstr("reference")));
}

TEST(Backend, ImplementationsCanBeForced) {
  if (!kHasCpu) GTEST_SKIP() << "built without Highway";
  const Forced forced("linear=reference,mlstm=cpu");
  const auto ops = implementations(*make_backend("cpu"));
  EXPECT_EQ(ops.at("linear"), "reference");
  EXPECT_THAT(ops.at("mlstm"), StartsWith("cpu/"));
  EXPECT_THAT(ops.at("glu"), StartsWith("cpu/"));
}

// The instruction set is one of the process's: the forced one ends with the next backend.
TEST(Backend, AllOpsCanBeForcedToAnInstructionSet) {
  if (!kHasCpu) GTEST_SKIP() << "built without Highway";
  const auto best = implementations(*make_backend("cpu"));
  std::string there;  // ends with those that there are, the best first
  {
    const Forced forced("all=cpu/abacus");
    there = error_of("cpu");
    EXPECT_THAT(there, AllOf(HasSubstr("'abacus'"), HasSubstr(best.at("add").substr(4))));
  }
  const std::string least = there.substr(there.find_last_of(' ') + 1);
  {
    const Forced forced(("all=cpu/" + least + ",glu=reference").c_str());
    const auto backend = make_backend("cpu", 1, ActivationType::kInt8);
    EXPECT_THAT(backend->name(), HasSubstr(least + ", activations in f32"));
    for (const auto& [op, name] : implementations(*backend)) {
      const bool scalar = best.at(op) == "reference" || op == "glu";
      EXPECT_EQ(name, scalar ? "reference" : "cpu/" + least) << op;
    }
    EXPECT_EQ(sum_by(*backend), least == "scalar" ? 0 : 1);
  }
  {
    const Forced forced("all=reference");
    for (const auto& [op, name] : implementations(*make_backend("cpu"))) {
      EXPECT_EQ(name, "reference") << op;
    }
  }
  const auto backend = make_backend("cpu");
  EXPECT_EQ(implementations(*backend), best);
  EXPECT_EQ(sum_by(*backend), 1);
}

TEST(Backend, WrongForcingIsRefused) {
  {
    const Forced forced("convolution=reference");
    EXPECT_THAT(error_of("reference"), AllOf(HasSubstr("'convolution'"), HasSubstr("rms_norm")));
  }
  {
    const Forced forced("linear=abacus");
    EXPECT_THAT(error_of("reference"), AllOf(HasSubstr("'abacus'"), HasSubstr("reference")));
  }
  {
    const Forced forced("linear");
    EXPECT_THAT(error_of("reference"), HasSubstr("'linear'"));
  }
}

TEST(Backend, MemoryIsZeroedAndAligned) {
  const auto backend = make_backend("reference");
  for (const size_t bytes : {size_t{1}, size_t{100}, size_t{1} << 20, (size_t{3} << 20) + 5}) {
    const Buffer buffer = backend->allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0);
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(buffer.data()[i], std::byte{0});
    std::memset(buffer.data(), 1, bytes);
  }
}

TEST(Backend, MemoryOfNoBytesAndMovedBuffers) {
  const auto backend = make_backend("reference");
  Buffer buffer = backend->allocate(0);
  EXPECT_EQ(buffer.bytes(), 0);
  Buffer other = backend->allocate(64);
  std::byte* data = other.data();
  buffer = std::move(other);
  EXPECT_EQ(buffer.data(), data);
}

TEST(Backend, TooMuchMemoryIsRefused) {
  const auto backend = make_backend("reference");
  EXPECT_THROW(backend->allocate(size_t{1} << 60), std::runtime_error);
}

size_t resident_bytes() {
  size_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * 4096;
}

// A pool of state costs what its used slots cost.
TEST(Backend, UntouchedMemoryIsNotResident) {
  const auto backend = make_backend("reference");
  const size_t before = resident_bytes();
  const Buffer buffer = backend->allocate(size_t{256} << 20);
  buffer.data()[buffer.bytes() / 2] = std::byte{1};
  EXPECT_LT(resident_bytes(), before + (size_t{32} << 20));
}

TEST(Backend, CopiesAndZeroes) {
  const auto backend = make_backend("reference");
  const auto stream = backend->make_stream();
  const std::vector<int32_t> sent = {1, 2, 3, 4};
  const Buffer a = backend->allocate(16), b = backend->allocate(16);
  backend->upload(a.data(), sent.data(), 16, *stream);
  backend->copy(b.data(), a.data(), 16, *stream);
  backend->zero(b.as<int32_t>() + 1, 4, *stream);
  std::vector<int32_t> found(4);
  backend->download(found.data(), b.data(), 16, *stream);
  stream->wait();
  EXPECT_EQ(found, (std::vector<int32_t>{1, 0, 3, 4}));
}

}  // namespace recurve::backend_test
