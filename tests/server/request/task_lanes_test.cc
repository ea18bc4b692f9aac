#include "server/request/task_lanes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace recurve::task_lanes_test {

using ::testing::ElementsAre;

// Tasks are numbers here: a hundred times the lane, and which it is of that lane.
using Lanes = TaskLanes<int>;

struct Waiting {
  Waiting(int lanes, int of_each) {
    for (int lane = 0; lane < lanes; ++lane) {
      for (int i = 0; i < of_each; ++i) {
        tasks[static_cast<size_t>(lane)][static_cast<size_t>(i)] = 100 * lane + i;
        line.push(&tasks[static_cast<size_t>(lane)][static_cast<size_t>(i)], lane);
      }
    }
  }
  int pop(bool may_be_long = true) {
    const Lanes::Next next = line.pop(may_be_long);
    return next.task == nullptr ? -1 : *next.task;
  }
  std::array<std::array<int, 16>, Lanes::kLanes> tasks{};
  Lanes line;
};

TEST(TaskLanesTest, LanesAreByBytes) {
  EXPECT_EQ(Lanes::lane_of(0), 0);
  EXPECT_EQ(Lanes::lane_of(4 << 10), 0);
  EXPECT_EQ(Lanes::lane_of((4 << 10) + 1), 1);
  EXPECT_EQ(Lanes::lane_of(64 << 10), 1);
  EXPECT_EQ(Lanes::lane_of(1 << 20), 2);
  EXPECT_EQ(Lanes::lane_of(16 << 20), 3);
}

TEST(TaskLanesTest, ShortOnesAreOftenerNextAndNoneWaitsForEver) {
  Waiting waiting(4, 8);
  std::vector<int> order;
  for (int i = 0; i < 8; ++i) order.push_back(waiting.pop());
  EXPECT_THAT(order, ElementsAre(0, 100, 1, 200, 2, 101, 3, 300));
}

TEST(TaskLanesTest, AnUnneededTurnGoesToAShorterTask) {
  Waiting waiting(1, 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(waiting.pop(), i);
  EXPECT_EQ(waiting.pop(), -1);
}

TEST(TaskLanesTest, LongOnesWaitWhereTheyMayNotRun) {
  Waiting waiting(4, 1);
  EXPECT_EQ(waiting.pop(false), 0);
  EXPECT_EQ(waiting.pop(false), 100);
  EXPECT_EQ(waiting.pop(false), -1);
  EXPECT_EQ(waiting.pop(true), 200);
  EXPECT_EQ(waiting.pop(true), 300);
}

TEST(TaskLanesTest, TenantsTakeTurns) {
  Lanes line;
  std::array<int, 9> tasks{0, 1, 2, 3, 4, 50, 51, 70, 6};
  for (size_t i = 0; i < 5; ++i) line.push(&tasks[i], 0, /*share=*/1);
  for (size_t i = 5; i < 7; ++i) line.push(&tasks[i], 0, /*share=*/2);
  line.push(&tasks[7], 0, /*share=*/3);
  EXPECT_EQ(line.waiting(0), 8u);
  EXPECT_EQ(line.waiting(0, 1), 5u);
  EXPECT_EQ(line.waiting(0, 4), 0u);
  std::vector<int> order;
  const auto pop = [&] { order.push_back(*line.pop(true).task); };
  for (int i = 0; i < 4; ++i) pop();
  line.hasten(&tasks[6]);  // to the end of its tenant's
  line.push(&tasks[8], 0, /*share=*/3);
  for (int i = 0; i < 5; ++i) pop();
  EXPECT_THAT(order, ElementsAre(0, 50, 70, 1, 51, 6, 2, 3, 4));
  EXPECT_EQ(line.pop(true).task, nullptr);
}

// However many connections an address has, others' tasks do not wait for all of them.
TEST(TaskLanesTest, GroupsTakeTurnsAndWithinThemTheirShares) {
  const auto share = [](TenantId address, TenantId connection) {
    return kVisitors | address << kConnectionBits | connection;
  };
  Lanes line;
  std::array<int, 6> tasks{10, 11, 20, 30, 40, 41};
  for (const size_t i : {0u, 1u}) line.push(&tasks[i], 0, share(1, 1));
  line.push(&tasks[2], 0, share(1, 2));
  line.push(&tasks[3], 0, share(1, 3));
  for (const size_t i : {4u, 5u}) line.push(&tasks[i], 0, share(2, 4));
  EXPECT_EQ(line.waiting(0, share(1, 1)), 2u);
  EXPECT_EQ(line.waiting_of_group(0, share(1, 1)), 4u);
  std::vector<int> order;
  for (int i = 0; i < 6; ++i) order.push_back(*line.pop(true).task);
  EXPECT_THAT(order, ElementsAre(10, 40, 20, 41, 30, 11));
}

TEST(TaskLanesTest, AHastenedOneIsShort) {
  Waiting waiting(4, 3);
  waiting.line.hasten(&waiting.tasks[3][1]);
  std::vector<int> order;
  for (int i = 0; i < 20; ++i) {
    const int next = waiting.pop(false);
    if (next >= 0) order.push_back(next);
  }
  EXPECT_THAT(order, ElementsAre(0, 100, 1, 2, 301, 101, 102));
  const int other = 7;
  waiting.line.hasten(&other);  // which does not wait
  EXPECT_EQ(waiting.line.waiting(3), 2u);
}

}  // namespace recurve::task_lanes_test
