#include "server/prefix/prefix_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace recurve::testing::prefix_index_test {

using Ids = std::vector<int32_t>;
using ::testing::ElementsAre;

constexpr int64_t kState = 10'000;

PrefixIndex::Options options(int64_t states, int chunk = 4) {
  // An eighth may go to nodes that lead to no state.
  return {.bytes = states * kState, .state_bytes = kState, .chunk = chunk, .least_gain = chunk};
}

Ids text(const std::string& letters) { return {letters.begin(), letters.end()}; }

PrefixIndex::Image image() { return std::make_shared<const std::vector<StatePiece>>(); }

// Begins, and keeps what is to be kept; where it began.
int64_t pass(PrefixIndex& index, const Ids& ids, uint64_t owner = 1) {
  const PrefixIndex::Found found = index.look(owner, ids, true);
  for (const int64_t at : found.points) {
    const auto head = std::span(ids).first(static_cast<size_t>(at));
    if (index.make_room(owner, head)) index.keep(owner, head, image());
  }
  return found.tokens;
}

TEST(PrefixIndex, KeepsItsEndAndWherePromptsPart) {
  PrefixIndex index(options(100));
  EXPECT_THAT(index.look(1, text("aaaabbbbccccd"), true).points, ElementsAre(12));
  EXPECT_THAT(index.look(1, text("aaaabbbbccccd"), true).points, ElementsAre(12))
      << "nothing was kept";
  EXPECT_THAT(index.look(1, text("aaaabbbbcccc"), true).points, ElementsAre(8))
      << "the last token's logits are wanted";
  EXPECT_THAT(index.look(1, text("aaaabbbbeeeeffff"), true).points, ElementsAre(8, 12));
  EXPECT_THAT(index.look(1, text("aaaaxbbbcccc"), true).points, ElementsAre(4, 8));
  EXPECT_THAT(index.look(1, text("aaaa"), true).points, ElementsAre());
  EXPECT_THAT(index.look(1, {}, true).points, ElementsAre());
}

TEST(PrefixIndex, FindsTheLongest) {
  PrefixIndex index(options(100));
  EXPECT_EQ(pass(index, text("aaaabbbbccccd")), 0);
  EXPECT_EQ(pass(index, text("aaaabbbbccccd")), 12);
  EXPECT_EQ(pass(index, text("aaaabbbbccccdddde")), 12);
  EXPECT_EQ(pass(index, text("aaaabbbbccccdddde")), 16);
  EXPECT_EQ(pass(index, text("aaaabbbbxxxxy")), 0) << "that it parts there is only seen now";
  EXPECT_EQ(pass(index, text("aaaabbbbyyyyz")), 8);
  EXPECT_EQ(pass(index, text("aaabbbbbccccd")), 0);
}

// Of states that grow, those of long prompts take the room of several.
TEST(PrefixIndex, StatesTakeWhatTheirPagesTake) {
  PrefixIndex::Options growing = options(10, 64);
  growing.page_bytes = kState;
  PrefixIndex index(growing);
  const Ids longer(5 * 64 + 1, 'a');  // 1 + 5 states' bytes
  pass(index, longer);
  const int64_t of_one = index.counts().bytes;
  EXPECT_EQ(of_one, 6 * kState + index.counts().nodes * PrefixIndex::node_bytes(64));
  index.expect(64);
  EXPECT_EQ(index.counts().bytes, of_one + 2 * kState);
  index.expect_no_more(64);
  pass(index, Ids(65, 'b'));
  EXPECT_EQ(index.counts().states, 2);
  pass(index, Ids(65, 'c'));
  EXPECT_EQ(index.counts().states, 2) << "the third one takes the room of another";
  EXPECT_LE(index.counts().bytes, growing.bytes);
}

TEST(PrefixIndex, OwnersHaveTheirOwn) {
  PrefixIndex index(options(100));
  pass(index, text("aaaabbbbccccd"), 1);
  EXPECT_EQ(pass(index, text("aaaabbbbccccd"), 2), 0);
  EXPECT_EQ(index.look(2, text("aaaabbbbccccd"), true).seen, 12);
  EXPECT_EQ(index.look(3, text("aaaabbbbccccd"), true).seen, 0);
}

TEST(PrefixIndex, AWellUsedStateStaysAndALongerSpareToo) {
  PrefixIndex index(options(4));
  const Ids used = text("aaaabbbbc"), longer = text("hhhhiiiijjjjkkkkllllm");
  pass(index, used);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(pass(index, used), 8);
  pass(index, longer);
  for (char c = 'A'; c < 'D'; ++c) pass(index, Ids(9, c));
  EXPECT_EQ(index.look(1, used, false).tokens, 8) << "used most";
  EXPECT_EQ(index.look(1, longer, false).tokens, 20) << "spares most";
  EXPECT_GT(index.counts().evicted, 0);
}

// What was worth much once and is used no more makes room in the end.
TEST(PrefixIndex, NothingStaysForEver) {
  PrefixIndex index(options(4));
  const Ids used = text("aaaabbbbc");
  for (int i = 0; i < 20; ++i) pass(index, used);
  for (int i = 0; i < 200; ++i) pass(index, Ids(9, 1000 + i));
  const PrefixIndex::Found found = index.look(1, used, false);
  EXPECT_EQ(found.tokens, 0);
}

TEST(PrefixIndex, KeepsWhereMessagesPartAndWhereTheClientSays) {
  PrefixIndex::Options coarse = options(100);
  coarse.least_gain = 8;
  PrefixIndex index(coarse);
  const Ids ids = text("aaaabbbbccccddddeeeeffffg");
  EXPECT_THAT(index.look(1, ids, true, {.likely = {10}}).points, ElementsAre(8, 24));
  EXPECT_THAT(index.look(1, ids, true, {.likely = {5}}).points, ElementsAre(24))
      << "it would spare too little";
  EXPECT_THAT(index.look(1, ids, true, {.named = {5, 10, 3, 25}}).points, ElementsAre(4, 8, 24));
}

TEST(PrefixIndex, ReportsWhatWasLost) {
  PrefixIndex index(options(2));
  const Ids first = text("aaaabbbbc");
  pass(index, first);
  for (int i = 0; i < 10 && index.look(1, first, false).image; ++i) {
    for (int n = 0; n < 3; ++n) pass(index, Ids(9, 100 * i + n));
  }
  const PrefixIndex::Found found = index.look(1, first, false);
  EXPECT_EQ(found.tokens, 0);
  EXPECT_EQ(found.seen, 8) << "the tree still knows it";
  EXPECT_EQ(found.lost, 8) << "and that a state was there";
  EXPECT_EQ(index.look(1, text("aaaaxxxxy"), false).lost, 0);
}

// Against a map of all beginnings that have a state, over many random prompts of few letters, so
// that they part everywhere: what is found is there, is the longest that is there, and the memory
// is never more than was given.
TEST(PrefixIndex, NeverMoreThanItsMemoryAndNeverAnothersState) {
  std::mt19937 random(5);
  for (const int64_t states : {1, 2, 3, 7, 40}) {
    PrefixIndex index(options(states, 2));
    std::map<PrefixIndex::Image, Ids> of;  // what each image has absorbed
    std::vector<PrefixIndex::Image> all;
    int hits = 0;
    for (int i = 0; i < 3000; ++i) {
      Ids ids(1 + random() % 24);
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % 2);
      const uint64_t owner = 1 + random() % 2;
      const PrefixIndex::Found found = index.look(owner, ids, random() % 4 != 0);
      if (found.image != nullptr) {
        ++hits;
        const Ids& said = of.at(found.image);
        ASSERT_EQ(static_cast<int64_t>(said.size()), found.tokens + 1);
        ASSERT_EQ(said.front(), static_cast<int32_t>(owner)) << "of another owner";
        ASSERT_TRUE(std::equal(said.begin() + 1, said.end(), ids.begin()));
        ASSERT_LT(found.tokens, static_cast<int64_t>(ids.size()));
      }
      for (const int64_t at : found.points) {
        const auto head = std::span(ids).first(static_cast<size_t>(at));
        if (!index.make_room(owner, head)) continue;
        Ids said = {static_cast<int32_t>(owner)};
        said.insert(said.end(), head.begin(), head.end());
        const PrefixIndex::Image kept = image();
        all.push_back(kept);
        of[kept] = said;
        index.keep(owner, head, kept);
        ASSERT_EQ(index.look(owner, ids, false).tokens, at);
        ASSERT_LE(index.counts().bytes, states * kState);
      }
      ASSERT_LE(index.counts().bytes, states * kState);
    }
    EXPECT_GT(hits, states < 7 ? 10 * (states - 1) - 1 : 100)
        << states << " states, " << hits << " hits";
  }
}

// What is worth most is offered first while there is room, and then what is to make it; each once.
TEST(PrefixIndex, OffersWhatIsWorthItOnce) {
  PrefixIndex::Options few = options(7);
  few.least_offered_gain = 8;
  PrefixIndex index(few);
  const Ids first = text("aaaabbbbccccd"), second = text("eeeeffffgggghhhhiiiij");
  pass(index, first, 7);
  pass(index, second, 8);
  pass(index, text("kkkkl"), 8);
  const auto next = [&] { return index.offer(PrefixIndex::To::kDisk, 0); };
  EXPECT_FALSE(index.is_short());
  const PrefixIndex::Offer most = next();
  EXPECT_EQ(most.owner, 8u);
  EXPECT_EQ(most.ids, Ids(second.begin(), second.end() - 1));
  EXPECT_EQ(most.gain, 20);
  EXPECT_EQ(index.offer(PrefixIndex::To::kDisk, 12).image, nullptr)
      << "the other one is worth no more than that";
  const PrefixIndex::Offer other = next();
  EXPECT_EQ(other.ids, Ids(first.begin(), first.end() - 1));
  EXPECT_EQ(other.hits, 0);
  EXPECT_EQ(next().image, nullptr) << "what spares four tokens is not worth it";
  index.offer_again(PrefixIndex::To::kDisk, 7, other.ids);
  EXPECT_EQ(index.longest(7, first).tokens, 12);
  EXPECT_EQ(pass(index, first, 7), 12);
  EXPECT_EQ(next().hits, 1);
  EXPECT_EQ(next().image, nullptr);
  while (!index.is_short()) pass(index, Ids(9, 1000 + static_cast<int>(index.counts().states)));
  EXPECT_EQ(next().gain, 8) << "the least is to make room";
  EXPECT_EQ(index.longest(8, first).tokens, 0) << "it is another owner's";
}

TEST(PrefixIndex, LeavesRoomForOthers) {
  PrefixIndex index(options(8));
  index.leave_room(4 * kState);
  for (int i = 0; i < 20; ++i) {
    pass(index, Ids(9, 1000 + i));
    ASSERT_LE(index.counts().bytes, 8 * kState);
    ASSERT_LE(index.counts().states, 4);
  }
  EXPECT_GE(index.counts().states, 2) << "and what leads to them";
}

TEST(PrefixIndex, GivesUpAtOnceWhatIsOverANewLimit) {
  PrefixIndex index(options(8));
  const auto fill = [&] {
    for (int i = 0; i < 20; ++i) pass(index, Ids(9, 1000 + i));
  };
  fill();
  ASSERT_GE(index.counts().states, 6);
  for (int i = 0; i < 5; ++i) pass(index, Ids(9, 1018));  // of greater value than others
  for (const int64_t states : {5, 2}) {
    index.set_limit(states * kState);
    EXPECT_LE(index.counts().bytes, states * kState);
    EXPECT_GE(index.counts().states, states - 1);
  }
  EXPECT_EQ(index.look(1, Ids(9, 1018), false).tokens, 8);
  fill();
  EXPECT_LE(index.counts().bytes, 2 * kState);
  index.set_limit(0);
  EXPECT_EQ(index.counts().bytes, 0);
  fill();
  EXPECT_EQ(index.counts().states, 0);
  index.set_limit(100 * kState);
  EXPECT_EQ(index.limit(), 8 * kState) << "never more than at first";
  fill();
  EXPECT_GE(index.counts().states, 6);
}

// Two that were promised room are there; a text without end is not followed to its end.
TEST(PrefixIndex, AVeryLongPromptLeavesRoomForOthers) {
  PrefixIndex index(options(10));
  pass(index, text("aaaabbbbc"));
  pass(index, Ids(1'000'000, 7));
  EXPECT_EQ(index.look(1, text("aaaabbbbc"), false).tokens, 8);
  EXPECT_LE(index.counts().bytes, 10 * kState);
}

}  // namespace recurve::testing::prefix_index_test
