// What is CUDA's own in the backend; its kernels are tested with those of the other devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "tests/support/kernels/devices.h"

namespace recurve::testing::cuda_backend_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

[[maybe_unused]] std::string error_of(std::string_view device) {
  try {
    make_backend(device);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

class CudaBackend : public ::testing::Test {
 protected:
  void SetUp() override {
#if RECURVE_CUDA
    if (const std::string why = why_unusable("cuda:0"); !why.empty()) GTEST_SKIP() << why;
#else
    GTEST_SKIP() << "built without CUDA";
#endif
  }
};

#if RECURVE_CUDA
TEST(CudaDevice, WrongNamesAreRefused) {
  for (const char* name : {"cuda:", "cuda:one", "cuda:-1", "cuda:1x"}) {
    EXPECT_THAT(error_of(name), AllOf(HasSubstr(name), HasSubstr("cuda:N"))) << name;
  }
}

// With a driver for want of the GPU, without one for want of that.
TEST(CudaDevice, AGpuThatIsNotThereIsRefusedInASentence) {
  EXPECT_THAT(error_of("cuda:99"), AllOf(HasSubstr("'cuda:99'"), HasSubstr("GPU")));
}
#endif

// Of every GPU that this build has code for: model/layers/required_ops.h asks.
TEST_F(CudaBackend, SaysWhatItsKernelsHaveNoRoomFor) {
  const auto backend = make_backend("cuda:0");
  const Kernels& kernels = backend->kernels();
  for (const int chunk : {1, 64}) {
    for (const int keys : {16, 256, 512}) {
      EXPECT_EQ(kernels.ssd.cannot({.H = 8, .P = 64, .N = keys, .G = 1, .chunk = chunk}), "");
      EXPECT_EQ(kernels.mlstm.cannot({.H = 8, .DK = keys, .DV = 512, .chunk = chunk}), "");
      EXPECT_EQ(kernels.gla.cannot(
                    {.H = 8, .DK = keys, .DV = 512, .chunk = chunk, .decay = GlaDecay::kChannel}),
                "");
    }
    EXPECT_THAT(kernels.mlstm.cannot({.H = 1, .DK = 4096, .DV = 64, .chunk = chunk}),
                StartsWith("4096 keys a head, but "));
    EXPECT_THAT(kernels.gla.cannot({.H = 1, .DK = 4096, .DV = 64, .chunk = chunk}),
                StartsWith("4096 keys a head, but "));
  }
  EXPECT_THAT(kernels.ssd.cannot({.H = 1, .P = 64, .N = 4096, .G = 1, .chunk = 64}),
              StartsWith("4096 keys a head, but "));
  EXPECT_EQ(kernels.ssd.cannot({.H = 1, .P = 64, .N = 4096, .G = 1, .chunk = 1}), "");
  EXPECT_THAT(kernels.ssd.cannot({.H = 1 << 16, .P = 1, .N = 16, .G = 1, .chunk = 64}),
              HasSubstr("its memory is too small"));
  EXPECT_EQ(kernels.selective_scan.cannot({.D = 64, .N = 256, .R = 8, .chunk = 64}), "");
  EXPECT_THAT(kernels.selective_scan.cannot({.D = 64, .N = 4096, .R = 8, .chunk = 64}),
              StartsWith("4096 states a channel, but "));
}

TEST_F(CudaBackend, SaysWhichGpuItIs) {
  EXPECT_THAT(make_backend("cuda:0")->name(), AllOf(StartsWith("cuda:0, "), HasSubstr("sm_")));
}

TEST_F(CudaBackend, MemoryIsZeroedAlsoWhenUsedBefore) {
  const auto backend = make_backend("cuda:0");
  const auto stream = backend->make_stream();
  for (int round = 0; round < 3; ++round) {
    const Buffer buffer = backend->allocate(100000);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0);
    std::vector<unsigned char> bytes(buffer.bytes(), 1);
    backend->download(bytes.data(), buffer.data(), bytes.size(), *stream);
    stream->wait();
    EXPECT_EQ(bytes, std::vector<unsigned char>(bytes.size(), 0));
    bytes.assign(bytes.size(), 2);
    backend->upload(buffer.data(), bytes.data(), bytes.size(), *stream);
    stream->wait();
  }
}

TEST_F(CudaBackend, CopiesAndZeroesInOrder) {
  const auto backend = make_backend("cuda:0");
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

TEST_F(CudaBackend, TooMuchMemoryIsRefusedWithWhatIsFree) {
  const auto backend = make_backend("cuda:0");
  try {
    backend->allocate(size_t{1} << 50);
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("1125899906842624"), HasSubstr("free")));
  }
  EXPECT_EQ(backend->allocate(100).bytes(), 100);  // nothing is broken
}

}  // namespace recurve::testing::cuda_backend_test
