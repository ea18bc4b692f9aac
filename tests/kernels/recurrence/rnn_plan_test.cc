// How the matrices of recurrent cells are laid out on a GPU, asked without one.
#include "kernels/cuda/sm90/rnn/rnn_plan.h"

#include <gtest/gtest.h>

namespace recurve::testing::rnn_plan_test {

using cuda::sm90::kRnnMostUnits;
using cuda::sm90::kRnnSeqs;
using cuda::sm90::kRnnUnit;
using cuda::sm90::plan_rnn;
using cuda::sm90::RnnPlan;

// As an H200 has them.
constexpr int kMostBytes = 225 << 10;
using AtOnce = std::array<int, cuda::sm90::kRnnClusters.size()>;
constexpr AtOnce kAtOnce = {66, 30, 15, 7};

RnnPlan plan(int H, int DH, int num_seqs, const AtOnce& at_once = kAtOnce) {
  return plan_rnn({H, DH, num_seqs, kMostBytes, at_once});
}

TEST(RnnPlan, HoldsTheWholeMatrixAndFits) {
  for (int DH = 72; DH <= 768; DH += 8) {
    for (const int H : {1, 3, 12, 200}) {
      for (const int num_seqs : {1, 2, 3, 16, 64, 257}) {
        const RnnPlan p = plan(H, DH, num_seqs);
        SCOPED_TRACE(::testing::Message() << H << "x" << DH << ", " << num_seqs << " sequences");
        ASSERT_GT(p.cluster, 0);
        EXPECT_GE(p.cluster * p.units * kRnnUnit, DH);
        EXPECT_LE(p.units, kRnnMostUnits);
        EXPECT_LE(cuda::sm90::rnn_bytes(cuda::sm90::rnn_slabs(DH), p.units), kMostBytes);
        EXPECT_GE(p.seqs, 1);
        EXPECT_LE(p.seqs, kRnnSeqs);
        EXPECT_GE(p.clusters, 1);
        EXPECT_LE(p.clusters, ceil_div(num_seqs, p.seqs)) << "a cluster without sequences";
      }
    }
  }
}

TEST(RnnPlan, LeavesToOthersWhatNoClusterHolds) {
  EXPECT_EQ(plan(1, 776, 1).cluster, 0);
  EXPECT_EQ(plan(1, 1032, 1).cluster, 0);
  EXPECT_EQ(plan(1, 100, 1).cluster, 0) << "rows that are not whole vectors";
  EXPECT_EQ(plan(1, 768, 1, {66, 30, 15, 0}).cluster, 0) << "a GPU with small clusters only";
}

TEST(RnnPlan, SpreadsSequencesBeforeItPutsThemTogether) {
  const auto expect = [](const RnnPlan& p, int seqs, int clusters) {
    EXPECT_EQ(p.cluster, 16);
    EXPECT_EQ(p.seqs, seqs);
    EXPECT_EQ(p.clusters, clusters);
  };
  expect(plan(1, 768, 1), 1, 1);
  expect(plan(1, 768, 7), 1, 7);
  expect(plan(1, 768, 16), 3, 6);
  expect(plan(1, 768, 64), 4, 7);  // in three turns
}

TEST(RnnPlan, FewSequencesTakeMoreBlocksEach) {
  EXPECT_EQ(plan(4, 192, 1).cluster, 16) << "each with as little of the matrix as can be";
  EXPECT_LT(plan(4, 192, 64).cluster, 16) << "so that more run at once";
}

}  // namespace recurve::testing::rnn_plan_test
