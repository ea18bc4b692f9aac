// What a store has of sessions, sealed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "server/identity/hex.h"
#include "server/object_store/remote_sessions.h"
#include "tests/server/object_store/faulty_store.h"
#include "tests/support/temp_dir.h"

namespace recurve::sealed_sessions_test {

using Outcome = RemoteSessions::Outcome;
using Result = RemoteSessions::Result;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kMost = uint64_t{8} << 20;

// The file of --state-keys.
struct Keys {
  explicit Keys(std::string text) : path(folder.path() / "keys") { std::ofstream(path) << text; }
  TempDir folder;
  std::filesystem::path path;
};

std::string key_text(char digit) { return std::string(64, digit) + "\n"; }

// keys: empty: nothing is sealed.
struct Server : StoreUser {
  Server(const FaultyStore& at, const std::string& name, const std::string& keys)
      : StoreUser(at),
        seal(keys.empty() ? nullptr : std::make_unique<StoreSeal>(store, Keys(keys).path.string())),
        sessions(store, name, seal.get()) {}

  Result commit(const std::string& state, const std::string& answer = "[1, 2]") {
    const std::string_view parts[] = {state};
    return sessions.commit(&owned, {.record = "r", .answer = answer, .added = {parts}});
  }
  Result read(std::string* state) {
    return sessions.read_blob(owned.head, owned.head.blobs.at(0), kMost, state);
  }

  std::unique_ptr<StoreSeal> seal;
  RemoteSessions sessions;
  OwnedSession owned;
};

TEST(SealedSessions, AreReadByServersWithTheSameKeys) {
  FaultyStore store;
  Server a(store, "a", key_text('1')), b(store, "b", key_text('1'));
  ASSERT_TRUE(a.sessions.create("t", "s", {.record = "r"}, &a.owned).done());
  for (const size_t bytes : {0, 1, 1 << 20, (1 << 20) + 1}) {
    std::string state(bytes, 'x');
    for (size_t i = 0; i < bytes; ++i) state[i] = static_cast<char>(i * 7 + i / 256);
    ASSERT_TRUE(a.commit(state).done());
    EXPECT_EQ(a.owned.head.blobs[0].bytes, StoreSeal::sealed_bytes(bytes));
    ASSERT_TRUE(b.sessions.find("t", "s", &b.owned).done());
    std::string found, answer;
    const Result read = b.read(&found);
    EXPECT_TRUE(read.done()) << read.error;
    EXPECT_TRUE(found == state) << bytes;
    EXPECT_TRUE(b.sessions.open_answer(b.owned.head, &answer).done());
    EXPECT_EQ(answer, "[1, 2]");
  }
}

TEST(SealedSessions, AreNotReadable) {
  FaultyStore store;
  Server a(store, "a", key_text('1'));
  ASSERT_TRUE(a.sessions.create("t", "s", {.record = "r"}, &a.owned).done());
  const std::string secret(100, 'S');
  ASSERT_TRUE(a.commit(secret, secret).done());
  for (const auto& [key, text] : store.objects()) {
    EXPECT_THAT(text, Not(HasSubstr("SSSS"))) << key;
    EXPECT_THAT(text, Not(HasSubstr("U1NTU1NT"))) << key;  // in base64
  }
}

// A writer to the store changes objects and heads so that names and checksums agree.
TEST(SealedSessions, OpenAsWhatTheyAreAlone) {
  FaultyStore store;
  Server a(store, "a", key_text('1'));
  OwnedSession others;
  ASSERT_TRUE(a.sessions.create("t", "other", {.record = "r"}, &others).done());
  ASSERT_TRUE(a.sessions.create("t", "s", {.record = "r"}, &a.owned).done());
  ASSERT_TRUE(a.commit("first").done());
  const SessionHead first = a.owned.head;
  const std::string first_text = store.objects().at(first.blobs[0].key);
  ASSERT_TRUE(a.commit("second").done());
  const SessionHead head = a.owned.head;
  const std::string key = head.blobs[0].key, text = store.objects().at(key);

  std::string opened;
  const auto outcome = [&](SessionHead changed, const std::string& object) {
    const std::string_view parts[] = {object};
    changed.blobs[0].bytes = object.size();
    changed.blobs[0].checksum = blob_checksum(parts);
    store.put(changed.blobs[0].key, object);
    return a.sessions.read_blob(changed, changed.blobs[0], kMost, &opened).outcome;
  };
  EXPECT_EQ(outcome(head, text), Outcome::kDone);
  EXPECT_EQ(outcome(head, first_text), Outcome::kDamaged);  // under the name of the second
  SessionHead of_other = head;
  of_other.session = "other";
  EXPECT_EQ(outcome(of_other, text), Outcome::kDamaged);
  for (size_t at = 24; at < text.size(); ++at) {
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    EXPECT_EQ(outcome(head, changed), Outcome::kDamaged) << at;
  }
  for (size_t bytes = 8; bytes < text.size(); ++bytes) {
    EXPECT_EQ(outcome(head, text.substr(0, bytes)), Outcome::kDamaged) << bytes;
  }
  EXPECT_EQ(outcome(head, "a state"), Outcome::kSealed);
  SessionHead answer = head;
  answer.answer = first.answer;
  EXPECT_EQ(a.sessions.open_answer(answer, &opened).outcome, Outcome::kDamaged);
  answer.answer = "{}";
  EXPECT_EQ(a.sessions.open_answer(answer, &opened).outcome, Outcome::kSealed);
}

TEST(SealedSessions, ABlobThatIsTooLongIsNotRead) {
  FaultyStore store;
  for (const std::string& keys : {key_text('1'), std::string()}) {
    Server a(store, "a", keys);
    const std::string name = keys.empty() ? "plain" : "sealed";
    ASSERT_TRUE(a.sessions.create("t", name, {.record = "r"}, &a.owned).done());
    ASSERT_TRUE(a.commit("state").done());
    std::string text;
    const SessionHead& head = a.owned.head;
    EXPECT_TRUE(a.sessions.read_blob(head, head.blobs[0], 5, &text).done());
    store.fail(0, 0, FaultyStore::Fault::kNone);
    const Result refused = a.sessions.read_blob(head, head.blobs[0], 4, &text);
    EXPECT_EQ(refused.outcome, Outcome::kDamaged);
    EXPECT_THAT(refused.error, HasSubstr("a state of this server at most"));
    EXPECT_EQ(store.requests(), 0);
  }
}

TEST(SealedSessions, AMissingKeyIsNamed) {
  FaultyStore store;
  Server a(store, "a", key_text('1'));
  ASSERT_TRUE(a.sessions.create("t", "s", {.record = "r"}, &a.owned).done());
  ASSERT_TRUE(a.commit("state").done());
  std::string text;
  const auto read = [&](const std::string& keys) {
    Server b(store, "b", keys);
    EXPECT_TRUE(b.sessions.find("t", "s", &b.owned).done());
    std::string answer;
    EXPECT_EQ(b.sessions.open_answer(b.owned.head, &answer).outcome, Outcome::kSealed);
    const Result result = b.read(&text);
    EXPECT_EQ(result.outcome, Outcome::kSealed);
    return result.error;
  };
  EXPECT_THAT(read(""), HasSubstr("start the server with the --state-keys of the others"));
  EXPECT_THAT(read(key_text('2')), HasSubstr("needs the operator's key"));
  const std::string key = store.objects().at("keys/t-t");
  store.put("keys/t-t", "x");
  EXPECT_THAT(read(key_text('1')), HasSubstr("keys/t-t in the store: it is no key"));
  Server other(store, "other", key_text('1'));
  ASSERT_TRUE(other.sessions.create("u", "s", {.record = "r"}, &other.owned).done());
  store.put("keys/t-t", store.objects().at("keys/t-u"));
  EXPECT_THAT(read(key_text('1')), HasSubstr("is the key of tenant \"u\""));
  store.put("keys/t-t", key);
  Server c(store, "c", key_text('1'));
  ASSERT_TRUE(c.sessions.find("t", "s", &c.owned).done());
  EXPECT_TRUE(c.read(&text).done());
}

TEST(SealedSessions, TwoServersThatCreateATenantsKeyHaveTheSame) {
  FaultyStore store;
  Server a(store, "a", key_text('1')), b(store, "b", key_text('2') + key_text('1'));
  ASSERT_TRUE(a.sessions.create("t", "s", {.record = "r"}, &a.owned).done());
  const std::string wrapped = store.objects().at("keys/t-t");
  ASSERT_TRUE(b.sessions.create("t", "s2", {.record = "r"}, &b.owned).done());
  EXPECT_NE(store.objects().at("keys/t-t"), wrapped);  // with the first of its keys
  ASSERT_TRUE(b.commit("state").done());
  ASSERT_TRUE(a.sessions.take_over("t", "s2", &a.owned).done());
  std::string text;
  EXPECT_TRUE(a.read(&text).done());
  EXPECT_EQ(text, "state");
}

}  // namespace recurve::sealed_sessions_test
