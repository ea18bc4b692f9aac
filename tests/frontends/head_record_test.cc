// What heads in a store say of their sessions, in all written forms, and heads that no server
// writes.
#include "server/serving/head_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace recurve::testing::head_record_test {

using ::testing::ElementsAre;

RemoteBlob blob(const std::string& name) { return {.key = "blobs/t-c/" + name, .bytes = 7}; }

SessionHead head_with(const HeadRecord& record, std::vector<RemoteBlob> blobs) {
  return {.form = record.form(),
          .tenant = "c",
          .session = "s",
          .epoch = 3,
          .commit = 9,
          .record = to_text(record),
          .blobs = std::move(blobs)};
}

// These are as servers write them that know only the first form.
TEST(HeadRecord, TheFirstFormHasTheStateFirstAndTheAnswerLast) {
  SessionHead head{.session = "s", .commit = 4};
  head.record = R"({"answer_is_blob":true,"position":12})";
  head.blobs = {blob("state"), blob("answer")};
  const HeadRecord record = record_of(head);
  EXPECT_EQ(record.position, 12);
  EXPECT_EQ(record.state, 0);
  EXPECT_EQ(record.answer, 1);
  EXPECT_EQ(epoch_of(head, record), 3u);
  EXPECT_EQ(to_text(record), head.record);
  head.record = R"({"answer_is_blob":false,"position":0})";
  EXPECT_EQ(record_of(head).state, -1);
  EXPECT_EQ(record_of(head).form(), HeadForm::k1);
}

TEST(HeadRecord, MarksNeedTheSecondForm) {
  HeadRecord record{.position = 5, .state = 1, .answer = 2, .parent = "p", .marked = 2};
  record.marks = {{"m", {.position = 3, .state = 0}}, {"empty", {}}};
  const SessionHead head =
      head_with(record, {blob("mark"), blob("state"), blob("answer"), blob("unused")});
  EXPECT_EQ(head.form, HeadForm::k2);
  const SessionHead read = parse_head(head_text(head), "c", "s");
  EXPECT_EQ(read, head);
  HeadRecord found = record_of(read);
  EXPECT_EQ(to_text(found), head.record);
  EXPECT_EQ(epoch_of(head, found), 6u);
  const SessionInfo info = info_of(head);
  EXPECT_EQ(info.parent, "p");
  ASSERT_EQ(info.marks.size(), 2u);
  EXPECT_EQ(info.marks[1].name, "m");
  EXPECT_EQ(info.marks[1].position, 3);

  EXPECT_THAT(used_blobs(head, &found), ElementsAre(blob("mark"), blob("state"), blob("answer")));
  found.state = found.answer = -1;
  EXPECT_THAT(used_blobs(head, &found), ElementsAre(blob("mark")));
  found.marks["m"].state = 1;
  EXPECT_THAT(used_blobs(head, &found), ElementsAre(blob("state")));
  EXPECT_EQ(found.marks["m"].state, 0);
}

// Turns of a state that grows, each of which fills so many pages; the blobs are named after the
// pages that they have.
class GrowingHead {
 public:
  const HeadRecord& record() const { return record_; }
  const SessionHead& head() const { return head_; }
  // Pages written.
  int64_t take_turn(int64_t pages, const std::string& mark = "") {
    const NewPages plan = new_pages(record_, record_.group);
    end_ += pages;
    record_.group = plan.before;
    head_.blobs = used_blobs(head_, &record_);
    record_.groups.push_back({.blob = static_cast<int>(head_.blobs.size()),
                              .before = record_.group,
                              .end = end_,
                              .level = plan.level,
                              .ref = {.id = ++last_id_, .checksum = 7 * last_id_}});
    record_.group = static_cast<int>(record_.groups.size()) - 1;
    head_.blobs.push_back(blob(std::to_string(plan.first) + "-" + std::to_string(end_)));
    record_.state = static_cast<int>(head_.blobs.size());
    record_.position = 64 * end_ + 1;
    head_.blobs.push_back(blob("state"));
    if (!mark.empty()) {
      record_.marks[mark] = record_.at();
      ++record_.marked;
    }
    head_ = head_with(record_, head_.blobs);
    head_.commit = 1000;
    return end_ - plan.first;
  }
  void rewind(const std::string& mark) {
    const HeadRecord::Mark to = record_.marks.at(mark);
    record_.position = to.position;
    record_.state = to.state;
    record_.group = to.group;
    end_ = record_.groups[static_cast<size_t>(to.group)].end;
  }
  std::vector<std::string> chain(const HeadRecord& record, int group) const {
    std::vector<std::string> names;
    for (const HeadRecord::Group& one : chain_of(record, group)) {
      names.push_back(head_.blobs.at(static_cast<size_t>(one.blob)).key.substr(10));
    }
    return names;
  }

 private:
  HeadRecord record_;
  SessionHead head_;
  int64_t end_ = 0;
  uint64_t last_id_ = 0;
};

TEST(HeadRecord, PageGroupsNeedTheThirdForm) {
  GrowingHead growing;
  growing.take_turn(3);
  growing.take_turn(1, "m");
  growing.take_turn(2);
  growing.rewind("m");
  growing.take_turn(5);
  const SessionHead read = parse_head(head_text(growing.head()), "c", "s");
  EXPECT_EQ(read.form, HeadForm::k3);
  const HeadRecord record = record_of(read);
  EXPECT_EQ(to_text(record), read.record);
  EXPECT_THAT(growing.chain(record, record.group), ElementsAre("0-3", "3-4", "4-9"));
  EXPECT_THAT(growing.chain(record, record.marks.at("m").group), ElementsAre("0-3", "3-4"));
  EXPECT_EQ(record.groups[2].ref.id, 4u);
  EXPECT_EQ(record.groups[2].ref.checksum, 28u);
  // What a return has left behind is not there any more; five blobs and the mark's state are.
  EXPECT_EQ(read.blobs.size(), 5u);
  EXPECT_EQ(info_of(read).state_bytes, 4 * 7);
}

TEST(HeadRecord, StoredTokensNeedTheFourthForm) {
  HeadRecord record{.position = 90, .state = 1, .marked = 1};
  record.rewind_tokens = 50;
  record.tokens_from = 40;
  record.marks = {{"m", {.position = 30, .state = 0, .tokens_from = 7}}, {"empty", {}}};
  const SessionHead head = head_with(record, {blob("mark"), blob("state")});
  EXPECT_EQ(head.form, HeadForm::k4);
  const SessionHead read = parse_head(head_text(head), "c", "s");
  EXPECT_EQ(read, head);
  EXPECT_EQ(to_text(record_of(read)), head.record);
  EXPECT_EQ(record_of(read).marks.at("m").tokens_from, 7);
  EXPECT_EQ(info_of(read).rewind_tokens, 50);
  EXPECT_EQ(info_of(read).tokens_from, 40);
  const auto refused = [&](const auto& change) {
    HeadRecord wrong = record;
    change(&wrong);
    EXPECT_THROW(record_of(head_with(wrong, head.blobs)), BadHeadRecord) << to_text(wrong);
  };
  refused([](HeadRecord* wrong) { wrong->rewind_tokens = kMostRewindTokens + 1; });
  refused([](HeadRecord* wrong) { wrong->tokens_from = -1; });
  refused([](HeadRecord* wrong) { wrong->tokens_from = 91; });
  refused([](HeadRecord* wrong) { wrong->marks["m"].tokens_from = -1; });
  refused([](HeadRecord* wrong) { wrong->marks["m"].tokens_from = 31; });
  SessionHead third = head;
  third.form = HeadForm::k3;
  EXPECT_EQ(info_of(third).rewind_tokens, 0) << "it is not of that form";
}

TEST(HeadRecord, PagesAreWrittenSeldomAndInFewGroups) {
  constexpr int kTurns = 4096;
  GrowingHead growing;
  int64_t written = 0;
  int again = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    const int64_t pages = growing.take_turn(2);
    written += pages;
    again += pages > 2;
    ASSERT_LE(chain_of(growing.record(), growing.record().group).size(), 45u);
  }
  EXPECT_EQ(again, kTurns / kGroupsOfALevel);
  EXPECT_LE(written, 4 * 2 * kTurns);
  const auto chain = chain_of(growing.record(), growing.record().group);
  EXPECT_EQ(chain.back().end, 2 * kTurns);
}

// A session that began with a state of no position.
TEST(HeadRecord, AStateWhereNothingWasAbsorbedNeedsTheSecondForm) {
  const SessionHead head = head_with({.state = 0}, {blob("state")});
  EXPECT_EQ(head.form, HeadForm::k2);
  EXPECT_EQ(record_of(head).state, 0);
  EXPECT_EQ(info_of(head).tier, Tier::kDisk);
  EXPECT_EQ(head_with({}, {}).form, HeadForm::k1);
}

TEST(HeadRecord, WhatNoServerWritesIsRefused) {
  const auto head = [](const std::string& text) {
    return SessionHead{.form = HeadForm::k2,
                       .session = "s",
                       .commit = 3,
                       .record = text,
                       .blobs = {blob("0"), blob("1")}};
  };
  const std::string start = R"({"position":1,"answer_is_blob":false,)";
  EXPECT_EQ(
      record_of(head(start + R"("state":1,"answer":-1,"marked":2,"marks":{"m":[0,-1]}})")).state,
      1);
  for (const std::string rest :
       {R"("state":2,"answer":-1,"marked":0,"marks":{}})",
        R"("state":-1,"answer":-1,"marked":0,"marks":{}})",
        R"("state":0,"answer":-2,"marked":0,"marks":{}})",
        R"("state":0,"answer":2,"marked":0,"marks":{}})",
        R"("state":0,"answer":-1,"marked":3,"marks":{}})",
        R"("state":0,"answer":-1,"marked":0,"marks":{"m":[1,2]}})",
        R"("state":0,"answer":-1,"marked":0,"marks":{"m":[1,-1]}})",
        R"("state":0,"answer":-1,"marked":0,"marks":{"m":[-1,0]}})",
        R"("state":0,"answer":-1,"marked":0,"marks":{"m":[1]}})",
        R"("state":0,"answer":-1,"marked":0,"marks":{"m":"x"}})",
        R"("state":0,"answer":-1,"marked":0})", R"("state":"x"})", "", "x"}) {
    EXPECT_THROW(record_of(head(start + rest)), BadHeadRecord) << rest;
  }
  const auto third = [&](const std::string& groups) {
    SessionHead of = head(start + R"("state":1,"answer":-1,"marked":0,"marks":{},)" + groups + "}");
    of.form = HeadForm::k3;
    return of;
  };
  const std::string sum = R"("00000000000000ff")";
  EXPECT_EQ(record_of(third(R"("group":0,"groups":[[0,-1,2,0,"9",)" + sum + "]]")).group, 0);
  for (const std::string& groups :
       {std::string(R"("group":0)"), R"("group":1,"groups":[[0,-1,2,0,"9",)" + sum + "]]",
        R"("group":0,"groups":[[2,-1,2,0,"9",)" + sum + "]]",
        R"("group":0,"groups":[[-1,-1,2,0,"9",)" + sum + "]]",
        R"("group":0,"groups":[[0,0,2,0,"9",)" + sum + "]]",
        R"("group":0,"groups":[[0,-2,2,0,"9",)" + sum + "]]",
        R"("group":0,"groups":[[0,-1,0,0,"9",)" + sum + "]]",
        R"("group":0,"groups":[[0,-1,2,-1,"9",)" + sum + "]]",
        R"("group":0,"groups":[[0,-1,2,0,"0",)" + sum + "]]",
        R"("group":0,"groups":[[0,-1,2,0,"x",)" + sum + "]]",
        R"("group":0,"groups":[[0,-1,2,0,9,)" + sum + "]]",
        std::string(R"("group":0,"groups":[[0,-1,2,0,"9"]])"),
        R"("group":1,"groups":[[0,-1,2,0,"9",)" + sum + R"(],[1,0,2,0,"8",)" + sum + "]]"}) {
    EXPECT_THROW(record_of(third(groups)), BadHeadRecord) << groups;
  }
  SessionHead first = head(R"({"position":1})");
  first.form = HeadForm::k1;
  first.blobs.clear();
  EXPECT_THROW(record_of(first), BadHeadRecord);
  for (const char* text : {"[]", "1", "{}", R"({"position":-1})", R"({"position":"x"})"}) {
    first.record = text;
    EXPECT_THROW(record_of(first), BadHeadRecord) << text;
  }
}

// The most that there can be.
TEST(HeadRecord, AHeadHasPlaceForTheMostMarks) {
  HeadRecord record{.position = 1, .state = 0, .parent = std::string(128, 'p'), .marked = 1};
  record.rewind_tokens = 1;
  const std::string tenant(64, 't');
  SessionHead head{.tenant = tenant, .session = std::string(128, 's')};
  for (size_t mark = 0; mark < kMostMarks; ++mark) {
    std::string name = std::to_string(mark);
    name.resize(128, 'm');
    record.marks[name] = {.position = int64_t{1} << 40,
                          .state = static_cast<int>(mark),
                          .tokens_from = int64_t{1} << 39};
    head.blobs.push_back({.key = new_blob_key(tenant), .bytes = uint64_t{1} << 40});
  }
  for (size_t group = 0; group < kMostGroups; ++group) {
    record.groups.push_back({.blob = static_cast<int>(kMostMarks + group),
                             .before = static_cast<int>(group) - 1,
                             .end = (int64_t{1} << 40) + static_cast<int64_t>(group),
                             .ref = {.id = UINT64_MAX, .checksum = UINT64_MAX}});
    head.blobs.push_back({.key = new_blob_key(tenant), .bytes = uint64_t{1} << 40});
  }
  head.form = record.form();
  head.commit = 2;
  head.record = to_text(record);
  head.answer.resize((size_t{256} << 10) / 3 * 4 + 100, 'a');
  EXPECT_NO_THROW(head_text(head));
}

}  // namespace recurve::testing::head_record_test
