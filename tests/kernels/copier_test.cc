#include "kernels/copier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <future>
#include <numeric>

#include "tests/support/engine/held_copies.h"
#include "tests/support/kernels/devices.h"

namespace recurve::testing::copier_test {

using ::testing::HasSubstr;
using Bytes = std::vector<uint8_t>;

Bytes counted(size_t count, uint8_t first) {
  Bytes bytes(count);
  std::iota(bytes.begin(), bytes.end(), first);
  return bytes;
}

class CopierTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = why_unusable(GetParam()); !why.empty()) GTEST_SKIP() << why;
    backend_ = make_backend(GetParam(), 1);
    stream_ = backend_->make_stream();
  }
  Bytes read(const Buffer& from) {
    Bytes bytes(from.bytes());
    backend_->download(bytes.data(), from.data(), bytes.size(), *stream_);
    stream_->wait();
    return bytes;
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
};

TEST_P(CopierTest, PiecesGoWhereTheyAreSent) {
  const Bytes host = counted(1000, 3);
  Bytes back(1000);
  Buffer a = backend_->allocate(1000), b = backend_->allocate(1000);
  Copier copier(*backend_);
  copier.start({.pieces = {{a.data(), host.data() + 500, 500},
                           {a.data() + 500, host.data(), 499},
                           {a.data() + 999, nullptr, 0}}},
               *stream_);
  copier.start({.pieces = {{b.data(), a.data(), 1000}}}, *stream_);
  copier.start({.pieces = {{a.data() + 1, nullptr, 2}}}, *stream_);
  copier.wait(copier.start({.pieces = {{back.data(), b.data(), 1000}}}, *stream_));
  Bytes want(host.begin() + 500, host.end());
  want.insert(want.end(), host.begin(), host.begin() + 499);
  want.push_back(0);
  EXPECT_EQ(back, want);
  EXPECT_EQ(read(b), want);
  want[1] = want[2] = 0;
  EXPECT_EQ(read(a), want);
}

TEST_P(CopierTest, LargePiecesBeginAndEndAnywhere) {
  constexpr size_t kBytes = size_t{1} << 20, kGap = 67;
  const Bytes host = counted(kBytes + kGap, 1);
  Buffer a = backend_->allocate(kBytes + kGap);
  Copier copier(*backend_);
  for (const size_t to : {0, 1, 63, 64, 65}) {
    for (const size_t bytes : {kBytes, kBytes - 1, kBytes - 33}) {
      copier.start({.pieces = {{a.data(), nullptr, a.bytes()}}}, *stream_);
      copier.wait(copier.start({.pieces = {{a.data() + to, host.data() + 5, bytes}}}, *stream_));
      Bytes want(kBytes + kGap);
      std::copy_n(host.begin() + 5, bytes, want.begin() + static_cast<ptrdiff_t>(to));
      ASSERT_EQ(read(a), want) << to << " " << bytes;
    }
  }
}

// So large that the host makes it by two threads: the middle is within a piece, or between two.
TEST_P(CopierTest, VeryLargeCopiesAreWhole) {
  constexpr size_t kBytes = size_t{20} << 20;
  const Bytes host = counted(kBytes, 1);
  Buffer a = backend_->allocate(kBytes);
  Copier copier(*backend_);
  for (const size_t first : {size_t{0}, size_t{1000}, kBytes / 2, kBytes / 2 + 1, kBytes - 3}) {
    copier.start({.pieces = {{a.data(), nullptr, kBytes}}}, *stream_);
    copier.wait(copier.start({.pieces = {{a.data(), host.data() + kBytes - first, first},
                                         {a.data() + first, host.data(), kBytes - first}}},
                             *stream_));
    Bytes want(host.end() - static_cast<ptrdiff_t>(first), host.end());
    want.insert(want.end(), host.begin(), host.end() - static_cast<ptrdiff_t>(first));
    ASSERT_TRUE(read(a) == want) << first;
  }
  copier.wait(copier.start({.pieces = {{a.data() + 1, nullptr, kBytes - 2}}}, *stream_));
  Bytes want(kBytes);
  want.front() = host[3];
  want.back() = host[2];
  ASSERT_TRUE(read(a) == want);
}

// What a stream has been given before is there when the copy begins.
TEST_P(CopierTest, ACopyBeginsAfterTheStream) {
  constexpr size_t kBytes = size_t{64} << 20;
  const HostMemory host = backend_->allocate_host(kBytes);
  std::memset(host.get(), 7, kBytes);
  Buffer a = backend_->allocate(kBytes), b = backend_->allocate(kBytes);
  Bytes last(1);
  Copier copier(*backend_);
  for (int i = 0; i < 4; ++i) backend_->upload(a.data(), host.get(), kBytes, *stream_);
  backend_->copy(b.data(), a.data(), kBytes, *stream_);
  copier.wait(copier.start({.pieces = {{last.data(), b.data() + kBytes - 1, 1}}}, *stream_));
  EXPECT_EQ(last[0], 7);
  stream_->wait();
}

TEST_P(CopierTest, PinnedMemoryIsCopiedLikeAnyOther) {
  constexpr size_t kBytes = size_t{1} << 20;
  void* memory = std::aligned_alloc(4096, kBytes);
  EXPECT_EQ(backend_->pin(memory, kBytes), backend_->pins_host_memory());
  std::memset(memory, 9, kBytes);
  Buffer a = backend_->allocate(kBytes);
  Copier copier(*backend_);
  copier.start({.pieces = {{a.data(), memory, kBytes}}}, *stream_);
  copier.wait(copier.start({.pieces = {{memory, a.data() + 1, kBytes - 1}}}, *stream_));
  EXPECT_EQ(read(a), Bytes(kBytes, 9));
  if (backend_->pins_host_memory()) backend_->unpin(memory);
  std::free(memory);
}

INSTANTIATE_TEST_SUITE_P(Devices, CopierTest, ::testing::ValuesIn(all_devices()),
                         [](const auto& info) { return test_name(info.param); });

class HeldCopier : public ::testing::Test {
 protected:
  HeldCopies backend_{make_backend("reference")};
  std::unique_ptr<Stream> stream_ = backend_.make_stream();
};

TEST_F(HeldCopier, NoThreadWaitsAndWhatACopyNeedsIsRetained) {
  std::promise<void> told;
  Copier copier(backend_, [&told] { told.set_value(); });
  auto kept = std::make_shared<const int>(1);
  const std::weak_ptr<const int> watch = kept;
  uint8_t from = 5, to = 0;
  bool prepared = false;
  backend_.hold();
  const Copier::Ticket ticket = copier.start({.pieces = {{&to, &from, 1}},
                                              .before = [&prepared] { prepared = true; },
                                              .keeps = std::move(kept)},
                                             *stream_);
  EXPECT_EQ(copier.last(), ticket);
  EXPECT_FALSE(copier.done(ticket));
  EXPECT_TRUE(copier.done(0));
  EXPECT_FALSE(watch.expired());
  EXPECT_EQ(to, 0);
  backend_.release();
  told.get_future().wait();
  EXPECT_TRUE(copier.done(ticket));
  EXPECT_TRUE(watch.expired());
  EXPECT_TRUE(prepared);
  EXPECT_EQ(to, 5);
}

TEST_F(HeldCopier, EndsOnceAllIsCopied) {
  uint8_t from = 5, to[20] = {};
  backend_.hold();
  auto copier = std::make_unique<Copier>(backend_);
  for (uint8_t& one : to) copier->start({.pieces = {{&one, &from, 1}}}, *stream_);
  backend_.release();
  copier.reset();
  for (const uint8_t one : to) EXPECT_EQ(one, 5);
}

TEST_F(HeldCopier, AFailureIsReportedToEachCaller) {
  Copier copier(backend_);
  const auto fail = [] { throw std::runtime_error("the device has fallen off the bus"); };
  const Copier::Ticket failed = copier.start({.pieces = {}, .before = fail}, *stream_);
  const auto said = [](const auto& ask) -> std::string {
    try {
      ask();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_THAT(said([&] { copier.wait(failed); }), HasSubstr("fallen off the bus"));
  EXPECT_THAT(said([&] { copier.done(failed); }), HasSubstr("fallen off the bus"));
  EXPECT_THAT(said([&] { copier.start({}, *stream_); }), HasSubstr("fallen off the bus"));
  copier.wait_for_all();
}

}  // namespace recurve::testing::copier_test
