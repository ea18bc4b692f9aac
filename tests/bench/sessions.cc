// recurve-bench sessions: what streams that decode lose where a session that is asked each second
// is one whose state must come into a slot, and another's leave it, instead of one that is there;
// and how fast states are copied. With --folder, the same with a disk.
#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "kernels/check.h"
#include "server/session/image_memory.h"
#include "tests/bench/commands.h"
#include "tests/bench/engine_streams.h"
#include "tests/bench/report.h"
#include "tests/bench/session_server.h"
#include "tests/bench/sessions_disk.h"
#include "tests/bench/step_bench.h"

namespace recurve::bench {
namespace {

struct SessionsOptions {
  ModelOptions model{.config = "tests/configs/mamba2-wide-state.json", .random = true};
  int streams = 15;
  double seconds = 2;
  int rounds = 12;
  std::string folder;
  int many = 0;
};

// Three sessions and one slot: a request to one moves another out.
class Talkers {
 public:
  explicit Talkers(AdmissionQueue& queue) : queue_(queue) {
    for (const char* name : kNames) {
      open_session(queue_, name, Durability::kNone);
      ++moves_;
      ask({1, 2, 3});
      while (!answered()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // Asks once a second for one token: of the one who is in the slot, or who is not.
  void talk(bool of_the_other) {
    if (!answered() || seconds_between(asked_, Clock::now()) < 1) return;
    if (of_the_other) ++moves_;
    ask({});
  }
  int moves() const { return moves_; }

 private:
  static constexpr const char* kNames[] = {"a", "b", "c"};

  void ask(std::vector<int32_t> prompt) {
    stream_ = std::make_shared<TokenStream>();
    ended_ = false;
    asked_ = Clock::now();
    Request request{
        .prompt = std::move(prompt), .session = kNames[moves_ % 3], .streams = {stream_}};
    request.sampling.max_tokens = 1;
    queue_.push(std::move(request));
  }
  bool answered() {
    if (ended_) return true;
    const auto ending = stream_->take().ending;
    CHECK(!ending || ending->reason == EndReason::kLength);
    ended_ = ending.has_value();
    return ended_;
  }

  AdmissionQueue& queue_;
  std::shared_ptr<TokenStream> stream_;
  bool ended_ = true;
  Clock::time_point asked_;
  int moves_ = -1;  // counted from the first who is asked
};

// Streams for some time.
struct Interval {
  double tokens = 0, cpu = 0;  // a second, and seconds a token
};

template <typename Meanwhile>
Interval measure(EngineStreams& streams, double seconds, const Meanwhile& meanwhile) {
  const double began = cpu_seconds();
  const int64_t before = streams.read();
  const double rate = streams.rate(seconds, meanwhile);
  const auto tokens = static_cast<double>(streams.read() - before);
  return {.tokens = rate, .cpu = (cpu_seconds() - began) / tokens};
}

double median_of(const std::vector<Interval>& all, double Interval::* value) {
  std::vector<double> values;
  for (const Interval& one : all) values.push_back(one.*value);
  return median(std::move(values));
}

void measure_streams(const SessionsOptions& o, const Model& model, Backend& backend,
                     Report& report) {
  SamplingParams greedy;
  greedy.temperature = 0;
  // With a disk there is host memory for two of the three sessions' states.
  SessionLimits limits{.host_bytes = std::numeric_limits<int64_t>::max()};
  std::optional<BenchFolder> folder;
  std::optional<StateStore> store;
  std::optional<Archive> archive;
  if (!o.folder.empty()) {
    folder.emplace(o.folder);
    store.emplace(open_folder(folder->path().string()), StateStore::Options{});
    archive.emplace(*store);
    const auto vocab = static_cast<int32_t>(model.info().vocab);
    limits = {.host_bytes = SessionStore::bytes_each(model.state_layout(), vocab) * 5 / 2,
              .archive = &*archive,
              .disk_bytes = kPlenty};
  }
  EngineStreams streams(model, backend, greedy, o.streams, o.streams + 1, limits);
  Talkers talkers(streams.queue());
  streams.rate(2);  // prompts, and warm-up
  const int before = talkers.moves();
  std::vector<Interval> quiet, moved;
  // Short ones by turns, each compared with its neighbour: what else the machine does, and the rate
  // of its memory, change within seconds by more than what is asked for.
  std::vector<double> kept;
  for (int round = 0; round < o.rounds; ++round) {
    quiet.push_back(measure(streams, o.seconds, [&] { talkers.talk(false); }));
    moved.push_back(measure(streams, o.seconds, [&] { talkers.talk(true); }));
    kept.push_back(100 * moved.back().tokens / quiet.back().tokens);
  }
  const int moves = talkers.moves() - before;
  const SessionRow row{report};
  row(fmt::format("{} streams, and a session asked each second that stays", o.streams),
      median_of(quiet, &Interval::tokens), "tok/s", "");
  row(fmt::format(
          "{} streams, and one whose state is {}, {} times", o.streams,
          archive ? "read from the disk as another goes there" : "loaded as another is saved",
          moves),
      median_of(moved, &Interval::tokens), "tok/s", "");
  row("of their tokens kept", median(std::move(kept)), "%", archive ? ">= 93" : ">= 95");
  row("processor time a token, states stay", 1e3 * median_of(quiet, &Interval::cpu), "ms", "");
  row("processor time a token, states move", 1e3 * median_of(moved, &Interval::cpu), "ms", "");
}

template <typename Copy>
double gb_per_second(size_t bytes, const Copy& copy) {
  std::vector<double> rates;
  for (int i = 0; i < 10; ++i) {
    const auto began = std::chrono::steady_clock::now();
    copy();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    if (i > 0) rates.push_back(static_cast<double>(bytes) / took.count() / 1e9);
  }
  return median(rates);
}

// Of a state alone, with nothing else to do; of one that grows, with so many tokens.
constexpr int64_t kCopiedTokens = 4096;
void measure_copies(const Model& model, Backend& backend, Report& report) {
  const auto stream = backend.make_stream();
  const int64_t tokens = model.state_layout().grows() ? kCopiedTokens : 0;
  StatePool pool(backend, model.state_layout(), 2, *stream, nullptr, pages_for(model, 2, tokens));
  const size_t bytes = pool.layout().bytes(tokens);
  ImageMemory memory(backend, pool.layout());
  const StateSlot slot = *pool.acquire(), other = *pool.acquire();
  CHECK(pool.reserve(slot, tokens));
  NewImage made = memory.take(tokens);
  const auto save = [&] {
    pool.save(slot, made, [&memory, rooms = made.rooms] { memory.prepare(rooms); });
    pool.wait_until_ready(slot);
  };
  const size_t fixed = pool.layout().bytes();  // pages are shared
  const auto row = [&](const char* what, double rate, size_t of = 0) {
    const auto mib = static_cast<double>(of > 0 ? of : bytes) / (1 << 20);
    report.add({{"bench", "sessions"},
                {"what", fmt::format("{}, {:.1f} MiB", what, mib)},
                {"value", rate},
                {"unit", "GB/s"},
                {"target", ""}});
  };
  row("a state to an image that was there before", gb_per_second(bytes, save));
  row("a state to a new image", gb_per_second(bytes, [&] {
        made = {};
        made = memory.take(tokens);
        save();
      }));
  row("an image to a slot", gb_per_second(bytes, [&] {
        pool.load(made.image, slot);
        pool.wait_until_ready(slot);
      }));
  row("a slot to another",
      gb_per_second(fixed,
                    [&] {
                      pool.copy(slot, other);
                      pool.wait_until_ready(other);
                      stream->wait();
                    }),
      fixed);
  const NewImage second = memory.take(tokens);
  row("memcpy of as much", gb_per_second(bytes, [&] {
        for (size_t p = 0; p < made.rooms.size(); ++p) {
          std::memcpy(second.rooms[p].data(), made.rooms[p].data(), made.rooms[p].size());
        }
      }));
  pool.wait_for_copies();
}

void run(const SessionsOptions& o, bool json) {
  o.model.check("sessions");
  const auto backend = o.model.backend();
  Report report(json);
  if (o.many > 0) return measure_many(*backend, o.folder, o.many, report);
  const auto model = o.model.load(*backend);
  if (o.folder.empty()) {
    measure_copies(*model, *backend, report);
  } else {
    measure_disk(*model, *backend, o.folder, o.rounds, report);
  }
  if (o.seconds > 0) measure_streams(o, *model, *backend, report);
}

}  // namespace

void add_sessions(CLI::App& app, const bool& json) {
  auto o = std::make_shared<SessionsOptions>();
  CLI::App* sessions = app.add_subcommand(
      "sessions", "Measure streams while states of sessions leave their slots and return");
  add_model_options(*sessions, o->model);
  sessions->add_option("--streams", o->streams, "Streams that decode all the time")
      ->capture_default_str();
  sessions
      ->add_option("--seconds", o->seconds,
                   "Time to measure streams in each round; seconds; 0: not "
                   "measured")
      ->capture_default_str();
  sessions->add_option("--rounds", o->rounds, "Rounds without and with moves, in turns")
      ->capture_default_str();
  CLI::Option* folder = sessions->add_option(
      "--folder", o->folder, "Move states to disk, in this folder; the files are deleted");
  sessions
      ->add_option("--many", o->many,
                   "Only measure a start with this many sessions in the "
                   "folder")
      ->needs(folder);
  sessions->callback([o, &json] {
    o->model.random = o->model.model.empty();
    run(*o, json);
  });
}

}  // namespace recurve::bench
