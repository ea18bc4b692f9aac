// Ownership and commits of sessions in a store that several servers share, with every fault at
// every request.
#include "server/object_store/remote_sessions.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/server/object_store/faulty_store.h"
#include "tests/support/temp_dir.h"

namespace recurve::remote_sessions_test {

using Outcome = RemoteSessions::Outcome;
using Result = RemoteSessions::Result;
using Fault = FaultyStore::Fault;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kTenant = "books", kName = "s.1", kHead = "sessions/t-books/s-s.1/head";

// What a server has of a store.
struct Server : StoreUser {
  Server(const FaultyStore& at, const std::string& name, bool repeats)
      : StoreUser(
            at, {.patience = std::chrono::seconds(repeats ? 10 : 2),
                 .first_pause = repeats ? std::chrono::milliseconds(1) : std::chrono::hours(1),
                 .longest_pause = repeats ? std::chrono::milliseconds(2) : std::chrono::hours(1)}),
        sessions(store, name) {}

  // The result that is known in the end.
  Result settled(Result result) {
    unknown += result.outcome == Outcome::kUnknown;
    while (result.outcome == Outcome::kUnknown) result = sessions.settle(&owned);
    return result;
  }
  Result commit(const std::string& text, std::vector<RemoteBlob> retained = {}) {
    const std::string_view parts[] = {text, " state"};
    return settled(sessions.commit(&owned, {.record = text,
                                            .request = "request " + text,
                                            .digest = "digest",
                                            .answer = "answer " + text,
                                            .retained = std::move(retained),
                                            .added = {parts}}));
  }
  Result take_over() { return settled(sessions.take_over(kTenant, kName, &owned)); }
  Result create() { return settled(sessions.create(kTenant, kName, {.record = "new"}, &owned)); }

  RemoteSessions sessions;
  OwnedSession owned;
  int unknown = 0;
};

std::vector<std::string> keys_of(const std::map<std::string, std::string>& objects) {
  std::vector<std::string> keys;
  for (const auto& [key, text] : objects) keys.push_back(key);
  return keys;
}

TEST(RemoteSessions, AnotherServerContinuesWithTheLastCommit) {
  FaultyStore store;
  Server a(store, "a", true), b(store, "b", true);
  ASSERT_TRUE(a.create().done());
  ASSERT_TRUE(a.commit("one").done());
  ASSERT_TRUE(a.commit("two", a.owned.head.blobs).done());

  ASSERT_TRUE(b.take_over().done());
  const SessionHead& head = b.owned.head;
  EXPECT_EQ(head.owner, "b");
  EXPECT_EQ(head.epoch, 2u);
  EXPECT_EQ(head.commit, 3u);
  EXPECT_EQ(head.record, "two");
  EXPECT_EQ(head.request, "request two");
  EXPECT_EQ(head.answer, "answer two");
  ASSERT_EQ(head.blobs.size(), 2u);
  for (const auto& [blob, text] : {std::pair(0, "one state"), std::pair(1, "two state")}) {
    std::string bytes;
    EXPECT_TRUE(
        b.sessions.read_blob(head, head.blobs[static_cast<size_t>(blob)], 9, &bytes).done());
    EXPECT_EQ(bytes, text);
  }
}

TEST(RemoteSessions, TheServerThatWasReplacedIsToldByWhich) {
  FaultyStore store;
  Server a(store, "a", true), b(store, "b", true);
  ASSERT_TRUE(a.create().done());
  ASSERT_TRUE(b.take_over().done());
  const Result result = a.commit("late");
  EXPECT_EQ(result.outcome, Outcome::kLost);
  EXPECT_EQ(result.error, "session \"s.1\" belongs to b since epoch 2; this server had epoch 1");
  a.sessions.remove_unused(&a.owned);
  EXPECT_THAT(keys_of(store.objects()), ElementsAre(kHead));
  EXPECT_TRUE(b.commit("two").done());
  EXPECT_TRUE(a.take_over().done());
  EXPECT_EQ(a.owned.head.record, "two");
  EXPECT_EQ(b.commit("three").outcome, Outcome::kLost);
}

// A change that needs no state.
TEST(RemoteSessions, ACommitOfAnotherServerTakesTheSession) {
  FaultyStore store;
  Server a(store, "a", true), b(store, "b", true);
  ASSERT_TRUE(a.create().done());
  ASSERT_TRUE(a.commit("one").done());
  ASSERT_TRUE(b.sessions.find(kTenant, kName, &b.owned).done());
  store.fail(0, 0, Fault::kNone);
  ASSERT_TRUE(b.settled(b.sessions.commit(&b.owned, {.form = HeadForm::k2,
                                                     .record = "marked",
                                                     .retained = b.owned.head.blobs}))
                  .done());
  EXPECT_EQ(store.requests(), 1);
  EXPECT_EQ(b.owned.head.owner, "b");
  EXPECT_EQ(b.owned.head.epoch, 2u);
  EXPECT_EQ(b.owned.head.blobs, a.owned.head.blobs);
  EXPECT_EQ(a.commit("late").error,
            "session \"s.1\" belongs to b since epoch 2; this server had epoch 1");
  ASSERT_TRUE(a.take_over().done());
  EXPECT_EQ(a.owned.head.form, HeadForm::k2);
  EXPECT_EQ(a.owned.head.record, "marked");
}

TEST(RemoteSessions, ACommitOfTheOwnerIsTwoRequests) {
  FaultyStore store;
  Server a(store, "a", true);
  ASSERT_TRUE(a.create().done());
  store.fail(0, 0, Fault::kNone);
  ASSERT_TRUE(a.commit("one").done());
  EXPECT_EQ(store.requests(), 2);
}

TEST(RemoteSessions, AStoreWhoseAnswerIsLostOncePassesItsTest) {
  for (int number = 1; number <= 6; ++number) {
    FaultyStore store;
    Server a(store, "a", true);
    store.fail(number, 1, Fault::kAnswerLost);
    EXPECT_EQ(error_of([&] { a.store.check(); }), "") << number;
    EXPECT_GE(store.requests(), 7);
  }
}

TEST(RemoteSessions, NamesOfClosedSessionsAreFree) {
  FaultyStore store;
  Server a(store, "a", true), b(store, "b", true);
  EXPECT_EQ(b.take_over().outcome, Outcome::kNoSession);
  ASSERT_TRUE(a.create().done());
  const Result exists = b.create();
  EXPECT_EQ(exists.outcome, Outcome::kExists);
  EXPECT_EQ(exists.error, "session \"s.1\" exists, and a owns it");
  ASSERT_TRUE(a.commit("one").done());
  ASSERT_TRUE(a.sessions.close(&a.owned).done());
  a.sessions.remove_unused(&a.owned);
  EXPECT_THAT(keys_of(store.objects()), ElementsAre(kHead));
  EXPECT_EQ(b.take_over().outcome, Outcome::kNoSession);
  ASSERT_TRUE(b.create().done());
  EXPECT_GT(b.owned.head.epoch, 1u);
  EXPECT_EQ(a.commit("of the closed one").outcome, Outcome::kLost);
}

// At any request the head of the closed session may be collected.
TEST(RemoteSessions, ACreationDoesNotNeedTheHeadOfTheClosedSession) {
  int requests = 1;
  for (int number = 1; number <= requests; ++number) {
    FaultyStore store;
    Server a(store, "a", true), b(store, "b", true);
    ASSERT_TRUE(a.create().done());
    ASSERT_TRUE(a.sessions.close(&a.owned).done());
    store.before(number, [&] {
      EXPECT_TRUE(a.store.remove(kHead, ObjectCondition::matches(a.owned.etag)).done());
    });
    const std::string_view parts[] = {"state"};
    const Result made =
        b.sessions.create(kTenant, kName, {.record = "new", .added = {parts}}, &b.owned);
    ASSERT_TRUE(made.done()) << number << ": " << made.error;
    EXPECT_EQ(parse_head(store.objects().at(kHead), kTenant, kName), b.owned.head);
    b.sessions.remove_unused(&b.owned);
    EXPECT_THAT(keys_of(store.objects()), ElementsAre(b.owned.head.blobs[0].key, kHead));
    EXPECT_TRUE(b.commit("one").done());
    if (number == 1) requests = 3;  // GET of the head, PUT of the blob and of the head
  }
}

TEST(RemoteSessions, ACreationIsGivenUpAfterAnHour) {
  FaultyStore store;
  Server a(store, "a", false);
  store.fail(2, 2, Fault::kNotReceived);  // the head, and the question whether it is there
  EXPECT_EQ(a.sessions.create(kTenant, kName, {.record = "new"}, &a.owned).outcome,
            Outcome::kUnknown);
  a.owned.began -= kLongestCommit;
  const Result late = a.sessions.settle(&a.owned);
  EXPECT_EQ(late.outcome, Outcome::kUnknown);
  EXPECT_THAT(late.error, HasSubstr("the server was stopped during the commit"));
  EXPECT_THAT(keys_of(store.objects()), ElementsAre());
}

// After each change the store has what the server was told, and keeps it.
void check_stored(FaultyStore& store, const Server& server, const Result& result,
                  const std::string& before) {
  const std::map<std::string, std::string> objects = store.objects();
  const std::string head = objects.contains(kHead) ? objects.at(kHead) : "";
  if (!result.done()) {
    EXPECT_EQ(result.outcome, Outcome::kFailed) << result.error;
    EXPECT_EQ(head, before);
    return;
  }
  ASSERT_EQ(parse_head(head, kTenant, kName), server.owned.head);
  for (const RemoteBlob& blob : server.owned.head.blobs) {
    const std::string_view parts[] = {objects.at(blob.key)};
    EXPECT_EQ(blob_checksum(parts), blob.checksum);
  }
}

// A server creates a session and commits, another one takes over and commits. Returns how many
// requests that takes.
int run_with(Fault fault, int number, int count, bool repeats, int* unknown) {
  FaultyStore store;
  Server a(store, "a", repeats), b(store, "b", repeats);
  store.fail(number, count, fault);
  // A change that failed is made again.
  const auto until_done = [&](Server& server, const auto& change) {
    for (int attempt = 0; attempt < 5; ++attempt) {
      const auto before = store.objects();
      const Result result = change();
      check_stored(store, server, result, before.contains(kHead) ? before.at(kHead) : "");
      if (result.done()) return;
    }
    ADD_FAILURE() << "some faults stop a change for ever";
  };
  until_done(a, [&] { return a.create(); });
  until_done(a, [&] { return a.commit("one"); });
  until_done(a, [&] { return a.commit("two", a.owned.head.blobs); });
  until_done(b, [&] { return b.take_over(); });
  EXPECT_EQ(b.owned.head.record, "two");
  EXPECT_EQ(b.owned.head.answer, "answer two");
  until_done(b, [&] { return b.commit("three", {b.owned.head.blobs[1]}); });
  const int requests = store.requests();
  store.fail(0, 0, Fault::kNone);

  const Result stale = a.commit("stale");
  EXPECT_EQ(stale.outcome, Outcome::kLost) << stale.error;
  EXPECT_EQ(b.owned.head.epoch, 2u);
  EXPECT_EQ(b.owned.head.commit, 4u);
  a.sessions.remove_unused(&a.owned);
  b.sessions.remove_unused(&b.owned);
  EXPECT_EQ(store.objects().size(), 1 + b.owned.head.blobs.size());
  *unknown += a.unknown + b.unknown;
  return requests;
}

class EveryFault : public ::testing::TestWithParam<std::tuple<Fault, int, bool>> {};

TEST_P(EveryFault, AtEveryRequestLosesAndRepeatsNothing) {
  const auto [fault, count, repeats] = GetParam();
  int requests = 1, unknown = 0;
  for (int number = 1; number <= requests; ++number) {
    requests = run_with(fault, number, count, repeats, &unknown);
    ASSERT_FALSE(HasFailure()) << "at request " << number;
  }
  EXPECT_GE(requests, 10);
  if (repeats || fault == Fault::kForbidden) return;
  // One answer that was lost is found by reading.
  EXPECT_EQ(unknown > 0, fault != Fault::kAnswerLost || count > 1);
}

INSTANTIATE_TEST_SUITE_P(
    Store, EveryFault,
    ::testing::Combine(::testing::Values(Fault::kNotReceived, Fault::kAnswerLost,
                                         Fault::kReceivedLate, Fault::kBusy, Fault::kForbidden),
                       ::testing::Values(1, 2, 3), ::testing::Bool()));

TEST(RemoteSessions, DamagedObjectsAreRefusedByNameAndStay) {
  FaultyStore store;
  Server a(store, "a", true), b(store, "b", true);
  ASSERT_TRUE(a.create().done());
  ASSERT_TRUE(a.commit("one").done());
  const auto objects = store.objects();
  const std::string head = objects.at(kHead);
  SessionHead foreign = a.owned.head;
  foreign.blobs[0].key = "blobs/t-others/0";
  SessionHead of_another = a.owned.head;
  of_another.session = "s.2";
  std::string newer = head, changed = head;
  newer[9] = '5';
  changed[changed.size() - 3] ^= 1;
  const std::pair<std::string, const char*> damages[] = {
      {changed, "it is damaged"},
      {head.substr(0, 20), "a checksum has 16"},
      {head.substr(0, head.size() - 1), "it is damaged"},
      {"text", "it is no head of a session"},
      {"", "it is no head of a session"},
      {newer, "a newer server wrote it: update this one"},
      {head_text(foreign), "it names a blob of another tenant"},
      {head_text(of_another), "it is that of session \"s.2\" of tenant \"books\""}};
  for (const auto& [text, why] : damages) {
    store.put(kHead, text);
    const Result result = b.take_over();
    EXPECT_EQ(result.outcome, text == newer ? Outcome::kNewer : Outcome::kDamaged) << why;
    EXPECT_THAT(result.error,
                AllOf(HasSubstr("the head of session \"s.1\" cannot be used: "), HasSubstr(why)));
    EXPECT_EQ(store.objects().at(kHead), text);
  }

  const RemoteBlob& blob = a.owned.head.blobs[0];
  std::string bytes;
  for (const std::string text : {"ONE state", "one stat", "one states"}) {
    store.put(blob.key, text);
    EXPECT_FALSE(b.sessions.read_blob(a.owned.head, blob, 9, &bytes).done()) << text;
  }
  RemoteBlob missing = blob;
  missing.key += "0";
  EXPECT_EQ(b.sessions.read_blob(a.owned.head, missing, 9, &bytes).outcome, Outcome::kDamaged);
  EXPECT_EQ(bytes, "");
}

TEST(RemoteSessions, WhatNoHeadCanHaveIsRefused) {
  FaultyStore store;
  Server a(store, "a", true);
  ASSERT_TRUE(a.create().done());
  const std::string_view parts[] = {"state"};
  for (const auto& [record, why] :
       {std::pair(std::string(kMostBytesOfHead, 'x'), "at most 1048576"),
        std::pair(std::string("\xff"), "is not in UTF-8")}) {
    const Result result = a.sessions.commit(&a.owned, {.record = record, .added = {parts}});
    EXPECT_EQ(result.outcome, Outcome::kFailed);
    EXPECT_THAT(result.error, HasSubstr(why));
  }
  a.sessions.remove_unused(&a.owned);
  EXPECT_THAT(keys_of(store.objects()), ElementsAre(kHead));
  EXPECT_TRUE(a.commit("one").done());
}

}  // namespace recurve::remote_sessions_test
