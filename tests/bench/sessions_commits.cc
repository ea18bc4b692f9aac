// recurve-bench sessions --folder: what committed answers take more than others, and what prompts
// whose states are kept, and keys that states are sealed with, add to that.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tests/bench/session_server.h"
#include "tests/bench/sessions_disk.h"

namespace recurve::bench {
namespace {

using Turn = SessionServer::Turn;

constexpr int kAnswer = 64;     // tokens
constexpr int kTogether = 64;   // streams
constexpr int kConcurrent = 8;  // prompts without a session, of kPrompt tokens
constexpr int kPrompt = 200;
static_assert(kTogether + kConcurrent <= SessionServer::kMostTogether);
static_assert(2 * kTogether + kConcurrent <= kCommitSlots);

std::vector<Turn> turns_on(const std::string& sessions) {
  std::vector<Turn> turns;
  for (int s = 0; s < kTogether; ++s) {
    turns.push_back({.session = fmt::format("{}{}", sessions, s), .tokens = kAnswer});
  }
  return turns;
}

// Seconds to the end of the last answer on a session.
double last_of(const std::vector<SessionServer::Times>& times) {
  double last = 0;
  for (int s = 0; s < kTogether; ++s) last = std::max(last, times[static_cast<size_t>(s)].last);
  return last;
}

// What an answer takes more where it is committed; by turns, as machines have other things to do.
void measure_one(SessionServer& server, SessionServer* sealed, int rounds, const DiskSpeed& speed,
                 const SessionRow& row) {
  server.open("plain", Durability::kNone);
  server.open("durable", Durability::kLocal);
  if (sealed != nullptr) sealed->open("durable", Durability::kLocal);
  std::vector<double> without, added, sealing;
  for (int i = 0; i < 4 * rounds; ++i) {
    without.push_back(server.ask("plain", kAnswer).last);
    const double committed = server.ask("durable", kAnswer).last;
    added.push_back(committed - without.back());
    if (sealed != nullptr) sealing.push_back(sealed->ask("durable", kAnswer).last - committed);
  }
  row(fmt::format("an answer of {} tokens, not kept", kAnswer), 1e3 * median(without), "ms");
  row("more where it is committed", 1e3 * median(added), "ms",
      fmt::format("<= {:.2f} (2 syncs + 1)", 1e3 * (speed.sync + speed.small_sync) + 1));
  if (sealed != nullptr) {
    row("and more where it is sealed, too", 1e3 * median(std::move(sealing)), "ms");
  }
}

// How many commits share a sync.
void measure_together(SessionServer& server, int rounds, const SessionRow& row) {
  std::vector<double> without, with;
  int64_t syncs = 0;
  for (int i = 0; i < rounds; ++i) {
    without.push_back(last_of(server.ask(turns_on("plain"))));
    const int64_t before = server.syncs();
    with.push_back(last_of(server.ask(turns_on("durable"))));
    syncs += server.syncs() - before;
  }
  row(fmt::format("{} such answers at once, not kept", kTogether), 1e3 * median(without), "ms");
  row("the same, committed", 1e3 * median(with), "ms");
  row("of these commits, so many share a sync",
      static_cast<double>(rounds) * kTogether / static_cast<double>(syncs), "", ">= 20");
}

// The same commits concurrent with prompts that come for the first time, and whose states are kept
// or not.
void measure_beside_prefixes(SessionServer& server, int rounds, const SessionRow& row) {
  int32_t id = 0;
  const auto ask = [&](PrefixMode mode) {
    std::vector<Turn> turns = turns_on("durable");
    for (int p = 0; p < kConcurrent; ++p) {
      Turn& turn = turns.emplace_back(Turn{.prompt = {}, .prefix = mode});
      for (int t = 0; t < kPrompt; ++t) turn.prompt.push_back(id = (id * 5 + 7919) & 0xffffff);
    }
    return last_of(server.ask(std::move(turns)));
  };
  std::vector<double> use, added;
  const int64_t before = server.records();
  for (int i = 0; i < rounds; ++i) {
    use.push_back(ask(PrefixMode::kUse));
    added.push_back(ask(PrefixMode::kUseAndStore) - use.back());
  }
  row(fmt::format("the same with {} new prompts of {} tokens", kConcurrent, kPrompt),
      1e3 * median(use), "ms");
  row("more where these leave their states", 1e3 * median(std::move(added)), "ms");
  row("states of theirs that were written meanwhile, a round",
      static_cast<double>(server.records() - before) / rounds, "");
}

}  // namespace

void measure_commits(const Model& model, Backend& backend, SessionServer& server,
                     const std::filesystem::path& sealed_folder, int rounds, const DiskSpeed& speed,
                     const SessionRow& row) {
  {
    std::optional<SessionServer> sealed;
    if (kCanSeal) {
      sealed.emplace(model, backend, open_bench_folder(sealed_folder, Sealed::kYes), 1);
    }
    measure_one(server, sealed ? &*sealed : nullptr, rounds, speed, row);
  }
  for (int s = 0; s < kTogether; ++s) {
    server.open(fmt::format("plain{}", s), Durability::kNone);
    server.open(fmt::format("durable{}", s), Durability::kLocal);
  }
  measure_together(server, rounds, row);
  measure_beside_prefixes(server, rounds, row);
}

}  // namespace recurve::bench
