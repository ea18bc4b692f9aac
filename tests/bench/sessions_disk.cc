// recurve-bench sessions --folder: sessions whose states are on a disk.
#include "tests/bench/sessions_disk.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/check.h"
#include "tests/bench/disk_speed.h"
#include "tests/bench/session_server.h"

#if RECURVE_SERVER
#include "server/crypto/encrypted_folder.h"
#include "server/identity/state_key_store.h"
#endif

namespace recurve::bench {

BenchFolder::BenchFolder(const std::string& in)
    : path_(std::filesystem::path(in) / fmt::format("recurve-bench-{}", getpid())) {
  std::filesystem::create_directories(path_);
}
BenchFolder::~BenchFolder() { std::filesystem::remove_all(path_); }

std::unique_ptr<FileSystem> open_bench_folder(const std::filesystem::path& path, Sealed sealed) {
  auto folder = open_folder(path.string());
#if RECURVE_SERVER
  if (sealed == Sealed::kYes) {
    const std::string keys = path.string() + "-keys";
    if (!std::filesystem::exists(keys)) make_state_keys(keys);
    return encrypt_folder(std::move(folder), keys);
  }
#endif
  CHECK(sealed == Sealed::kNo);
  return folder;
}

namespace {

constexpr size_t kSmall = size_t{4} << 20;  // states below it are small

void show_machine(const DiskSpeed& speed, size_t bytes, const SessionRow& row) {
  row(fmt::format("this machine: memcpy of {:.1f} MiB", static_cast<double>(bytes) / (1 << 20)),
      1e3 * speed.copy, "ms");
  row("its disk: as much written and synced", 1e3 * speed.sync, "ms");
  row("512 bytes written and synced", 1e3 * speed.small_sync, "ms");
  row("as much read from the page cache", 1e3 * speed.cached, "ms");
  row("and from the disk", 1e3 * speed.cold, "ms");
}

// What a state takes to its slot, from host memory, from the page cache and from the disk.
void measure_resume(const Model& model, Backend& backend, const std::filesystem::path& folder,
                    Sealed sealed, int rounds, const DiskSpeed& speed, const SessionRow& row) {
  const auto stream = backend.make_stream();
  StatePool pool(backend, model.state_layout(), 2, *stream, nullptr, pages_for(model, 2, 1));
  const size_t bytes = pool.layout().bytes();
  ImageMemory memory(backend, pool.layout());
  const StateSlot slot = *pool.acquire();
  const NewImage made = memory.take();
  pool.save(slot, made);
  pool.wait_for_copies();
  StateStore store(open_bench_folder(folder, sealed), {});
  Archive archive(store);
  const StateHeader header{.id = store.new_id(), .layout = pool.layout()};
  StoredPtr stored;
  archive.commit(
      {.key = "k", .tenant = "t", .states = {header.id}, .state = {{header, made.image}}},
      [&](const StateStore::Outcome& outcome) { stored = outcome.state; });
  archive.wait();
  archive.take_done();
  CHECK(stored != nullptr);
  const auto load = [&] {
    pool.load(made.image, slot);
    pool.wait_until_ready(slot);
  };
  const auto read = [&] {
    bool done = false;
    archive.load(stored, header, made, {}, [&](const Archive::Loaded& loaded) {
      CHECK(loaded.error.empty());
      done = true;
    });
    while (!done) {
      archive.wait();
      archive.take_done();
    }
    load();
  };
  load();
  read();
  if (sealed == Sealed::kYes) {
    row("from the page cache, sealed", 1e3 * median_seconds(3 * rounds, read), "ms");
    row("from the disk, sealed",
        1e3 * median_seconds(rounds, read, [&] { drop_from_cache(folder); }), "ms");
    return;
  }
  row("such a state to its slot, from host memory", 1e3 * median_seconds(3 * rounds, load), "ms",
      fmt::format("<= {:.2f} (1.3 x memcpy)", 1.3e3 * speed.copy));
  row("from the page cache", 1e3 * median_seconds(3 * rounds, read), "ms",
      bytes < kSmall ? "" : fmt::format("<= {:.2f} (1.5 x memcpy)", 1.5e3 * speed.copy));
  row("from the disk", 1e3 * median_seconds(rounds, read, [&] { drop_from_cache(folder); }), "ms",
      fmt::format("<= {:.2f} (1.3 x the disk + 5)", 1.3e3 * speed.cold + 5));
}

// What a turn takes more to its first token where its session's state is on the disk.
void measure_first_token(const Model& model, Backend& backend, const std::filesystem::path& folder,
                         const std::vector<std::string>& sessions, bool cold,
                         const SessionRow& row) {
  if (cold) drop_from_cache(folder);
  SessionServer server(model, backend, open_folder(folder.string()),
                       static_cast<int>(sessions.size()));
  std::vector<double> disk, slot;
  for (const std::string& name : sessions) disk.push_back(server.ask(name, 1).first);
  for (const std::string& name : sessions) slot.push_back(server.ask(name, 1).first);
  const bool small = model.state_layout().bytes() < kSmall;
  row(fmt::format("a turn's first token after a restart, {}",
                  cold ? "from the disk" : "in the page cache"),
      1e3 * median(disk), "ms");
  row("that much more than from a slot", 1e3 * (median(disk) - median(slot)), "ms",
      small ? "<= 5" : "");
}

}  // namespace

void measure_disk(const Model& model, Backend& backend, const std::string& folder, int rounds,
                  Report& report) {
  const SessionRow row{report};
  const BenchFolder made(folder);
  const size_t bytes = model.state_layout().bytes();
  const DiskSpeed speed = measure_disk_speed(made.path(), bytes, rounds);
  show_machine(speed, bytes, row);
  measure_resume(model, backend, made.path() / "resume", Sealed::kNo, rounds, speed, row);
  std::filesystem::remove_all(made.path() / "resume");
  if (kCanSeal) {
    measure_resume(model, backend, made.path() / "sealed", Sealed::kYes, rounds, speed, row);
    std::filesystem::remove_all(made.path() / "sealed");
  }
  const bool small = bytes < kSmall;
  std::vector<std::string> sessions;
  // A folder in it: making a key file takes the lock of the folder that the file is in.
  const std::filesystem::path states = made.path() / "states";
  {
    const int count = small ? 16 : 3;
    SessionServer server(model, backend, open_folder(states.string()),
                         small ? kCommitSlots : count);
    for (int s = 0; s < count; ++s) {
      sessions.push_back(fmt::format("again{}", s));
      server.open(sessions.back(), Durability::kLocal);
      server.ask(sessions.back(), 1);
    }
    if (small) measure_commits(model, backend, server, made.path() / "sealed", rounds, speed, row);
  }
  for (const bool cold : {false, true}) {
    measure_first_token(model, backend, states, sessions, cold, row);
  }
}

}  // namespace recurve::bench
