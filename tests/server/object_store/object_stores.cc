// The client at stores of others, which object_stores.py starts. It takes S3_URL, S3_ENDPOINT and
// AWS's variables from the environment, and GoogleTest's flags.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/object_store/object_store.h"
#include "server/object_store/remote_sessions.h"
#include "server/object_store/store_collector.h"
#include "tests/support/temp_dir.h"

namespace recurve::object_stores_test {

using Outcome = ObjectResult::Outcome;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

std::string variable(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

struct Client {
  explicit Client(AwsEnvironment environment)
      : environment(std::move(environment)),
        credentials(find_aws_credentials(this->environment, variable("STS_ENDPOINT"), http)),
        store(parse_object_store(variable("S3_URL"), variable("S3_ENDPOINT"),
                                 this->environment.region),
              this->environment.region, *credentials, http,
              {.patience = std::chrono::seconds(20)}) {}
  Client() : Client(AwsEnvironment::read([](const char* name) { return getenv(name); })) {}

  AwsEnvironment environment;
  HttpClient http{{.ca_file = environment.ca_file}};
  std::unique_ptr<AwsCredentialSource> credentials;
  ObjectStore store;
};

TEST(Stores, WriteReadAndRemove) {
  Client client;
  const std::string key = "objects/A-z_0.9/x";
  const std::string text("\0\r\n\xff text", 9);
  const std::string large(size_t{5} << 20, 'x');  // by 100-continue
  const std::string_view parts[] = {text, large}, other[] = {"other"};

  EXPECT_EQ(client.store.get(key, 10).outcome, Outcome::kMissing);
  const ObjectResult made = client.store.put(key, parts);
  ASSERT_TRUE(made.done()) << made.error;
  const ObjectResult got = client.store.get(key, text.size() + large.size());
  EXPECT_TRUE(got.done()) << got.error;
  EXPECT_TRUE(got.body == text + large);
  EXPECT_EQ(got.etag, made.etag);
  EXPECT_EQ(client.store.get(key, 100).outcome, Outcome::kFailed);

  ASSERT_TRUE(client.store.put(key, other).done());
  EXPECT_EQ(client.store.get(key, 10).body, "other");
  EXPECT_TRUE(client.store.remove(key).done());
  EXPECT_TRUE(client.store.remove(key).done());
  EXPECT_EQ(client.store.get(key, 10).outcome, Outcome::kMissing);
}

TEST(Stores, ApplyConditions) {
  Client client;
  const std::string_view first[] = {"first"}, second[] = {"second"};
  const auto put = [&](const auto& text, const ObjectCondition& condition) {
    return client.store.put("conditions", text, condition);
  };
  EXPECT_EQ(put(first, ObjectCondition::matches("\"none\"")).outcome, Outcome::kNotMet);
  const ObjectResult made = put(first, ObjectCondition::is_new());
  ASSERT_TRUE(made.done()) << made.error;
  EXPECT_EQ(put(second, ObjectCondition::is_new()).outcome, Outcome::kNotMet);
  EXPECT_TRUE(put(second, ObjectCondition::matches(made.etag)).done());
  EXPECT_EQ(put(first, ObjectCondition::matches(made.etag)).outcome, Outcome::kNotMet);
  EXPECT_EQ(client.store.remove("conditions", ObjectCondition::matches(made.etag)).outcome,
            Outcome::kNotMet);
  EXPECT_EQ(client.store.get("conditions", 10).body, "second");
  EXPECT_TRUE(client.store.removes_on_condition());
  EXPECT_TRUE(client.store.remove("conditions").done());
}

TEST(Stores, LetOneOfManyWritersWin) {
  constexpr int kWriters = 8;
  std::vector<std::thread> writers;
  std::atomic<int> won = 0, lost = 0;
  Client client;
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&, name = std::to_string(writer)] {
      const std::string_view text[] = {name};
      const ObjectResult result = client.store.put("race", text, ObjectCondition::is_new());
      won += result.done();
      lost += result.outcome == Outcome::kNotMet;
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(won, 1);
  EXPECT_EQ(lost, kWriters - 1);
  EXPECT_TRUE(client.store.remove("race").done());
}

TEST(Stores, ListObjectsInPages) {
  Client client;
  constexpr int kObjects = 1005;
  const std::string_view text[] = {"text"};
  const auto key = [](int number) { return fmt::format("listed/t-A_z.9/{:04}", number); };
  for (int number = 0; number < kObjects; ++number) {
    ASSERT_TRUE(client.store.put(key(number), text).done());
  }
  ASSERT_TRUE(client.store.put("listed-others/x", text).done());
  int number = 0;
  std::string after;
  for (bool more = true; more;) {
    const ObjectStore::Page page = client.store.list("listed/", after);
    ASSERT_TRUE(page.result.done()) << page.result.error;
    for (const ObjectStore::Listed& one : page.objects) {
      ASSERT_EQ(one.key, key(number++));
      EXPECT_EQ(one.bytes, 4u);
      EXPECT_NEAR(static_cast<double>(one.changed), static_cast<double>(std::time(nullptr)), 60);
    }
    more = page.more;
    after = page.objects.back().key;
  }
  EXPECT_EQ(number, kObjects);
  EXPECT_TRUE(client.store.list("nothing/").objects.empty());
  for (const ObjectStore::Page page = client.store.list("listed/");
       const auto& one : page.objects) {
    ASSERT_TRUE(client.store.remove(one.key).done());
  }
}

// Servers commit while blobs without a head are collected, by a clock that is far ahead: each blob
// is old then. What a commit is about to name would go too, so they pause meanwhile.
TEST(Stores, BlobsWithoutAHeadAreCollected) {
  Client client;
  RemoteSessions sessions(client.store, "owner");
  OwnedSession owned;
  const std::string_view first[] = {"first"}, second[] = {"second"}, left[] = {"left"};
  ASSERT_TRUE(sessions.create("c", "s", {.record = "r"}, &owned).done());
  ASSERT_TRUE(sessions.commit(&owned, {.record = "r", .added = {first}}).done());
  const std::string replaced = owned.head.blobs[0].key;
  ASSERT_TRUE(sessions.commit(&owned, {.record = "r", .added = {second}}).done());
  const std::string alone = new_blob_key("c"), damaged = new_blob_key("d");
  ASSERT_TRUE(client.store.put(alone, left).done());
  ASSERT_TRUE(client.store.put(damaged, left).done());
  ASSERT_TRUE(client.store.put(head_key("d", "s"), left).done());

  std::vector<std::string> gone, strange;
  const auto collect = [&](bool removes, int64_t now) {
    gone.clear();
    strange.clear();
    StoreCollector::Options options{.removes = removes};
    options.on_removed = [&](const ObjectStore::Listed& one) { gone.push_back(one.key); };
    options.on_strange = [&](const std::string& key, const std::string&) {
      strange.push_back(key);
    };
    return StoreCollector(client.store, std::move(options), now).collect();
  };
  const int64_t now = std::time(nullptr), later = now + 25 * 3600;
  EXPECT_EQ(collect(true, now).recent, 3);
  EXPECT_THAT(gone, ElementsAre());
  EXPECT_EQ(collect(false, later).removed, 2);
  EXPECT_THAT(gone, UnorderedElementsAre(replaced, alone));
  EXPECT_EQ(collect(true, later).removed_bytes, 9);
  EXPECT_THAT(strange, ElementsAre(head_key("d", "s")));
  EXPECT_EQ(client.store.get(replaced, 10).outcome, Outcome::kMissing);
  EXPECT_EQ(client.store.get(alone, 10).outcome, Outcome::kMissing);
  EXPECT_EQ(client.store.get(damaged, 10).body, "left");
  EXPECT_EQ(client.store.get(owned.head.blobs[0].key, 10).body, "second");
  EXPECT_EQ(collect(true, later).removed, 0);
  for (const std::string& key :
       {damaged, head_key("d", "s"), head_key("c", "s"), owned.head.blobs[0].key}) {
    ASSERT_TRUE(client.store.remove(key).done());
  }
}

// Commits race with collections of blobs that are old by any clock but those in between.
TEST(Stores, CommitsSurviveCollections) {
  Client client;
  std::atomic<bool> ended = false;
  std::thread collector([&] {
    while (!ended) StoreCollector(client.store, {}, std::time(nullptr)).collect();
  });
  RemoteSessions sessions(client.store, "owner");
  OwnedSession owned;
  ASSERT_TRUE(sessions.create("r", "s", {.record = "r"}, &owned).done());
  for (int commit = 0; commit < 20; ++commit) {
    const std::string text = std::to_string(commit);
    const std::string_view state[] = {text};
    ASSERT_TRUE(sessions.commit(&owned, {.record = "r", .added = {state}}).done());
    sessions.remove_unused(&owned);
    std::string found;
    ASSERT_TRUE(sessions.read_blob(owned.head, owned.head.blobs[0], 10, &found).done());
    EXPECT_EQ(found, text);
  }
  ended = true;
  collector.join();
  ASSERT_TRUE(sessions.close(&owned).done());
}

// A session is closed and created again while its closed head is collected, by a clock that is far
// ahead.
TEST(Stores, CreationsSurviveCollectionsOfClosedHeads) {
  Client client;
  std::atomic<bool> ended = false;
  std::atomic<int64_t> removed = 0;
  std::thread collector([&] {
    while (!ended) {
      removed += StoreCollector(client.store, {}, std::time(nullptr) + 25 * 3600).collect().removed;
    }
  });
  RemoteSessions sessions(client.store, "owner");
  for (int number = 0; number < 50 || removed == 0; ++number) {
    OwnedSession owned, found;
    const std::string record = std::to_string(number);
    const auto made = sessions.create("closed", "s", {.record = record}, &owned);
    ASSERT_TRUE(made.done()) << made.error;
    ASSERT_TRUE(sessions.find("closed", "s", &found).done());
    ASSERT_EQ(found.head, owned.head);
    ASSERT_TRUE(sessions.close(&owned).done());
  }
  ended = true;
  collector.join();
  StoreCollector(client.store, {}, std::time(nullptr) + 25 * 3600).collect();
  EXPECT_EQ(client.store.get(head_key("closed", "s"), 1000).outcome, Outcome::kMissing);
}

TEST(Stores, AreChecked) {
  Client client;
  EXPECT_EQ(error_of([&] { client.store.check(); }), "");
}

// Servers that take a session from each other, and count its commits in it.
TEST(Stores, OwnersNeverLoseOrRepeatACommit) {
  constexpr int kServers = 3, kCommits = 20;
  std::atomic<int> done = 0, replaced = 0;
  Client first;
  OwnedSession owned;
  ASSERT_TRUE(
      RemoteSessions(first.store, "first").create("t", "race", {.record = "0"}, &owned).done());
  std::vector<std::thread> servers;
  for (int server = 0; server < kServers; ++server) {
    servers.emplace_back([&, server] {
      Client client;
      RemoteSessions sessions(client.store, std::to_string(server));
      OwnedSession mine;
      for (int commits = 0; commits < kCommits;) {
        if (!sessions.take_over("t", "race", &mine).done()) continue;
        const std::string next = std::to_string(std::stoi(mine.head.record) + 1);
        const auto result = sessions.commit(&mine, {.record = next});
        ASSERT_TRUE(result.done() || result.outcome == RemoteSessions::Outcome::kLost)
            << result.error;
        commits += result.done();
        done += result.done();
        replaced += !result.done();
      }
    });
  }
  for (std::thread& server : servers) server.join();
  EXPECT_TRUE(RemoteSessions(first.store, "first").take_over("t", "race", &owned).done());
  EXPECT_EQ(owned.head.record, std::to_string(done));
  EXPECT_EQ(owned.head.commit, static_cast<uint64_t>(1 + done));
  EXPECT_TRUE(first.store.remove(head_key("t", "race")).done());
  RecordProperty("replaced", replaced);
}

// One server of object_stores.py: it counts its commits in the session, and prints each that is
// acknowledged, until it is killed or another one owns the session. A kill may come after the
// commit that follows the last printed one, COMMITTED.
TEST(Server, CommitsAsLongAsItOwnsTheSession) {
  Client client;
  RemoteSessions sessions(client.store, variable("OWNER"));
  OwnedSession owned;
  const int committed = std::stoi(variable("COMMITTED"));
  if (committed == 0) {
    ASSERT_TRUE(sessions.create("t", "killed", {.record = "0"}, &owned).done());
  }
  ASSERT_TRUE(sessions.take_over("t", "killed", &owned).done());
  int count = std::stoi(owned.head.record);
  ASSERT_TRUE(count == committed || count == committed + 1) << count << " after " << committed;
  if (count > 0) {
    std::string state;
    ASSERT_TRUE(sessions.read_blob(owned.head, owned.head.blobs.at(0), 100, &state).done());
    ASSERT_EQ(state, owned.head.record);
  }
  while (getchar() != EOF) {
    const std::string next = std::to_string(count + 1);
    const std::string_view state[] = {next};
    auto result = sessions.commit(&owned, {.record = next, .added = {state}});
    while (result.outcome == RemoteSessions::Outcome::kUnknown) result = sessions.settle(&owned);
    if (result.outcome == RemoteSessions::Outcome::kLost) {
      printf("%s\n", result.error.c_str());
      return;
    }
    ASSERT_TRUE(result.done()) << result.error;
    printf("commit %d\n", ++count);
    fflush(stdout);
    sessions.remove_unused(&owned);
  }
}

TEST(Stores, RefuseAnotherSecret) {
  Client client;
  AwsEnvironment environment = client.environment;
  ASSERT_FALSE(environment.secret.empty());
  environment.secret += "x";
  Client wrong(environment);
  EXPECT_THAT(
      error_of([&] { wrong.store.check(); }),
      AllOf(HasSubstr("HTTP 403 SignatureDoesNotMatch"), Not(HasSubstr(environment.secret))));
}

TEST(WebIdentity, GivesKeysThatTheStoreAccepts) {
  Client client;
  EXPECT_TRUE(client.environment.secret.empty());
  EXPECT_EQ(error_of([&] { client.store.check(); }), "");
  EXPECT_FALSE(client.credentials->current().session_token.empty());
}

TEST(LyingStore, IsRefusedByName) {
  Client client;
  EXPECT_THAT(error_of([&] { client.store.check(); }),
              HasSubstr(variable("S3_ENDPOINT") + " ignores If-None-Match: two servers"));
}

TEST(Certificate, ThatNoAuthoritySignedIsRefused) {
  Client client;
  EXPECT_THAT(error_of([&] { client.store.check(); }), HasSubstr("certificate"));
}

}  // namespace recurve::object_stores_test
