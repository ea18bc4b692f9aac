// What is collected, and what stays, with changes by servers at every request of the collector.
#include "server/object_store/store_collector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/object_store/prefix_key.h"
#include "server/object_store/remote_sessions.h"
#include "tests/server/object_store/faulty_store.h"

namespace recurve::store_collector_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr int64_t kNow = 1'700'000'000;  // every object of the store is older

struct Client : StoreUser {
  explicit Client(const FaultyStore& at)
      : StoreUser(at, {.patience = std::chrono::seconds(10),
                       .first_pause = std::chrono::milliseconds(1),
                       .longest_pause = std::chrono::milliseconds(2)}),
        sessions(store, "server") {}

  void create(const std::string& name) {
    const std::string_view state[] = {"state"};
    ASSERT_TRUE(sessions.create("c", name, {.record = "r", .added = {state}}, &owned).done());
  }
  void create_and_close(const std::string& name) {
    create(name);
    ASSERT_TRUE(sessions.close(&owned).done());
    sessions.remove_unused(&owned);
  }
  StoreCollector::Collected collect(bool removes = true, int64_t now = kNow) {
    StoreCollector::Options options{.removes = removes};
    options.on_removed = [this](const auto& one) { gone.push_back(one.key); };
    options.on_strange = [this](const auto& key, const auto& why) { strange[key] = why; };
    return StoreCollector(store, std::move(options), now).collect();
  }

  RemoteSessions sessions;
  OwnedSession owned;
  std::vector<std::string> gone;
  std::map<std::string, std::string> strange;
};

TEST(StoreCollector, HeadsOfClosedSessionsGo) {
  FaultyStore store;
  Client client(store);
  client.create_and_close("closed");
  client.create("open");
  const auto before = store.objects();
  EXPECT_EQ(client.collect(false).removed, 1);
  EXPECT_EQ(store.objects(), before);
  client.gone.clear();
  EXPECT_EQ(client.collect().closed, 0);
  EXPECT_THAT(client.gone, ElementsAre(head_key("c", "closed")));
  auto after = before;
  after.erase(head_key("c", "closed"));
  EXPECT_EQ(store.objects(), after);
}

// All objects of the store are of the beginning of 2001.
TEST(StoreCollector, StatesOfPromptsGoAfterAWeek) {
  constexpr int64_t kWritten = 978'307'200, kDay = 24 * 3600;
  FaultyStore store;
  Client client(store);
  const std::string key =
      prefix_key(std::string(kPrefixIdentityDigits, '1'), "c", std::string(kPrefixHashDigits, 'a'));
  const std::string other = "prefixes/other";
  store.put(key, "state");
  store.put(other, "text");
  const auto early = client.collect(true, kWritten + 7 * kDay);
  EXPECT_EQ(early.prefixes, 1);
  EXPECT_EQ(early.removed, 0);
  EXPECT_EQ(client.collect(true, kWritten + 7 * kDay + 1).removed_bytes, 5);
  EXPECT_THAT(client.gone, ElementsAre(key));
  EXPECT_THAT(client.strange, ElementsAre(Pair(other, HasSubstr("it stays"))));
  EXPECT_TRUE(store.objects().contains(other));
}

TEST(StoreCollector, WithoutConditionsOfADeleteHeadsStay) {
  FaultyStore store;
  store.ignore_conditions_of_delete();
  Client client(store);
  client.create_and_close("closed");
  const auto before = store.objects();
  const auto done = client.collect();
  EXPECT_TRUE(done.without_conditions);
  EXPECT_EQ(done.closed, 1);
  EXPECT_EQ(store.objects(), before);
}

// A session of the closed one's name is created, and committed to, before any request.
TEST(StoreCollector, ASessionThatIsCreatedMeanwhileStays) {
  constexpr int kRequests = 8;  // LIST, LIST, GET, the test of DELETE, DELETE
  for (int number = 1; number <= kRequests; ++number) {
    FaultyStore store;
    Client client(store), other(store);
    client.create_and_close("s");
    store.before(number, [&] { other.create("s"); });
    client.collect();
    OwnedSession found;
    ASSERT_TRUE(other.sessions.find("c", "s", &found).done()) << number;
    EXPECT_EQ(found.head, other.owned.head);
    std::string state;
    EXPECT_TRUE(other.sessions.read_blob(found.head, found.head.blobs[0], 5, &state).done());
    EXPECT_THAT(client.gone, IsEmpty()) << number;
  }
  FaultyStore store;
  Client client(store);
  client.create_and_close("s");
  store.before(0, {});
  client.collect();
  EXPECT_EQ(store.requests(), kRequests + 1) << "and a LIST of states of prompts";
}

TEST(StoreCollector, AnswersThatAreLostEndNothing) {
  for (int number = 1; number <= 8; ++number) {
    FaultyStore store;
    Client client(store);
    client.create_and_close("s");
    store.fail(number, 1, FaultyStore::Fault::kAnswerLost);
    client.collect();
    EXPECT_THAT(store.objects(), IsEmpty()) << number;
  }
}

TEST(StoreCollector, WhatNoServerHasWrittenStays) {
  FaultyStore store;
  Client client(store);
  const std::map<std::string, std::string> others = {
      {"blobs/t-c/0123", "text"},
      {"blobs/t-c/a b", "text"},
      {"blobs/t-c/x/0123456789abcdef0123456789abcdef", "text"},
      {"blobs/t-/0123456789abcdef0123456789abcdef", "text"},
      {"blobs/README", "text"},
      {"sessions/a b", "text"},
      {"sessions/t-d/s-s/head", "of another service"},
      {"others/x", "text"}};
  for (const auto& [key, text] : others) store.put(key, text);
  const std::string retained = new_blob_key("d"), unused = new_blob_key("c");
  store.put(retained, "its tenant has a head that cannot be read");
  store.put(unused, "no head names it");
  client.create("s");
  SessionHead moved = client.owned.head;
  moved.record.clear();
  store.put("sessions/t-e/s-s/head", head_text(moved));
  const auto before = store.objects();

  client.collect();
  EXPECT_THAT(client.gone, ElementsAre(unused));
  auto after = before;
  after.erase(unused);
  EXPECT_EQ(store.objects(), after);
  const char *const blob = "no server has written it, and it stays",
                    *const head = "no server has written it: no blob of a b is removed";
  EXPECT_THAT(
      client.strange,
      UnorderedElementsAre(
          Pair("blobs/t-c/0123", blob), Pair("blobs/t-c/a b", blob),
          Pair("blobs/t-c/x/0123456789abcdef0123456789abcdef", blob),
          Pair("blobs/t-/0123456789abcdef0123456789abcdef", blob), Pair("blobs/README", blob),
          Pair("sessions/a b", head),
          Pair("sessions/t-d/s-s/head", "it is no head of a session: no blob of t-d is removed"),
          Pair("sessions/t-e/s-s/head",
               "it is that of session \"s\" of tenant \"c\": no blob of t-e is removed")));
}

}  // namespace recurve::store_collector_test
