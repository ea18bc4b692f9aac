// How the channels of prompts are split into blocks, without a GPU.
#include <gtest/gtest.h>

#include "kernels/cuda/sm80/channels/channel_scan.h"

namespace recurve::testing::channel_scan_plan_test {

using cuda::sm80::channel_scan_bytes;
using cuda::sm80::ChannelScanPlan;

// Of rg_lru, on an H200.
constexpr int kMultiprocessors = 132, kMostBytes = 227 << 10, kSmallBytes = 99 << 10;
ChannelScanPlan plan(int sequences, int D, int most_bytes = kMostBytes) {
  return cuda::sm80::plan_channel_scan({.inputs = 4,
                                        .coefficients = 3,
                                        .sequences = sequences,
                                        .D = D,
                                        .multiprocessors = kMultiprocessors,
                                        .most_bytes = most_bytes});
}

TEST(ChannelScanPlan, HasEveryChannelAndFits) {
  for (const int most_bytes : {kMostBytes, kSmallBytes}) {
    for (const int D : {1, 7, 32, 37, 1023, 2560, 4096, 16384}) {
      for (const int sequences : {1, 2, 3, 16, 132, 133, 1000}) {
        const ChannelScanPlan p = plan(sequences, D, most_bytes);
        SCOPED_TRACE(::testing::Message() << sequences << " sequences of " << D << " channels");
        EXPECT_GE(p.pieces * p.channels, D);
        EXPECT_LT((p.pieces - 1) * p.channels, D) << "a block without channels";
        EXPECT_EQ(p.channels % 8, 0) << "blocks share 32 bytes of a row";
        const int warps = p.wide ? cuda::sm80::kWideScanWarps : cuda::sm80::kNarrowScanWarps;
        EXPECT_LE(channel_scan_bytes(4, 3, warps), most_bytes);
        if (p.wide) {
          EXPECT_LE(p.pieces * sequences, kMultiprocessors) << "blocks that wait";
        }
      }
    }
  }
}

TEST(ChannelScanPlan, FewSequencesHaveWideBlocksOfFewChannels) {
  const auto wide = [](int sequences, int D) {
    const ChannelScanPlan p = plan(sequences, D);
    return p.wide ? p.channels : 0;
  };
  EXPECT_EQ(wide(1, 1024), 8);
  EXPECT_EQ(wide(1, 2048), 16);
  EXPECT_EQ(wide(1, 2560), 32) << "160 blocks of 16 channels would not all run at once";
  EXPECT_EQ(wide(1, 4096), 32);
  EXPECT_EQ(wide(2, 1024), 16);
  EXPECT_EQ(wide(1, 4256), 0);
  EXPECT_EQ(wide(16, 2560), 0);
  EXPECT_FALSE(plan(1, 2560, kSmallBytes).wide) << "a GPU with less shared memory";
}

}  // namespace recurve::testing::channel_scan_plan_test
