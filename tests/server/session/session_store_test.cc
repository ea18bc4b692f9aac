#include "server/session/session_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/engine/state_bytes.h"

namespace recurve::session_store_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = SessionCommand::Kind;
using namespace std::chrono_literals;

class SessionStoreTest : public ::testing::Test {
 protected:
  static constexpr int kSlots = 3;
  static constexpr int64_t kStateBytes = 8;
  static constexpr int32_t kVocab = 1000;
  static StateLayout layout() { return {.arrays = {{.name = "x", .shape = {2}}}}; }
  static inline const int64_t kBytesEach = SessionStore::bytes_each(layout(), kVocab);

  SessionStore make(int64_t states, double ttl = 0) {
    return SessionStore(states_, pool_,
                        {.host_bytes = states * kBytesEach, .default_ttl_seconds = ttl}, kVocab);
  }

  // A state that says `number`.
  static StateBytes image(uint8_t number) {
    return StateBytes(static_cast<size_t>(kStateBytes), static_cast<std::byte>(number));
  }

  SessionResult run(Kind kind, const std::string& name, const std::string& other = "") {
    return store_.run({.kind = kind, .name = name, .other = other}, now_);
  }
  EndReason status(Kind kind, const std::string& name, const std::string& other = "") {
    return run(kind, name, other).reason;
  }
  SessionInfo get(const std::string& name) { return run(Kind::kGet, name).sessions.at(0); }

  // What a request does to a session: its state becomes `number`, its position grows by one.
  void use(const std::string& name, uint8_t number) {
    Session& session = *store_.find(name);
    store_.set_busy(session, true);
    StateSlot slot = store_.check_out(session);
    put_state(pool_, image(number), slot);
    const int64_t position = session.at.position + 1;
    store_.check_in(session, std::move(slot), {.position = position, .pending = number}, now_);
  }
  // The state a request would find.
  StateBytes look(const std::string& name) {
    Session& session = *store_.find(name);
    StateSlot slot = store_.check_out(session);
    const StateBytes found = state_in(pool_, slot);
    store_.check_in(session, std::move(slot), session.at, now_);
    return found;
  }
  std::vector<std::string> names(const SessionResult& result) {
    std::vector<std::string> names;
    for (const SessionInfo& info : result.sessions) names.push_back(info.name);
    return names;
  }

  std::unique_ptr<Backend> backend_ = make_backend("reference");
  std::unique_ptr<Stream> stream_ = backend_->make_stream();
  StatePool pool_{*backend_, layout(), kSlots, *stream_};
  Clock::time_point now_ = Clock::now();
  StateCache states_{*backend_, pool_, int64_t{1} << 40};
  SessionStore store_ = make(100);
};

TEST_F(SessionStoreTest, OpenGetClose) {
  const SessionResult opened = run(Kind::kOpen, "a");
  ASSERT_EQ(opened.reason, EndReason::kDone);
  ASSERT_EQ(opened.sessions.size(), 1u);
  EXPECT_EQ(opened.sessions[0].name, "a");
  EXPECT_EQ(opened.sessions[0].position, 0);
  EXPECT_EQ(opened.sessions[0].tier, Tier::kEmpty);
  EXPECT_EQ(opened.sessions[0].state_bytes, kStateBytes);
  EXPECT_EQ(opened.sessions[0].host_bytes, kBytesEach);
  EXPECT_EQ(status(Kind::kOpen, "a"), EndReason::kExists);
  EXPECT_EQ(status(Kind::kClose, "a"), EndReason::kDone);
  EXPECT_EQ(status(Kind::kGet, "a"), EndReason::kNoSession);
  EXPECT_EQ(status(Kind::kOpen, "a"), EndReason::kDone);
}

TEST_F(SessionStoreTest, AForkNamesItsParent) {
  const std::string long_name(100, 'p');
  run(Kind::kOpen, long_name);
  EXPECT_EQ(get(long_name).parent, "");
  const SessionInfo fork = run(Kind::kFork, long_name, "a").sessions.at(0);
  EXPECT_EQ(fork.parent, long_name);
  EXPECT_GT(fork.host_bytes, kBytesEach + 100) << "a name so long takes memory";
  run(Kind::kClose, long_name);
  EXPECT_EQ(get("a").parent, long_name) << "also where it is closed";
  EXPECT_EQ(get("a").host_bytes, fork.host_bytes);
  use("a", 7);  // whose state is in a slot then
  EXPECT_EQ(run(Kind::kFork, "a", "b").sessions.at(0).parent, "a");
}

TEST_F(SessionStoreTest, TenantsDoNotSeeEachOthersNames) {
  const Identity other{.tenant = kAnyone.tenant + 1, .tenant_name = "other"};
  const auto ask = [&](Kind kind, const std::string& name, const std::string& second = "") {
    return store_.run({.kind = kind, .caller = other, .name = name, .other = second}, now_);
  };
  run(Kind::kOpen, "a");
  use("a", 7);
  EXPECT_EQ(ask(Kind::kGet, "a").reason, EndReason::kNoSession);
  ASSERT_EQ(ask(Kind::kOpen, "a").reason, EndReason::kDone);
  EXPECT_EQ(ask(Kind::kGet, "a").sessions.at(0).position, 0);
  EXPECT_EQ(ask(Kind::kFork, "a", "b").reason, EndReason::kDone);
  run(Kind::kOpen, "c");
  EXPECT_THAT(names(run(Kind::kList, "")), ElementsAre("a", "c"));
  EXPECT_THAT(names(ask(Kind::kList, "")), ElementsAre("a", "b"));
  EXPECT_EQ(ask(Kind::kClose, "a").reason, EndReason::kDone);
  EXPECT_EQ(get("a").position, 1);
  EXPECT_EQ(store_.find("b"), nullptr);
  EXPECT_NE(store_.find("b", other.tenant), nullptr);
}

TEST_F(SessionStoreTest, EveryCommandNamesAnUnknownSession) {
  for (const Kind kind :
       {Kind::kFork, Kind::kMark, Kind::kUnmark, Kind::kRewind, Kind::kGet, Kind::kClose}) {
    const SessionResult result = run(kind, "missing", "x");
    EXPECT_EQ(result.reason, EndReason::kNoSession);
    EXPECT_THAT(result.message, HasSubstr("\"missing\""));
  }
}

TEST_F(SessionStoreTest, ABusySessionIsOnlyLookedAt) {
  run(Kind::kOpen, "a");
  run(Kind::kMark, "a", "m");
  store_.set_busy(*store_.find("a"), true);
  for (const Kind kind : {Kind::kFork, Kind::kMark, Kind::kUnmark, Kind::kRewind, Kind::kClose}) {
    EXPECT_EQ(status(kind, "a", "m"), EndReason::kSessionBusy);
  }
  EXPECT_TRUE(get("a").busy);
  EXPECT_THAT(names(run(Kind::kList, "")), ElementsAre("a"));
}

TEST_F(SessionStoreTest, AFreshSessionStartsFromZeroWhateverItsSlotHeld) {
  run(Kind::kOpen, "a");
  use("a", 7);
  run(Kind::kClose, "a");
  run(Kind::kOpen, "b");
  EXPECT_EQ(look("b"), image(0));
}

TEST_F(SessionStoreTest, TheStateSurvivesTheMoveToHostMemoryAndBack) {
  run(Kind::kOpen, "a");
  use("a", 7);
  EXPECT_EQ(get("a").tier, Tier::kSlot);
  EXPECT_EQ(pool_.free_slots(), kSlots - 1);
  EXPECT_TRUE(store_.evict_one());
  EXPECT_EQ(get("a").tier, Tier::kHost);
  EXPECT_EQ(get("a").position, 1);
  EXPECT_EQ(pool_.free_slots(), kSlots);
  EXPECT_FALSE(store_.evict_one());
  EXPECT_EQ(look("a"), image(7));
  EXPECT_EQ(get("a").tier, Tier::kSlot);
}

TEST_F(SessionStoreTest, EvictsWhoHasBeenIdleLongestAndThoseWhoWaitLast) {
  for (const std::string name : {"a", "b", "c"}) {
    run(Kind::kOpen, name);
    use(name, 1);
    now_ += 1s;
  }
  use("a", 2);
  store_.set_busy(*store_.find("b"), true);  // queued
  EXPECT_TRUE(store_.evict_one());
  EXPECT_EQ(get("c").tier, Tier::kHost);
  EXPECT_TRUE(store_.evict_one());
  EXPECT_EQ(get("a").tier, Tier::kHost);
  EXPECT_TRUE(store_.evict_one());
  EXPECT_EQ(get("b").tier, Tier::kHost);
  EXPECT_TRUE(get("b").busy);
  EXPECT_FALSE(store_.evict_one());
}

// From a slot, from host memory, and of nothing.
TEST_F(SessionStoreTest, AForkHasTheStateAndGoesItsOwnWay) {
  for (const bool in_host : {false, true}) {
    run(Kind::kOpen, "a");
    use("a", 7);
    if (in_host) store_.evict_one();
    ASSERT_EQ(status(Kind::kFork, "a", "b"), EndReason::kDone);
    EXPECT_EQ(get("b").position, 1);
    EXPECT_EQ(get("b").pending_token, 7);
    EXPECT_EQ(get("a").tier, in_host ? Tier::kHost : Tier::kSlot) << "the original stays";
    use("b", 9);
    EXPECT_EQ(look("a"), image(7));
    EXPECT_EQ(look("b"), image(9));
    EXPECT_EQ(get("a").position, 1);
    run(Kind::kClose, "a");
    EXPECT_EQ(look("b"), image(9));
    run(Kind::kClose, "b");
    ASSERT_EQ(pool_.free_slots(), kSlots);
  }
  run(Kind::kOpen, "a");
  run(Kind::kFork, "a", "b");
  EXPECT_EQ(look("b"), image(0));
}

TEST_F(SessionStoreTest, AForkNeedsANewName) {
  run(Kind::kOpen, "a");
  run(Kind::kOpen, "b");
  EXPECT_EQ(status(Kind::kFork, "a", "b"), EndReason::kExists);
  EXPECT_EQ(status(Kind::kFork, "a", "a"), EndReason::kExists);
}

TEST_F(SessionStoreTest, RewindsToItsMarksAgainAndAgain) {
  run(Kind::kOpen, "a");
  run(Kind::kMark, "a", "start");
  use("a", 1);
  run(Kind::kMark, "a", "one");
  use("a", 2);
  store_.evict_one();
  run(Kind::kMark, "a", "two");
  for (int round = 0; round < 2; ++round) {
    use("a", 3);
    ASSERT_EQ(status(Kind::kRewind, "a", "one"), EndReason::kDone);
    EXPECT_EQ(get("a").position, 1);
    EXPECT_EQ(get("a").pending_token, 1);
    EXPECT_EQ(look("a"), image(1));
    ASSERT_EQ(status(Kind::kRewind, "a", "two"), EndReason::kDone);
    EXPECT_EQ(look("a"), image(2));
    ASSERT_EQ(status(Kind::kRewind, "a", "start"), EndReason::kDone);
    EXPECT_EQ(get("a").position, 0);
    EXPECT_EQ(get("a").pending_token, std::nullopt);
    EXPECT_EQ(look("a"), image(0));
  }
}

TEST_F(SessionStoreTest, MarksMoveAndGo) {
  run(Kind::kOpen, "a");
  run(Kind::kMark, "a", "m");
  use("a", 1);
  run(Kind::kMark, "a", "m");
  use("a", 2);
  ASSERT_EQ(get("a").marks.size(), 1u);
  EXPECT_EQ(get("a").marks[0].name, "m");
  EXPECT_EQ(get("a").marks[0].position, 1);
  EXPECT_EQ(status(Kind::kUnmark, "a", "m"), EndReason::kDone);
  EXPECT_EQ(status(Kind::kUnmark, "a", "m"), EndReason::kNotFound);
  EXPECT_EQ(status(Kind::kRewind, "a", "m"), EndReason::kNotFound);
  EXPECT_EQ(look("a"), image(2));
}

TEST_F(SessionStoreTest, AForkDoesNotInheritMarks) {
  run(Kind::kOpen, "a");
  run(Kind::kMark, "a", "m");
  run(Kind::kFork, "a", "b");
  EXPECT_THAT(get("b").marks, IsEmpty());
}

TEST_F(SessionStoreTest, TheEpochCountsChanges) {
  run(Kind::kOpen, "a");
  const uint64_t first = get("a").epoch;
  use("a", 1);
  EXPECT_EQ(get("a").epoch, first + 1);
  run(Kind::kMark, "a", "m");
  run(Kind::kGet, "a");
  store_.evict_one();
  EXPECT_EQ(get("a").epoch, first + 1);
  run(Kind::kRewind, "a", "m");
  EXPECT_EQ(get("a").epoch, first + 2);
}

TEST_F(SessionStoreTest, SessionsAndMarksReserveTheirMemory) {
  SessionStore store = make(3);
  const auto status = [&](Kind kind, const std::string& name, const std::string& other = "") {
    return store.run({.kind = kind, .name = name, .other = other}, now_).reason;
  };
  EXPECT_EQ(status(Kind::kOpen, "a"), EndReason::kDone);
  EXPECT_EQ(status(Kind::kMark, "a", "m"), EndReason::kDone);
  EXPECT_EQ(status(Kind::kMark, "a", "m"), EndReason::kDone) << "moving a mark takes no more";
  EXPECT_EQ(status(Kind::kFork, "a", "b"), EndReason::kDone);
  EXPECT_EQ(status(Kind::kOpen, "c"), EndReason::kExhausted);
  EXPECT_EQ(status(Kind::kFork, "a", "c"), EndReason::kExhausted);
  EXPECT_EQ(status(Kind::kMark, "b", "m"), EndReason::kExhausted);
  EXPECT_EQ(status(Kind::kMark, "a", "m"), EndReason::kDone);
  EXPECT_EQ(status(Kind::kOpen, "a"), EndReason::kExists)
      << "before full: what is wrong is the name";
  EXPECT_EQ(status(Kind::kUnmark, "a", "m"), EndReason::kDone);
  EXPECT_EQ(status(Kind::kOpen, "c"), EndReason::kDone);
  EXPECT_EQ(status(Kind::kOpen, "d"), EndReason::kExhausted);
  EXPECT_EQ(status(Kind::kClose, "c"), EndReason::kDone);
  EXPECT_EQ(status(Kind::kMark, "b", "m"), EndReason::kDone);
  EXPECT_EQ(status(Kind::kClose, "b"), EndReason::kDone) << "a session goes with its marks";
  EXPECT_EQ(status(Kind::kOpen, "c"), EndReason::kDone);
  EXPECT_EQ(status(Kind::kOpen, "d"), EndReason::kDone);
  EXPECT_EQ(status(Kind::kOpen, "e"), EndReason::kExhausted);
}

TEST_F(SessionStoreTest, ExpiredSessionsGiveTheirMemoryBack) {
  SessionStore store = make(2, 10);
  store.run({.kind = Kind::kOpen, .name = "a"}, now_);
  store.run({.kind = Kind::kMark, .name = "a", .other = "m"}, now_);
  EXPECT_EQ(store.run({.kind = Kind::kOpen, .name = "b"}, now_).reason, EndReason::kExhausted);
  store.expire(now_ + 11s);
  EXPECT_EQ(store.run({.kind = Kind::kOpen, .name = "b"}, now_).reason, EndReason::kDone);
  EXPECT_EQ(store.run({.kind = Kind::kOpen, .name = "c"}, now_).reason, EndReason::kDone);
}

TEST_F(SessionStoreTest, IdleSessionsExpire) {
  store_.run({.kind = Kind::kOpen, .name = "short", .ttl_seconds = 5}, now_);
  store_.run({.kind = Kind::kOpen, .name = "long", .ttl_seconds = 60}, now_);
  store_.run({.kind = Kind::kOpen, .name = "ever", .ttl_seconds = 0}, now_);
  EXPECT_EQ(store_.next_expiry(), now_ + 5s);
  use("short", 1);
  store_.expire(now_ + 4999ms);
  EXPECT_NE(store_.find("short"), nullptr);
  store_.expire(now_ + 5s);
  EXPECT_EQ(store_.find("short"), nullptr);
  EXPECT_EQ(pool_.free_slots(), kSlots);
  EXPECT_EQ(store_.next_expiry(), now_ + 60s);
  store_.set_busy(*store_.find("long"), true);
  EXPECT_EQ(store_.next_expiry(), std::nullopt) << "who is busy is not idle";
  store_.expire(now_ + 1h);
  EXPECT_THAT(names(run(Kind::kList, "")), ElementsAre("ever", "long"));
}

TEST_F(SessionStoreTest, UseStartsTheIdleTimeAnew) {
  store_.run({.kind = Kind::kOpen, .name = "a", .ttl_seconds = 5}, now_);
  now_ += 4s;
  use("a", 1);
  EXPECT_EQ(store_.next_expiry(), now_ + 5s);
  now_ += 4s;
  EXPECT_EQ(get("a").idle_seconds, 4);
  run(Kind::kMark, "a", "m");
  EXPECT_EQ(store_.next_expiry(), now_ + 5s);
  run(Kind::kGet, "a");
  run(Kind::kList, "");
  EXPECT_EQ(store_.next_expiry(), now_ + 5s) << "looking is no use";
}

TEST_F(SessionStoreTest, ATimeToLiveBeyondTheClockIsLong) {
  for (const double ttl : {1e12, 1e300, std::numeric_limits<double>::infinity()}) {
    store_.run({.kind = Kind::kOpen, .name = "a", .ttl_seconds = ttl}, now_);
    store_.expire(now_ + 24h);
    EXPECT_NE(store_.find("a"), nullptr) << ttl;
    run(Kind::kClose, "a");
  }
}

TEST_F(SessionStoreTest, ListsInPages) {
  for (const std::string name : {"b2", "a", "b1", "b3", "c"}) run(Kind::kOpen, name);
  const auto page = [&](const std::string& prefix, const std::string& after, int limit) {
    return store_.run({.kind = Kind::kList, .name = prefix, .other = after, .limit = limit}, now_);
  };
  EXPECT_THAT(names(page("", "", 100)), ElementsAre("a", "b1", "b2", "b3", "c"));
  EXPECT_FALSE(page("", "", 5).more);
  EXPECT_TRUE(page("", "", 4).more);
  EXPECT_THAT(names(page("", "", 2)), ElementsAre("a", "b1"));
  EXPECT_THAT(names(page("", "b1", 2)), ElementsAre("b2", "b3"));
  EXPECT_THAT(names(page("", "b25", 2)), ElementsAre("b3", "c")) << "b25 has gone meanwhile";
  EXPECT_THAT(names(page("b", "", 2)), ElementsAre("b1", "b2"));
  EXPECT_TRUE(page("b", "", 2).more);
  EXPECT_THAT(names(page("b", "b2", 2)), ElementsAre("b3"));
  EXPECT_FALSE(page("b", "b2", 2).more);
  EXPECT_THAT(names(page("b", "a", 9)), ElementsAre("b1", "b2", "b3"));
  EXPECT_THAT(names(page("b", "c", 9)), IsEmpty());
  EXPECT_THAT(names(page("x", "", 9)), IsEmpty());
}

TEST_F(SessionStoreTest, CountsByTier) {
  for (const std::string name : {"empty", "slot", "host", "running"}) run(Kind::kOpen, name);
  use("host", 1);
  store_.evict_one();
  run(Kind::kMark, "host", "m");
  use("slot", 1);
  Session& running = *store_.find("running");
  store_.set_busy(running, true);
  const StateSlot slot = store_.check_out(running);
  store_.set_busy(*store_.find("host"), true);  // queued, its state still in host memory
  const SessionStore::Counts counts = store_.counts();
  EXPECT_EQ(counts.total, 4);
  EXPECT_EQ(counts.in_slot, 2);
  EXPECT_EQ(counts.in_host, 1);
  EXPECT_EQ(counts.empty, 1);
  EXPECT_EQ(counts.host_bytes, kStateBytes) << "the session and its mark have one image";
}

}  // namespace recurve::session_store_test
