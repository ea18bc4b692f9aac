// recurve-bench sessions --many: a server that finds very many sessions in its folder.
#include <fmt/format.h>
#include <malloc.h>

#include <optional>
#include <string>

#include "kernels/check.h"
#include "server/session/session_store.h"
#include "tests/bench/disk_speed.h"
#include "tests/bench/report.h"
#include "tests/bench/sessions_disk.h"

namespace recurve::bench {
namespace {

const StateLayout kSmallState{.arrays = {{.name = "x", .shape = {64}}}};
constexpr int32_t kVocab = 256;
constexpr int kAtOnce = 1024;  // sessions that are made together

// Without what the heap only keeps.
int64_t resident_after_trim() {
  malloc_trim(0);
  return resident_bytes();
}

// What a server has of its sessions, without an engine.
struct Sessions {
  Sessions(Backend& backend, StatePool& pool, const std::filesystem::path& folder)
      : states(open_folder(folder.string()), {}),
        archive(states),
        cache(backend, pool, kPlenty, &archive),
        store(cache, pool, {.host_bytes = kPlenty, .archive = &archive, .disk_bytes = kPlenty},
              kVocab) {
    CHECK(store.restore(Clock::now()).unknown == 0);
  }
  StateStore states;
  Archive archive;
  StateCache cache;
  SessionStore store;
};

// Each has had one answer. The pool has a slot for all that are made together.
void make_sessions(Backend& backend, StatePool& pool, const std::filesystem::path& folder,
                   int count) {
  Sessions sessions(backend, pool, folder);
  SessionStore& store = sessions.store;
  const StateAnswer answer{.request_id = "r", .digest = std::string(32, 'd')};
  const auto name_of = [](int s) { return fmt::format("session-{:06}", s); };
  for (int first = 0; first < count; first += kAtOnce) {
    const int end = std::min(first + kAtOnce, count);
    for (int s = first; s < end; ++s) {
      const SessionCommand open{.kind = SessionCommand::Kind::kOpen,
                                .name = name_of(s),
                                .durability = Durability::kLocal,
                                .done = [](const SessionResult&) {}};
      CHECK(store.run(open, Clock::now()).progress == SessionResult::Progress::kCommitting);
    }
    store.finish_work();
    for (int s = first; s < end; ++s) {
      Session& session = *store.find(name_of(s));
      store.set_busy(session, true);
      StateSlot slot = store.check_out(session);
      store.commit_turn(
          session, std::move(slot), {.position = 1, .pending = 5}, answer, {5},
          [](const auto& commit, const std::string& error) { CHECK(commit && error.empty()); });
    }
    store.finish_work();
    while (store.evict_one()) continue;
  }
}

}  // namespace

void measure_many(Backend& backend, const std::string& folder, int sessions, Report& report) {
  const BenchFolder made(folder);
  const SessionRow row{report};
  const auto stream = backend.make_stream();
  StatePool pool(backend, kSmallState, kAtOnce, *stream);
  make_sessions(backend, pool, made.path(), sessions);
  uint64_t journal = 0;
  for (const auto& file : std::filesystem::directory_iterator(made.path())) {
    if (file.path().filename().string().starts_with("journal-")) journal += file.file_size();
  }
  const DiskSpeed speed = measure_disk_speed(made.path(), journal, 3);
  drop_from_cache(made.path());
  const int64_t before = resident_after_trim();
  const auto began = Clock::now();
  std::optional<Sessions> again(std::in_place, backend, pool, made.path());
  const double took = seconds_between(began, Clock::now());
  CHECK(again->store.counts().on_disk == sessions);
  row(fmt::format("this machine's disk: a read of {:.1f} MiB, as the journal has",
                  static_cast<double>(journal) / (1 << 20)),
      speed.cold, "s");
  row(fmt::format("{} sessions in the folder: until all are there", sessions), took, "s", "<= 2");
  row("memory that they take", static_cast<double>(resident_after_trim() - before) / (1 << 20),
      "MiB", "<= 100");
}

}  // namespace recurve::bench
