#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/net/frame_counter.h"

namespace recurve::body_counter_test {

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string frame(uint8_t kind, uint8_t flags, uint32_t stream, const std::string& payload = "") {
  std::string bytes;
  for (const int shift : {16, 8, 0}) bytes += static_cast<char>(payload.size() >> shift);
  bytes += static_cast<char>(kind);
  bytes += static_cast<char>(flags);
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(stream >> shift);
  return bytes + payload;
}
std::string headers(uint32_t stream) { return frame(kHeadersFrame, kEndHeadersFlag, stream); }
// The head of a message of `size` bytes, and the received part of its body.
std::string message(uint32_t size, size_t come) {
  std::string bytes(1, '\0');
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(size >> shift);
  return bytes + std::string(come, 'x');
}

constexpr TenantId kOne = kVisitors | 1, kOther = kVisitors | TenantId{7} << kConnectionBits | 2;
constexpr int64_t kMost = 8 << 20;

// A connection whose preface has arrived.
class Connection {
 public:
  Connection(std::shared_ptr<ByteBudget> budget, TenantId share)
      : counter_({.bodies = std::move(budget)}, "192.0.2.1", share) {
    received(kPreface);
  }
  // Whether its messages fit the budget.
  bool received(std::string_view bytes) {
    const auto flood = counter_.received(bytes, {});
    EXPECT_EQ(flood.value_or(FrameCounter::Flood::kBodies), FrameCounter::Flood::kBodies);
    return !flood;
  }
  void sent(std::string_view bytes) { counter_.sent(bytes); }

 private:
  FrameCounter counter_;
};

class BodyCounterTest : public ::testing::Test {
 protected:
  const std::shared_ptr<ByteBudget> budget_ = std::make_shared<ByteBudget>(kMost);
  Connection counter_{budget_, kOne};
};

TEST_F(BodyCounterTest, CountsReceivedBytesUntilTheMessageIsComplete) {
  EXPECT_TRUE(counter_.received(headers(1) + frame(kDataFrame, 0, 1, message(1000, 999))));
  EXPECT_GE(budget_->used(kOne), 999);
  EXPECT_TRUE(counter_.received(frame(kDataFrame, 0, 1, "x" + message(70'000, 0))));
  EXPECT_EQ(budget_->used(), 0) << "complete; the next one begins";
  const std::string most(16'000, 'x');
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(counter_.received(frame(kDataFrame, 0, 1, most)));
  EXPECT_GE(budget_->used(kOne), 64'000);
  EXPECT_TRUE(counter_.received(frame(kDataFrame, kEndStreamFlag, 1, std::string(6000, 'x'))));
  EXPECT_EQ(budget_->used(), 0);
}

TEST_F(BodyCounterTest, AStreamThatEitherSideEndsFreesItsBytes) {
  const std::string half = frame(kDataFrame, 0, 1, message(1000, 500));
  const std::string next = frame(kDataFrame, 0, 1, std::string(100, 'x'));
  for (const std::string& end : {frame(kResetFrame, 0, 1, "code"), frame(kDataFrame, 1, 1),
                                 frame(kHeadersFrame, kEndHeadersFlag | kEndStreamFlag, 1)}) {
    EXPECT_TRUE(counter_.received(headers(1) + half));
    EXPECT_GT(budget_->used(), 0);
    EXPECT_TRUE(counter_.received(end));
    EXPECT_EQ(budget_->used(), 0);
  }
  for (const std::string& end : {frame(kResetFrame, 0, 1, "code"),
                                 frame(kHeadersFrame, kEndHeadersFlag | kEndStreamFlag, 1)}) {
    EXPECT_TRUE(counter_.received(headers(1) + half));
    counter_.sent(frame(kSettingsFrame, 0, 0) + headers(1) + frame(kDataFrame, 0, 1, "answer"));
    EXPECT_GT(budget_->used(), 0);
    counter_.sent(end);
    EXPECT_EQ(budget_->used(), 0);
    EXPECT_TRUE(counter_.received(next)) << "which gRPC ignores";
    EXPECT_EQ(budget_->used(), 0);
  }
}

TEST_F(BodyCounterTest, PaddingIsNotPartOfTheMessage) {
  const std::string padded = std::string(1, '\x05') + message(8, 3) + std::string(5, '\0');
  EXPECT_TRUE(counter_.received(headers(1) + frame(kDataFrame, kPaddedFlag, 1, padded)));
  EXPECT_GT(budget_->used(), 0) << "five bytes are missing, and padding does not count";
  EXPECT_TRUE(counter_.received(frame(kDataFrame, 0, 1, "12345")));
  EXPECT_EQ(budget_->used(), 0);
}

TEST_F(BodyCounterTest, BytesMayArriveInAnyPieces) {
  std::string all;
  for (uint32_t stream = 1; stream < 9; stream += 2) {
    all += headers(stream) + frame(kDataFrame, 0, stream, message(300, 200)) +
           frame(kDataFrame, kPaddedFlag, stream, std::string(1, '\x02') + "yyy" + "\0\0");
  }
  for (uint32_t stream = 1; stream < 9; stream += 2) {
    all += frame(kDataFrame, kEndStreamFlag, stream, std::string(97, 'z'));
  }
  for (const size_t piece : {1u, 2u, 7u, 100u}) {
    Connection counter(budget_, kOne);
    bool held = false;
    for (size_t at = 0; at < all.size(); at += piece) {
      EXPECT_TRUE(counter.received(std::string_view(all).substr(at, piece)));
      held |= budget_->used() > 0;
    }
    EXPECT_TRUE(held);
    EXPECT_EQ(budget_->used(), 0) << piece;
  }
}

// Regardless of the number of streams: another network has its part.
TEST_F(BodyCounterTest, IncompleteMessagesOfOneConnectionLeaveCapacityForOthers) {
  const std::string part(16'000, 'x');
  uint32_t stream = 1;
  int64_t taken = 0;
  while (counter_.received(headers(stream) + frame(kDataFrame, 0, stream, message(16 << 20, 0)) +
                           frame(kDataFrame, 0, stream, part))) {
    taken += static_cast<int64_t>(part.size());
    stream += 2;
    ASSERT_LT(taken, kMost);
  }
  EXPECT_GT(taken, kMost / 2);
  Connection other(budget_, kOther);
  other.received(headers(1) + frame(kDataFrame, 0, 1, message(1 << 20, 0)));
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(other.received(frame(kDataFrame, 0, 1, part))) << i;
}

}  // namespace recurve::body_counter_test
