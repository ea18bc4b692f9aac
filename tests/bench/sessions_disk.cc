// recurve-bench sessions --folder: sessions whose states are on a disk.
#include "tests/bench/sessions_disk.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/check.h"
#include "server/engine/engine.h"
#include "tests/bench/disk_speed.h"

namespace recurve::bench {

BenchFolder::BenchFolder(const std::string& in)
    : path_(std::filesystem::path(in) / fmt::format("recurve-bench-{}", getpid())) {
  std::filesystem::create_directories(path_);
}
BenchFolder::~BenchFolder() { std::filesystem::remove_all(path_); }

void open_session(AdmissionQueue& queue, const std::string& name, Durability durability) {
  std::promise<SessionResult> opened;
  queue.post({.kind = SessionCommand::Kind::kOpen,
              .name = name,
              .durability = durability,
              .done = [&](SessionResult result) { opened.set_value(std::move(result)); }});
  CHECK(opened.get_future().get().status == SessionResult::Status::kOk);
}

namespace {

constexpr int kAnswer = 64;                 // tokens
constexpr int kTogether = 64;               // streams
constexpr size_t kSmall = size_t{4} << 20;  // states below it are small

// A server without doors, over a folder.
class Server {
 public:
  Server(const Model& model, Backend& backend, const std::filesystem::path& folder, int slots)
      : vocab_(static_cast<int32_t>(model.info().vocab)),
        store_(open_folder(folder.string()), {}),
        archive_(store_),
        queue_(2 * kTogether),
        engine_(model, backend, {.rows = vocab_, .usable = vocab_, .eos_ids = {}}, queue_, stats_,
                metrics_,
                {.slots = slots,
                 .sessions = {.host_bytes = kPlenty, .archive = &archive_, .disk_bytes = kPlenty}}),
        thread_([this] { engine_.run(); }) {}
  ~Server() {
    queue_.close();
    thread_.join();
  }

  void open(const std::string& name, Durability durability) {
    open_session(queue_, name, durability);
  }

  // Seconds to the first token, and to the end.
  struct Times {
    double first = 0, last = 0;
  };
  // A turn on each of the sessions, all at once.
  std::vector<Times> ask(const std::vector<std::string>& sessions, int tokens) {
    std::vector<Times> times(sessions.size());
    std::vector<std::shared_ptr<TokenStream>> streams;
    const auto began = Clock::now();
    for (const std::string& session : sessions) {
      streams.push_back(std::make_shared<TokenStream>());
      streams.back()->on_ready([this] {
        const std::lock_guard lock(mutex_);
        news_ = true;
        changed_.notify_all();
      });
      Request request{.session = session, .streams = {streams.back()}};
      request.prompt.ids = {1 % vocab_};
      request.sampling.temperature = 0;
      request.sampling.max_tokens = tokens;
      queue_.push(std::move(request));
    }
    for (size_t ended = 0; ended < sessions.size();) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return news_; });
        news_ = false;
      }
      for (size_t s = 0; s < sessions.size(); ++s) {
        const TokenStream::Gathered news = streams[s]->take();
        const double now = seconds_between(began, Clock::now());
        if (!news.tokens.empty() && times[s].first == 0) times[s].first = now;
        if (!news.ending) continue;
        CHECK(news.ending->why == Finish::kLength);
        times[s].last = now;
        ++ended;
      }
    }
    return times;
  }
  Times ask(const std::string& session, int tokens) {
    return ask(std::vector<std::string>{session}, tokens)[0];
  }
  // Seconds to the end of the last one.
  double ask_all(const std::vector<std::string>& sessions, int tokens) {
    double last = 0;
    for (const Times& times : ask(sessions, tokens)) last = std::max(last, times.last);
    return last;
  }
  int64_t syncs() const { return store_.usage().syncs; }

 private:
  const int32_t vocab_;
  StateStore store_;
  Archive archive_;
  AdmissionQueue queue_;
  EngineStats stats_;
  EngineMetrics metrics_;
  Engine engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool news_ = false;
  std::thread thread_;
};

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
                    int rounds, const DiskSpeed& speed, const SessionRow& row) {
  const auto stream = backend.make_stream();
  StatePool pool(backend, model.state_layout(), 2, *stream);
  const size_t bytes = pool.layout().bytes();
  ImageMemory memory(backend, pool.layout());
  const StateSlot slot = *pool.acquire();
  const NewImage made = memory.take();
  pool.save(slot, made);
  pool.wait_for_copies();
  StateStore store(open_folder(folder.string()), {});
  Archive archive(store);
  const StateHeader header{.id = store.new_id(), .position = 1, .layout = pool.layout()};
  StoredPtr stored;
  archive.commit({.key = "k", .states = {header.id}, .state = {{header, made.image}}},
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
  row("such a state to its slot, from host memory", 1e3 * median_seconds(3 * rounds, load), "ms",
      fmt::format("<= {:.2f} (1.3 x memcpy)", 1.3e3 * speed.copy));
  row("from the page cache", 1e3 * median_seconds(3 * rounds, read), "ms",
      bytes < kSmall ? "" : fmt::format("<= {:.2f} (1.5 x memcpy)", 1.5e3 * speed.copy));
  row("from the disk", 1e3 * median_seconds(rounds, read, [&] { drop_from_cache(folder); }), "ms",
      fmt::format("<= {:.2f} (1.3 x the disk + 5)", 1.3e3 * speed.cold + 5));
}

// What an answer takes more where it is committed.
void measure_commit(Server& server, int rounds, const DiskSpeed& speed, const SessionRow& row) {
  server.open("plain", Durability::kNone);
  server.open("durable", Durability::kLocal);
  std::vector<double> without, added;
  for (int i = 0; i < 4 * rounds; ++i) {  // by turns, as machines have other things to do
    without.push_back(server.ask("plain", kAnswer).last);
    added.push_back(server.ask("durable", kAnswer).last - without.back());
  }
  row(fmt::format("an answer of {} tokens, not kept", kAnswer), 1e3 * median(without), "ms");
  row("more where it is committed", 1e3 * median(added), "ms",
      fmt::format("<= {:.2f} (2 syncs + 1)", 1e3 * (speed.sync + speed.small_sync) + 1));
}

// How many commits share a sync.
void measure_commits(Server& server, int rounds, const SessionRow& row) {
  std::vector<std::string> plain, durable;
  for (int s = 0; s < kTogether; ++s) {
    plain.push_back(fmt::format("plain{}", s));
    durable.push_back(fmt::format("durable{}", s));
    server.open(plain.back(), Durability::kNone);
    server.open(durable.back(), Durability::kLocal);
  }
  std::vector<double> without, with;
  int64_t syncs = 0;
  for (int i = 0; i < rounds; ++i) {
    without.push_back(server.ask_all(plain, kAnswer));
    const int64_t before = server.syncs();
    with.push_back(server.ask_all(durable, kAnswer));
    syncs += server.syncs() - before;
  }
  row(fmt::format("{} such answers at once, not kept", kTogether), 1e3 * median(without), "ms");
  row("the same, committed", 1e3 * median(with), "ms");
  row("of these commits, so many share a sync",
      static_cast<double>(rounds) * kTogether / static_cast<double>(syncs), "", ">= 20");
}

// What a turn takes more to its first token where its session's state is on the disk.
void measure_first_token(const Model& model, Backend& backend, const std::filesystem::path& folder,
                         const std::vector<std::string>& sessions, bool cold,
                         const SessionRow& row) {
  if (cold) drop_from_cache(folder);
  Server server(model, backend, folder, static_cast<int>(sessions.size()));
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
  measure_resume(model, backend, made.path() / "resume", rounds, speed, row);
  std::filesystem::remove_all(made.path() / "resume");
  const bool small = bytes < kSmall;
  std::vector<std::string> sessions;
  {
    const int count = small ? 16 : 3;
    Server server(model, backend, made.path(), small ? 2 * kTogether + 2 : count);
    for (int s = 0; s < count; ++s) {
      sessions.push_back(fmt::format("again{}", s));
      server.open(sessions.back(), Durability::kLocal);
      server.ask(sessions.back(), 1);
    }
    if (small) {
      measure_commit(server, rounds, speed, row);
      measure_commits(server, rounds, row);
    }
  }
  for (const bool cold : {false, true}) {
    measure_first_token(model, backend, made.path(), sessions, cold, row);
  }
}

}  // namespace recurve::bench
