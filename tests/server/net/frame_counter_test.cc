#include "server/net/frame_counter.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>

#include "server/net/frame_guard.h"

namespace recurve::frame_counter_test {

using Flood = FrameCounter::Flood;
using std::chrono::milliseconds;

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
enum Kind : char {
  kData = 0,
  kHeaders,
  kPriority,
  kReset,
  kSettings,
  kPing = 6,
  kContinuation = 9
};

std::string frame(char kind, char flags, const std::string& payload) {
  const size_t n = payload.size();
  const std::string head = {static_cast<char>(n >> 16),
                            static_cast<char>(n >> 8),
                            static_cast<char>(n),
                            kind,
                            flags,
                            0,
                            0,
                            0,
                            1};
  return head + payload;
}

// The number of frames before the one over the limit; -1: none was.
int until_flood(FrameCounter& counter, const std::string& one, int frames, Flood wanted,
                milliseconds between = milliseconds(0)) {
  auto now = FrameCounter::Time() + std::chrono::hours(1);
  counter.received(kPreface, now);
  for (int i = 0; i < frames; ++i, now += between) {
    if (const auto flood = counter.received(one, now)) {
      EXPECT_EQ(*flood, wanted) << name_of(*flood);
      return i;
    }
  }
  return -1;
}

struct Case {
  std::string one;
  Flood flood;
};
const Case kCases[] = {
    {frame(kHeaders, 4, "path") + frame(kReset, 0, "code"), Flood::kResets},
    {frame(kPing, 0, "12345678"), Flood::kPings},
    {frame(kSettings, 0, "123456"), Flood::kSettings},
    {frame(kData, 0, ""), Flood::kEmpty},
    {frame(kPriority, 0, "12345"), Flood::kIgnored},
    {frame(42, 0, "?"), Flood::kIgnored},
};

TEST(FrameCounter, LimitsRates) {
  for (const Case& each : kCases) {
    FrameCounter counter;
    const auto rate = FrameCounter::kRates[static_cast<size_t>(each.flood)];
    EXPECT_EQ(until_flood(counter, each.one, 100'000, each.flood), static_cast<int>(rate.at_once));
  }
}

// A new connection has no new budget.
TEST(FrameCounter, ConnectionsOfANetworkShareTheRateOfResets) {
  const Case& resets = kCases[0];
  const int most = static_cast<int>(FrameCounter::kRates[0].at_once);
  const FrameCounter::Shared shared;
  FrameCounter first(shared, "192.0.2.1");
  EXPECT_EQ(until_flood(first, resets.one, most / 2, resets.flood), -1);
  FrameCounter second(shared, "192.0.2.1");
  EXPECT_EQ(until_flood(second, resets.one, most, resets.flood), most - most / 2);
  FrameCounter third(shared, "192.0.2.1"), stranger(shared, "192.0.2.2");
  EXPECT_EQ(until_flood(third, resets.one, most, resets.flood), 0);
  EXPECT_EQ(until_flood(stranger, resets.one, most, resets.flood), -1);
}

TEST(FrameCounter, AllowsFramesAtTheirRate) {
  for (const Case& each : kCases) {
    FrameCounter counter;
    const auto rate = FrameCounter::kRates[static_cast<size_t>(each.flood)];
    const milliseconds between(static_cast<int>(1000 / rate.per_second) + 1);
    EXPECT_EQ(until_flood(counter, each.one, 30'000, each.flood, between), -1)
        << name_of(each.flood);
  }
}

// Acknowledgements of pings and settings, complete calls with large messages, and ends of streams.
TEST(FrameCounter, AllowsFramesWithoutARate) {
  for (const std::string& one :
       {frame(kPing, 1, "12345678"), frame(kSettings, 1, ""), frame(kData, 1, ""),
        frame(kHeaders, 4, "path") + frame(kData, 0, std::string(16'000, 'x')),
        frame(8, 0, "1234")}) {
    FrameCounter counter;
    EXPECT_EQ(until_flood(counter, one, 50'000, Flood::kResets), -1);
  }
}

TEST(FrameCounter, LimitsHeaderBlocks) {
  const std::string piece = frame(kContinuation, 0, std::string(14'000, 'h'));
  FrameCounter large;
  EXPECT_EQ(until_flood(large, frame(kHeaders, 0, "h") + piece, 1, Flood::kHeaders), -1);
  EXPECT_EQ(large.received(piece + piece + piece, {}), std::nullopt);
  EXPECT_EQ(large.received(piece, {}), Flood::kHeaders);
  FrameCounter many;
  EXPECT_EQ(until_flood(many, frame(kContinuation, 0, ""), 100, Flood::kHeaders),
            FrameCounter::kMostContinuations);
  // Each block is counted separately.
  FrameCounter fine;
  const std::string whole = frame(kHeaders, 0, std::string(16'000, 'h')) +
                            frame(kContinuation, 4, std::string(16'000, 'h'));
  EXPECT_EQ(until_flood(fine, whole, 1000, Flood::kHeaders), -1);
}

// Bytes in any pieces are counted like those in one.
TEST(FrameCounter, CountsTheSameInAnyPieces) {
  std::mt19937 random(7);
  std::string all = kPreface;
  for (int i = 0; i < 3000; ++i) {
    all += frame(kHeaders, 4, std::string(random() % 300, 'h'));
    all += frame(kData, 0, std::string(1 + random() % 3000, 'd'));
    if (i % 2 == 0) all += frame(kReset, 0, "code");
  }
  const auto now = FrameCounter::Time() + std::chrono::hours(1);
  const auto bytes_until = [&](auto next_part) -> size_t {
    FrameCounter counter;
    for (size_t at = 0; at < all.size();) {
      const std::string_view part = std::string_view(all).substr(at, next_part());
      if (counter.received(part, now)) return at + part.size();
      at += part.size();
    }
    return 0;
  };
  const size_t one_by_one = bytes_until([] { return 1; });
  ASSERT_GT(one_by_one, 0U);
  for (int round = 0; round < 5; ++round) {
    size_t last = 0;
    const size_t found = bytes_until([&] { return last = 1 + random() % 9000; });
    EXPECT_GE(found, one_by_one);
    EXPECT_LE(found, one_by_one + last);
  }
}

}  // namespace recurve::frame_counter_test
