// Engines that share states of prompts: through a store on paper, which is as slow and as wrong as
// a test wants, against an engine alone.
#include "server/prefix/shared_prefixes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <vector>

#include "tests/support/engine/engine_harness.h"

namespace recurve::testing::shared_prefixes_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What several engines have written, and how they are answered.
struct Paper {
  struct Entry {
    StateHeader header;
    std::vector<std::vector<std::byte>> pieces;
  };
  std::map<std::pair<std::string, std::string>, Entry> states;
  double seconds = 0;  // that reading takes, as it is predicted
  bool held = false;   // what is read does not come
  bool usable = true;
  bool of_others = false;  // what comes has absorbed other ids
  std::string error;
  bool absent = false;  // it is gone once it is asked for
  int reads = 0;
};

class PaperStore final : public SharedPrefixes {
 public:
  explicit PaperStore(Paper& paper) : paper_(paper) {}

  Found longest(std::string_view tenant, std::span<const PrefixHash> hashes) override {
    for (size_t chunks = hashes.size(); paper_.usable && chunks > 0; --chunks) {
      if (paper_.states.contains({std::string(tenant), hashes[chunks - 1].text()})) {
        return {chunks, paper_.seconds};
      }
    }
    return {};
  }
  bool has(const Key& key) const override { return paper_.states.contains(name_of(key)); }
  bool is_usable() const override { return paper_.usable; }
  bool read(const Key& key, const StateHeader&, NewImage image, std::function<void()> prepare,
            OnRead done) override {
    ++paper_.reads;
    const Paper::Entry& entry = paper_.states.at(name_of(key));
    prepare();
    for (size_t p = 0; p < entry.pieces.size(); ++p) {
      std::memcpy(image.rooms[p].data(), entry.pieces[p].data(), entry.pieces[p].size());
    }
    Read read{.header = entry.header, .error = paper_.error, .absent = paper_.absent};
    if (paper_.of_others) ++read.header.answer_ids.front();
    done_.push_back([read, image, done = std::move(done)] { done(read); });
    return true;
  }
  bool write(const Key& key, StateHeader header, StateImage image,
             std::function<void(bool)> done) override {
    Paper::Entry& entry = paper_.states[name_of(key)];
    entry = {std::move(header), {}};
    for (const std::span<const std::byte> piece : spans_of(image)) {
      entry.pieces.emplace_back(piece.begin(), piece.end());
    }
    done_.push_back([done = std::move(done)] { done(true); });
    return true;
  }
  void when_done(std::function<void()>) override {}
  bool take_done() override {
    if (paper_.held || done_.empty()) return false;
    for (const auto& done : std::exchange(done_, {})) done();
    return true;
  }
  void wait() override { paper_.held = false; }

 private:
  static std::pair<std::string, std::string> name_of(const Key& key) {
    return {std::string(key.tenant), key.hash.text()};
  }
  Paper& paper_;
  std::vector<std::function<void()>> done_;
};

// An engine that shares.
struct Server {
  explicit Server(Paper& paper, bool shared = false) : store(paper) {
    PrefixLimits prefix{.bytes = int64_t{1} << 24, .shared = shared};
    prefix.on_unreadable = [this](const std::string& said) { why = said; };
    prefix.store = &store;
    prefix.store_time = 1;
    prefix.on_store_use = [this](SharedPrefixUse use) { uses.push_back(use); };
    engine.emplace(HarnessOptions{.prefix = prefix});
  }

  // A prompt of so many tokens; those of one seed begin alike.
  static Request request(size_t length, uint64_t seed, const Identity& caller = kAnyone) {
    Request request = NullHarness::request(length, 4, seed);
    request.caller = caller;
    return request;
  }
  // It has the bits of an engine alone. Says how many tokens of the prompt were not computed.
  int64_t ask(Request request) {
    const int64_t before = (*engine)->stats().prefix_tokens;
    const auto want = engine->alone(request)->bits();
    AnswerPtr answer = (*engine)->submit(std::move(request));
    while (!answer->ended()) {
      (*engine)->step();
      answer->take();
    }
    EXPECT_EQ(answer->bits(), want);
    (*engine)->run_until_idle();
    return (*engine)->stats().prefix_tokens - before;
  }
  std::vector<SharedPrefixUse> take_uses() { return std::exchange(uses, {}); }

  PaperStore store;
  std::vector<SharedPrefixUse> uses;
  std::string why;
  std::optional<NullHarness> engine;
};

constexpr size_t kLength = 8 * NullHarness::kChunk + 1;
constexpr int64_t kSpared = kLength - 1;

TEST(SharedPrefixes, APromptBeginsInAStateThatAnotherServerHasWritten) {
  Paper paper;
  Server a(paper), b(paper);
  EXPECT_EQ(a.ask(Server::request(kLength, 1)), 0);
  EXPECT_THAT(a.take_uses(), ElementsAre(SharedPrefixUse::kAbsent));
  EXPECT_FALSE(paper.states.empty());
  EXPECT_EQ(b.ask(Server::request(kLength, 1)), kSpared);
  EXPECT_THAT(b.take_uses(), ElementsAre(SharedPrefixUse::kHit));
  EXPECT_EQ(b.ask(Server::request(kLength, 1)), kSpared) << "from memory";
  EXPECT_THAT(b.take_uses(), ElementsAre());
  EXPECT_EQ(paper.reads, 1);
  EXPECT_EQ(b.ask(Server::request(kLength, 2)), 0);
  EXPECT_THAT(b.take_uses(), ElementsAre(SharedPrefixUse::kAbsent));
}

TEST(SharedPrefixes, ATenantHasItsOwnUnlessTheyAreShared) {
  const Identity other{.tenant = 7, .role = Role::kUser, .tenant_name = "default"};
  Identity named = other;
  named.tenant_name = "named";
  for (const bool shared : {false, true}) {
    Paper paper;
    Server a(paper, shared), b(paper, shared);
    a.ask(Server::request(kLength, 1));
    EXPECT_EQ(b.ask(Server::request(kLength, 1, named)), shared ? kSpared : 0);
    for (const auto& [key, entry] : paper.states) EXPECT_EQ(key.first.empty(), shared);
  }
}

TEST(SharedPrefixes, WhatIsSlowerThanComputingIsNotRead) {
  Paper paper;
  Server a(paper), b(paper);
  a.ask(Server::request(kLength, 1));
  b.ask(Server::request(kLength, 2));  // the pace is known from now on
  b.take_uses();
  paper.seconds = 1e6;
  EXPECT_EQ(b.ask(Server::request(kLength, 1)), 0);
  EXPECT_THAT(b.take_uses(), ElementsAre(SharedPrefixUse::kSlower));
  EXPECT_EQ(paper.reads, 0);
}

TEST(SharedPrefixes, APromptWaitsNoLongerThanComputingTakes) {
  Paper paper;
  Server a(paper), b(paper);
  a.ask(Server::request(kLength, 1));
  b.ask(Server::request(kLength, 2));
  b.take_uses();
  paper.held = true;
  EXPECT_EQ(b.ask(Server::request(kLength, 1)), 0);
  EXPECT_THAT(b.take_uses(), ElementsAre(SharedPrefixUse::kLate));
  EXPECT_EQ(paper.reads, 1);
  paper.held = false;
  EXPECT_EQ(b.ask(Server::request(kLength, 1)), kSpared);
}

// By its digest: servers may have it under different names.
TEST(SharedPrefixes, AStateIsOfTheAdapterWithWhichItWasComputed) {
  const auto with = [](const char* name, const char* digest) {
    Request request = Server::request(kLength, 1);
    request.binding.adapter =
        std::make_shared<const BoundAdapter>(BoundAdapter{.id = {.name = name, .digest = digest}});
    return request;
  };
  Paper paper;
  Server a(paper), b(paper);
  a.ask(with("one", "d1"));
  EXPECT_EQ(b.ask(Server::request(kLength, 1)), 0);
  EXPECT_EQ(b.ask(with("one", "d2")), 0);
  EXPECT_EQ(paper.reads, 0);
  EXPECT_EQ(b.ask(with("other", "d1")), kSpared);
  EXPECT_EQ(paper.reads, 1);
}

TEST(SharedPrefixes, WhatCannotBeUsedIsComputed) {
  for (const bool of_others : {false, true}) {
    Paper paper;
    Server a(paper), b(paper);
    a.ask(Server::request(kLength, 1));
    paper.of_others = of_others;
    if (!of_others) paper.error = "damaged";
    EXPECT_EQ(b.ask(Server::request(kLength, 1)), 0);
    EXPECT_THAT(b.take_uses(), ElementsAre(SharedPrefixUse::kRefused));
    EXPECT_EQ(b.why, of_others ? "it is of other ids or another adapter" : "damaged");
  }
  Paper paper;
  Server a(paper), b(paper);
  a.ask(Server::request(kLength, 1));
  paper.absent = true;
  EXPECT_EQ(b.ask(Server::request(kLength, 1)), 0);
  EXPECT_THAT(b.take_uses(), ElementsAre(SharedPrefixUse::kAbsent));
  EXPECT_EQ(b.why, "");
}

TEST(SharedPrefixes, AStoreThatDoesNotAnswerIsNotUsed) {
  Paper paper;
  paper.usable = false;
  Server a(paper);
  EXPECT_EQ(a.ask(Server::request(kLength, 1)), 0);
  EXPECT_EQ(a.ask(Server::request(kLength, 1)), kSpared);
  EXPECT_TRUE(paper.states.empty());
  EXPECT_FALSE((*a.engine)->step());
  paper.usable = true;
  (*a.engine)->run_until_idle();
  EXPECT_FALSE(paper.states.empty());
}

}  // namespace recurve::testing::shared_prefixes_test
