// States that prompts have left on a disk: they outlive the server, for those that would compute
// the same, and make room for sessions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <system_error>

#include "tests/support/engine/engine_on_disk.h"
#include "tests/support/engine/recording_folder.h"

namespace recurve::testing::prefix_disk_test {

constexpr int64_t kPlenty = int64_t{1} << 28;

// With a disk that loses all that it has to, and nothing else.
class PrefixOnDisk : public ::testing::Test {
 protected:
  static HarnessOptions options(int64_t bytes = kPlenty) {
    HarnessOptions options{.slots = 4};
    options.prefix = {.bytes = bytes, .disk_time = 1};
    options.identity = {.model = "m", .weights = "bf16", .chunk = NullHarness::kChunk};
    options.made_by = "this";
    return options;
  }
  // A server that begins with what is in the folder.
  std::unique_ptr<OnDisk> start(const HarnessOptions& options = PrefixOnDisk::options(),
                                const StateStore::Options& of_store = {}) {
    return std::make_unique<OnDisk>(
        std::make_unique<RecordingFolder>(disk_), options,
        [&](const HarnessOptions& of) {
          return std::make_unique<EngineHarness>(model_, *backend_, of);
        },
        of_store);
  }
  static Request request(size_t length, uint64_t seed = 0) {
    return NullHarness::request(length, 2, seed);
  }
  static PrefixUse use(OnDisk& server, Request request) {
    return server.ask(std::move(request))->ending.value().prefix;
  }
  AnswerPtr cold(Request request) {
    return EngineHarness(model_, *backend_, {.slots = 1}).ask(std::move(request));
  }

  std::shared_ptr<RecordingDisk> disk_ = std::make_shared<RecordingDisk>();
  std::unique_ptr<Backend> backend_ = make_backend("reference");
  NullModel model_{NullHarness::kVocab, {.chunk = NullHarness::kChunk, .ballast = 64}};
};

// Though there was room in memory, and nothing but a kill.
TEST_F(PrefixOnDisk, OutlivesTheServer) {
  {
    auto server = start();
    EXPECT_EQ(use(*server, request(100)).miss, PrefixMiss::kNew);
    EXPECT_EQ(use(*server, request(30, 1)).miss, PrefixMiss::kNew);
    EXPECT_EQ((*server)->stats().prefix_states_disk, 2);
    EXPECT_GT((*server)->stats().prefix_bytes_disk, 2 * 64 * 4);
  }
  disk_ = disk_->after_power_loss([](size_t) { return 0; });
  auto server = start();
  EXPECT_EQ((*server)->stats().prefix_states_disk, 2);
  EXPECT_EQ((*server)->stats().prefix_states, 0) << "it is read when it is wanted";
  EXPECT_EQ((*server)->stats().sessions_not_restored, 0);
  const AnswerPtr answer = server->ask(request(100));
  EXPECT_EQ(answer->ending->prefix.tokens, 96);
  EXPECT_EQ(answer->ending->prefix.miss, PrefixMiss::kNone);
  EXPECT_EQ(answer->bits(), cold(request(100))->bits());
  EXPECT_EQ((*server)->stats().prefix_states, 1);
  EXPECT_EQ((*server)->stats().prefix_states_disk, 2) << "it is there already";
  EXPECT_EQ(use(*server, request(100)).tokens, 96);
}

// Nor for anybody who would not compute the same.
TEST_F(PrefixOnDisk, IsOfUseForTheSameTenantModelAndProgramAlone) {
  start()->ask(request(100));
  const auto spared = [&](const HarnessOptions& options, const char* tenant = "default") {
    Request asked = request(100);
    asked.prefix = PrefixMode::kUse;
    asked.caller = caller_of(tenant);
    return use(*start(options), std::move(asked)).tokens;
  };
  EXPECT_EQ(spared(options(), "other"), 0);
  HarnessOptions other = options();
  other.identity.model = "n";
  EXPECT_EQ(spared(other), 0);
  other = options();
  other.identity.weights = "int8";
  EXPECT_EQ(spared(other), 0);
  other = options();
  other.made_by = "that";
  EXPECT_EQ(spared(other), 0);
  other = options();
  other.prefix.shared = true;
  EXPECT_EQ(spared(other), 0) << "it was left by a tenant for itself";
  EXPECT_EQ(spared(options()), 96) << "those have left it there";
  EXPECT_EQ(start()->store().usage().set_aside, 0);
}

TEST_F(PrefixOnDisk, WhatIsSharedIsSharedByTheNextServerToo) {
  HarnessOptions shared = options();
  shared.prefix.shared = true;
  start(shared)->ask(request(100));
  Request asked = request(100);
  asked.caller = caller_of("other");
  EXPECT_EQ(use(*start(), asked).miss, PrefixMiss::kNew) << "that one shares nothing";
  EXPECT_EQ(use(*start(shared), asked).tokens, 96);
}

// The file is kept under another name, the reason is said, and the next prompt finds its state.
TEST_F(PrefixOnDisk, WhatIsDamagedIsSetAsideAndNeverUsed) {
  const StateStore::Options files{.own_file = 1};
  for (const bool cut_off : {false, true}) {
    disk_ = std::make_shared<RecordingDisk>();
    start(options(), files)->ask(request(100));
    std::string file;
    for (const std::string& name : disk_->names()) {
      if (name.starts_with("state-")) file = name;
    }
    ASSERT_NE(file, "");
    std::string& bytes = disk_->bytes_of(file);
    cut_off ? bytes.resize(bytes.size() / 2) : void(bytes[bytes.size() / 2] ^= 1);
    std::vector<std::string> said;
    HarnessOptions telling = options();
    telling.prefix.on_unreadable = [&](const std::string& why) { said.push_back(why); };
    {
      auto server = start(telling, files);
      const AnswerPtr answer = server->ask(request(100));
      EXPECT_EQ(answer->ending->prefix.tokens, 0);
      EXPECT_EQ(answer->ending->prefix.lost, 96);
      EXPECT_EQ(answer->ending->prefix.miss, PrefixMiss::kOnDisk);
      EXPECT_EQ(answer->bits(), cold(request(100))->bits());
      EXPECT_EQ(said.size(), 1u);
      EXPECT_EQ(use(*server, request(100)).tokens, 96);
      EXPECT_EQ(server->store().usage().set_aside, 1);
    }
    EXPECT_THAT(disk_->names(), ::testing::Contains("set-aside-" + file));
    EXPECT_EQ(use(*start(telling, files), request(100)).tokens, 96) << "it was kept anew";
    EXPECT_EQ(said.size(), 1u);
  }
}

// A disk that does not answer for a while loses no state.
TEST_F(PrefixOnDisk, WhatCannotBeReadNowMayBeLater) {
  start()->ask(request(100));
  auto server = start();
  disk_->on_call = [](int, const char* what) {
    if (std::string(what) == "read") throw std::system_error(EIO, std::generic_category(), what);
  };
  Request asked = request(100);
  asked.prefix = PrefixMode::kUse;
  EXPECT_EQ(use(*server, asked).miss, PrefixMiss::kOnDisk);
  EXPECT_EQ(use(*server, asked).lost, 96);
  disk_->on_call = {};
  EXPECT_EQ(use(*server, asked).tokens, 96);
}

// Nor does a tenant's key that is missing: the state stays, and is used once that is back.
TEST_F(PrefixOnDisk, WhatIsSealedWaitsForItsKey) {
  start()->ask(request(100));
  std::vector<std::string> said;
  HarnessOptions telling = options();
  telling.prefix.on_unreadable = [&](const std::string& why) { said.push_back(why); };
  auto server = start(telling);
  disk_->on_call = [](int, const char* what) {
    if (std::string(what) == "read") throw KeyMissing("where is its key?");
  };
  Request asked = request(100);
  asked.prefix = PrefixMode::kUse;
  for (int i = 0; i < 2; ++i) {
    const AnswerPtr answer = server->ask(asked);
    EXPECT_EQ(answer->ending->prefix.tokens, 0);
    EXPECT_EQ(answer->ending->prefix.lost, 96);
    EXPECT_EQ(answer->ending->prefix.miss, PrefixMiss::kOnDisk);
    EXPECT_EQ(answer->bits(), cold(request(100))->bits());
  }
  EXPECT_THAT(said, ::testing::ElementsAre("where is its key?", "where is its key?"));
  EXPECT_EQ((*server)->stats().prefix_states_disk, 1);
  EXPECT_EQ(server->store().usage().set_aside, 0);
  disk_->on_call = {};
  const AnswerPtr answer = server->ask(asked);
  EXPECT_EQ(answer->ending->prefix.tokens, 96);
  EXPECT_EQ(answer->bits(), cold(request(100))->bits());
  EXPECT_EQ(said.size(), 2u);
}

// What is found there has its own bytes and no more, and it is sessions' before that.
TEST_F(PrefixOnDisk, MakesRoomForSessions) {
  const auto sessions_in = [&](OnDisk& server) {
    int opened = 0;
    const auto open = [&] {
      auto result = server->post({.kind = SessionCommand::Kind::kOpen,
                                  .name = "s" + std::to_string(opened),
                                  .durability = Durability::kLocal});
      server.settle();
      return result.get().reason == EndReason::kDone;
    };
    for (; open(); ++opened) {
      Request turn = request(20, static_cast<uint64_t>(opened));
      turn.session = "s" + std::to_string(opened);
      EXPECT_EQ(server.ask(turn)->reason(), EndReason::kLength) << turn.session;
    }
    return opened;
  };
  HarnessOptions few = options();
  constexpr int64_t kDisk = 1'500'000;
  few.disk_bytes = kDisk;
  const StateStore::Options of_store{.most_bytes = kDisk, .own_file = 1000};
  HarnessOptions none = few;
  none.prefix.bytes = 0;
  const int most = sessions_in(*start(none, of_store));
  EXPECT_GT(most, 10);
  disk_ = std::make_shared<RecordingDisk>();
  int64_t there = 0;
  {
    auto server = start(few, of_store);
    for (uint64_t seed = 100; seed < 400; ++seed) use(*server, request(60, seed));
    there = (*server)->stats().prefix_states_disk;
    EXPECT_GT(there, 100);
    EXPECT_LE((*server)->stats().prefix_bytes_disk, kDisk / 2);
  }
  auto server = start(few, of_store);
  EXPECT_EQ((*server)->stats().prefix_states_disk, there);
  EXPECT_EQ(sessions_in(*server), most);
  EXPECT_LT((*server)->stats().prefix_states_disk, there);
}

// Power is lost after each call that there is: the next server uses what is there, or does without.
TEST_F(PrefixOnDisk, IsRightWheneverPowerIsLost) {
  constexpr uint64_t kPrompts = 20;
  const StateStore::Options of_store{.own_file = 1200, .segment_bytes = 4000, .journal_slack = 500};
  HarnessOptions few = options(24 * 1024);
  few.disk_bytes = 160'000;
  const auto asked = [](uint64_t seed) {
    return request(40 + 20 * static_cast<size_t>(seed % 3), seed);
  };
  std::vector<std::vector<TokenBits>> want;
  for (uint64_t seed = 0; seed < kPrompts; ++seed) want.push_back(cold(asked(seed))->bits());
  const auto run = [&] {
    auto server = start(few, of_store);
    for (uint64_t seed = 0; seed < kPrompts; ++seed) server->ask(asked(seed));
    return disk_->calls();
  };
  const int calls = run();
  ASSERT_GT(calls, 50);
  std::mt19937_64 random(3);
  int64_t hits = 0;
  for (int last = 5; last <= calls; ++last) {
    disk_ = std::make_shared<RecordingDisk>();
    std::shared_ptr<RecordingDisk> lost;
    disk_->on_call = [&](int call, const char*) {
      if (call == last) lost = disk_->after_power_loss([&](size_t of) { return random() % of; });
    };
    run();
    disk_->on_call = {};
    if (lost == nullptr) break;  // more was committed together in this run, in fewer calls
    disk_ = lost;
    auto server = start(few, of_store);
    for (uint64_t seed = 0; seed < kPrompts; ++seed) {
      Request again = asked(seed);
      again.prefix = PrefixMode::kUse;
      const AnswerPtr answer = server->ask(std::move(again));
      ASSERT_EQ(answer->bits(), want[seed]) << "call " << last << ", prompt " << seed;
      ASSERT_NE(answer->ending->prefix.miss, PrefixMiss::kOnDisk);
      hits += answer->ending->prefix.tokens > 0;
    }
    ASSERT_EQ(server->store().usage().set_aside, 0);
  }
  EXPECT_GT(hits, calls);
}

}  // namespace recurve::testing::prefix_disk_test
