// States of prompts in an object store, and what a store may do to them.
#include "server/prefix_store/prefix_store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/object_store/prefix_key.h"
#include "tests/server/object_store/faulty_store.h"
#include "tests/support/engine/engine_harness.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::prefix_store_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kPlenty = int64_t{1} << 24;
constexpr size_t kLength = 8 * NullHarness::kChunk + 1;
constexpr int64_t kSpared = kLength - 1;

// An engine with states of prompts in the store.
class Server {
 public:
  explicit Server(const FaultyStore& at, char key = 0, const std::string& identity = "i",
                  int64_t most_bytes = kPlenty,
                  std::chrono::milliseconds patience = std::chrono::seconds(20),
                  std::chrono::milliseconds interval = std::chrono::milliseconds(20))
      : user_(at, {.patience = patience}) {
    if (key != 0) {
      std::ofstream(folder_.path() / "keys") << std::string(64, key) << "\n";
      seal_ = std::make_unique<StoreSeal>(user_.store, (folder_.path() / "keys").string());
    }
    prefixes_.emplace(user_.store, seal_.get(), identity,
                      PrefixStore::Options{.most_bytes = most_bytes,
                                           .most_state_bytes = kPlenty,
                                           .interval = interval,
                                           .on_listed = [this](int64_t states, int64_t bytes) {
                                             const std::lock_guard lock(mutex_);
                                             reported_.push_back({states, bytes});
                                           }});
    PrefixLimits prefix{.bytes = int64_t{1} << 24};
    prefix.on_unreadable = [this](const std::string& why) { whys.push_back(why); };
    prefix.store = &*prefixes_;
    prefix.store_time = 1;
    prefix.on_store_use = [this](SharedPrefixUse use) { uses.push_back(use); };
    engine_.emplace(HarnessOptions{.prefix = prefix});
    step_until([this] { return prefixes_->is_usable(); });
  }

  template <typename Condition>
  void step_until(const Condition& condition) {
    while (!condition()) {
      (*engine_)->step();
      std::this_thread::yield();
    }
  }
  // It has the bits of an engine alone. Says how many tokens of the prompt were not computed.
  int64_t ask(uint64_t seed) {
    const Request request = NullHarness::request(kLength, 4, seed);
    const int64_t before = (*engine_)->stats().prefix_tokens;
    const auto want = engine_->alone(request)->bits();
    const AnswerPtr answer = (*engine_)->submit(request);
    step_until([&] {
      answer->take();
      return answer->ended();
    });
    EXPECT_EQ(answer->bits(), want);
    return (*engine_)->stats().prefix_tokens - before;
  }

  // States in the store and their bytes, as they were reported.
  std::vector<std::pair<int64_t, int64_t>> reported() {
    const std::lock_guard lock(mutex_);
    return reported_;
  }

  std::vector<SharedPrefixUse> uses;
  std::vector<std::string> whys;

 private:
  std::mutex mutex_;
  std::vector<std::pair<int64_t, int64_t>> reported_;  // guarded by the mutex
  TempDir folder_;
  StoreUser user_;
  std::unique_ptr<StoreSeal> seal_;
  std::optional<PrefixStore> prefixes_;
  std::optional<NullHarness> engine_;
};

std::map<std::string, std::string> prefixes(FaultyStore& store) {
  auto all = store.objects();
  std::erase_if(all, [](const auto& one) { return !one.first.starts_with(kPrefixFolder); });
  return all;
}

// The first server's prompt is in the store afterwards.
void write(FaultyStore& store, uint64_t seed, char key = 0) {
  Server server(store, key);
  const size_t before = prefixes(store).size();
  EXPECT_EQ(server.ask(seed), 0);
  server.step_until([&] { return prefixes(store).size() > before; });
}

TEST(PrefixStore, AnotherServerReadsWhatOneHasWritten) {
  for (const char key : {'\0', '1'}) {
    FaultyStore store;
    write(store, 1, key);
    const auto [name, text] = *prefixes(store).begin();
    PrefixKeyParts parts;
    EXPECT_TRUE(parse_prefix_key(name, &parts)) << name;
    EXPECT_EQ(parts.tenant, kAnyone.tenant_name);
    EXPECT_EQ(StoreSeal::is_sealed(text), key != 0);
    Server other(store, key);
    EXPECT_EQ(other.ask(1), kSpared);
    EXPECT_THAT(other.uses, ElementsAre(SharedPrefixUse::kHit));
    EXPECT_THAT(prefixes(store), SizeIs(1)) << "it is not written again";
    Server foreign(store, key, "another build");
    EXPECT_EQ(foreign.ask(1), 0);
    EXPECT_THAT(foreign.uses, ElementsAre(SharedPrefixUse::kAbsent));
  }
}

TEST(PrefixStore, WhatIsDamagedOrOfAnotherPromptIsRefusedAndWrittenAgain) {
  FaultyStore store;
  write(store, 1);
  const std::string first = prefixes(store).begin()->first;
  const std::string whole = prefixes(store).begin()->second;
  write(store, 2);
  std::string second;
  for (const auto& [name, text] : prefixes(store)) {
    if (name != first) second = text;
  }
  std::string changed = whole;
  changed[changed.size() / 2] = static_cast<char>(changed[changed.size() / 2] ^ 1);
  for (const std::string& text : {std::string(), whole.substr(0, whole.size() - 1), whole + "x",
                                  changed, second, std::string("RCRVSEA1") + whole}) {
    store.put(first, text);
    Server server(store);
    EXPECT_EQ(server.ask(1), 0);
    EXPECT_THAT(server.uses, ElementsAre(SharedPrefixUse::kRefused));
    ASSERT_THAT(server.whys, ElementsAre(HasSubstr(first)));
    server.step_until([&] { return store.objects().at(first) == whole; });
  }
}

TEST(PrefixStore, WhatIsSealedNeedsItsKey) {
  FaultyStore store;
  write(store, 1, '1');
  for (const char key : {'\0', '2'}) {
    Server server(store, key);
    EXPECT_EQ(server.ask(1), 0);
    EXPECT_THAT(server.uses, ElementsAre(SharedPrefixUse::kRefused));
  }
}

TEST(PrefixStore, TheOldestMakeRoom) {
  FaultyStore store;
  write(store, 1);
  const auto bytes = static_cast<int64_t>(prefixes(store).begin()->second.size());
  const std::string first = prefixes(store).begin()->first;
  ASSERT_LT(bytes, 40'000);
  Server server(store, 0, "i", 100'000);
  for (uint64_t seed = 2; !prefixes(store).empty() && prefixes(store).contains(first); ++seed) {
    server.ask(seed);
    ASSERT_LE(static_cast<int64_t>(prefixes(store).size()) * bytes, 100'000 + bytes);
    ASSERT_LT(seed, 10'000u);
  }
}

TEST(PrefixStore, WhatIsReportedIsWhatTheStoreHas) {
  FaultyStore store;
  write(store, 1);
  store.put(prefixes(store).begin()->first, std::string(1000, 'x'));
  const auto found = [&] {
    int64_t bytes = 0;
    const auto all = prefixes(store);
    for (const auto& [name, text] : all) bytes += static_cast<int64_t>(text.size());
    return std::pair(static_cast<int64_t>(all.size()), bytes);
  };
  // It lists the store once, so that later numbers are of what it writes and removes.
  Server server(store, 0, "i", 100'000, std::chrono::seconds(20), std::chrono::hours(1));
  ASSERT_THAT(server.reported(), ElementsAre(found()));
  // The first one takes the place of what is damaged; later ones make room.
  for (int64_t seed = 1; found().first + 3 > seed; ++seed) {
    ASSERT_LT(seed, 1000);
    const size_t before = server.reported().size();
    server.ask(static_cast<uint64_t>(seed));
    server.step_until([&] { return server.reported().size() > before; });
    ASSERT_EQ(server.reported().back(), found()) << seed;
  }
}

TEST(PrefixStore, AStoreThatFailsCostsNoAnswer) {
  FaultyStore store;
  write(store, 1);
  for (const auto fault : {FaultyStore::Fault::kNotReceived, FaultyStore::Fault::kAnswerLost,
                           FaultyStore::Fault::kBusy, FaultyStore::Fault::kForbidden}) {
    Server server(store, 0, "i", kPlenty, std::chrono::milliseconds(200));
    store.fail(1, 1 << 20, fault);
    EXPECT_EQ(server.ask(2), 0);
    EXPECT_EQ(server.ask(1), 0);
    EXPECT_EQ(server.ask(1), kSpared) << "from memory";
    store.fail(1, 0, FaultyStore::Fault::kNone);
  }
  Server server(store);
  EXPECT_EQ(server.ask(1), kSpared);
}

}  // namespace recurve::testing::prefix_store_test
