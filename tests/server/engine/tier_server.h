#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/engine/engine_harness.h"

namespace recurve::testing::tiers_test {

inline constexpr int64_t kBallast = 2048;  // floats: a state of 8 KiB

// An engine on its thread, with an archive.
class Server {
 public:
  explicit Server(std::unique_ptr<FileSystem> files, HarnessOptions options = {},
                  const StateStore::Options& of_store = {})
      : store_(std::move(files), of_store), archive_(store_) {
    options.archive = &archive_;
    options.ballast = kBallast;
    harness_.emplace(options);
    (*harness_)->start();
  }
  EngineHarness* operator->() { return &**harness_; }
  StateStore& store() { return store_; }

  SessionResult open(const std::string& name, Durability durability) {
    return harness_.value()->command(
        {.kind = SessionCommand::Kind::kOpen, .name = name, .durability = durability});
  }
  AnswerPtr ask(Request request) {
    AnswerPtr answer = harness_.value()->submit(std::move(request));
    answer->wait_for_end();
    return answer;
  }
  // What an engine on which nothing else happens says to the same turns, the last of them.
  static AnswerPtr quiet(const std::vector<Request>& turns) {
    NullHarness quiet({.slots = 1, .ballast = kBallast});
    if (!turns.front().session.empty()) quiet->open(turns.front().session);
    AnswerPtr last;
    for (const Request& turn : turns) last = quiet->ask(turn);
    return last;
  }

 private:
  StateStore store_;
  Archive archive_;
  std::optional<NullHarness> harness_;
};

inline Request turn(const std::string& session, uint64_t seed) {
  return NullHarness::request(10 + seed % 20, 5, seed, session);
}

}  // namespace recurve::testing::tiers_test
