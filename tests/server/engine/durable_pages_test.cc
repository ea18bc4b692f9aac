// Durable sessions whose states grow: a turn writes new pages only, and what is written is there
// after restarts, in forks, after rewinds, and once the parent is gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "server/session/state_transfer.h"
#include "tests/support/engine/engine_harness.h"
#include "tests/support/engine/engine_on_disk.h"
#include "tests/support/engine/model_runner.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::durable_pages_test {

using ::testing::HasSubstr;
using Kind = SessionCommand::Kind;

class DurablePages : public ::testing::TestWithParam<std::string> {
 protected:
  static LoadedModel& loaded() { return loaded_model({GetParam(), DType::kF32}, "cpu"); }
  static const Model& model() { return *loaded().model; }
  static StateLayout layout() { return model().state_layout(); }
  static int32_t vocab() { return static_cast<int32_t>(model().info().vocab); }

  static HarnessOptions options() { return {.slots = 3}; }
  std::unique_ptr<OnDisk> start(HarnessOptions disk = options(),
                                const StateStore::Options& of_store = {}) {
    disk.identity = {.model = std::string(32, 'a'),
                     .weights = "f32",
                     .chunk = static_cast<int32_t>(model().info().chunk)};
    const auto make = [](const HarnessOptions& all) {
      return std::make_unique<EngineHarness>(model(), *loaded().backend, all);
    };
    return std::make_unique<OnDisk>(open_folder(dir_.path()), disk, make, of_store);
  }
  static SessionResult run(OnDisk& server, SessionCommand command) {
    auto result = server->post(std::move(command));
    server.settle();
    return result.get();
  }
  static SessionResult run(OnDisk& server, Kind kind, const std::string& name,
                           const std::string& other = "") {
    return run(server, {.kind = kind, .name = name, .other = other});
  }
  static Request turn(const std::string& session, size_t length, uint64_t seed) {
    Request request{.session = session};
    request.prompt = some_prompt(length, seed, vocab());
    request.sampling.temperature = seed % 2 ? 0.9f : 0.0f;
    request.sampling.seed = 1000 + seed;
    request.sampling.max_tokens = 30;
    request.sampling.logprobs = 1;
    return request;
  }
  static EngineHarness quiet() { return EngineHarness(model(), *loaded().backend, {.slots = 2}); }

  const TempDir dir_;
};

// A turn of a session that has absorbed 4,000 tokens: at most 1.2 times what is new of its state.
TEST_P(DurablePages, ATurnWritesNewPagesAlone) {
  EngineHarness alone = quiet();
  alone.open("s");
  auto server = start();
  ASSERT_EQ(
      run(*server, {.kind = Kind::kOpen, .name = "s", .durability = Durability::kLocal}).reason,
      EndReason::kDone);
  server->ask(turn("s", 4000, 1));
  alone.ask(turn("s", 4000, 1));
  int64_t before = (*server)->get("s").position;
  for (uint64_t t = 2; t < 9; ++t) {
    SCOPED_TRACE("turn " + std::to_string(t));
    if (t == 5) {
      server.reset();
      server = start();
    }
    std::string session = "s";
    if (t >= 7) {
      session = "f";
      if (t == 7) {
        ASSERT_EQ(run(*server, Kind::kFork, "s", "f").reason, EndReason::kDone);
        ASSERT_EQ(run(*server, Kind::kClose, "s").reason, EndReason::kDone);
        ASSERT_EQ(alone.command(Kind::kFork, "s", "f").reason, EndReason::kDone);
      }
    }
    const uint64_t written = server->store().usage().written;
    EXPECT_EQ(server->ask(turn(session, 100 + 30 * t, t))->bits(),
              alone.ask(turn(session, 100 + 30 * t, t))->bits());
    const int64_t after = (*server)->get(session).position;
    const int64_t pages = StateLayout::pages(after) - before / kPageTokens;
    const double is_new =
        static_cast<double>(layout().bytes() + static_cast<size_t>(pages) * layout().page_bytes());
    const auto wrote = static_cast<double>(server->store().usage().written - written);
    EXPECT_GE(wrote, is_new);
    EXPECT_LE(wrote, 1.2 * is_new);
    EXPECT_LT(wrote, 0.3 * static_cast<double>(layout().bytes(after)));
    before = after;
  }
}

// A cached prefix that extends another one: at most 1.2 times its fixed part, its ids and its new
// pages, before and after a restart.
TEST_P(DurablePages, APrefixThatExtendsAnotherWritesNewPagesAlone) {
  HarnessOptions cached = options();
  cached.prefix = {.bytes = int64_t{1} << 28, .disk_time = 1};
  const auto chunk = static_cast<int64_t>(model().info().chunk);
  const auto prefix_of = [&](int64_t length) { return (length - 1) / chunk * chunk; };
  const auto asked = [](size_t length) { return turn("", length, 1); };
  auto server = start(cached);
  int64_t before = 0;
  for (const int64_t length : {4000, 4500, 5000, 5300}) {
    SCOPED_TRACE(length);
    if (length == 5000) {
      server.reset();
      server = start(cached);
    }
    const uint64_t written = server->store().usage().written;
    const AnswerPtr answer = server->ask(asked(static_cast<size_t>(length)));
    EXPECT_EQ(answer->ending->prefix.tokens, before);
    EXPECT_EQ(answer->bits(), quiet().ask(asked(static_cast<size_t>(length)))->bits());
    const int64_t tokens = prefix_of(length);
    const int64_t pages = StateLayout::pages(tokens) - before / kPageTokens;
    const auto is_new =
        static_cast<double>(layout().bytes() + static_cast<size_t>(pages) * layout().page_bytes() +
                            static_cast<size_t>(tokens) * sizeof(int32_t));
    const auto wrote = static_cast<double>(server->store().usage().written - written);
    EXPECT_GE(wrote, is_new);
    EXPECT_LE(wrote, 1.2 * is_new);
    before = tokens;
  }
  const EngineStats stats = (*server)->stats();
  EXPECT_EQ(stats.prefix_states_disk, 4);
  constexpr size_t kIds = 8 * 5300;  // and what describes a state
  EXPECT_LT(stats.prefix_bytes_disk,
            static_cast<int64_t>(2 * layout().bytes(5300) + 4 * (layout().bytes() + kIds)));
  server.reset();
  server = start(cached);
  EXPECT_EQ((*server)->stats().prefix_bytes_disk, stats.prefix_bytes_disk);
  const AnswerPtr last = server->ask(asked(5300));
  EXPECT_EQ(last->ending->prefix.tokens, before);
  EXPECT_EQ(last->bits(), quiet().ask(asked(5300))->bits());
}

// Shared pages count once, and those that no state needs any more are deleted.
TEST_P(DurablePages, PrefixesThatSharePagesKeepToTheDisk) {
  HarnessOptions few = options();
  few.prefix = {.bytes = int64_t{1} << 28, .disk_time = 1};
  few.disk_bytes = 8 * static_cast<int64_t>(layout().bytes(2300));
  const StateStore::Options files{.own_file = 1 << 16, .segment_bytes = 1 << 20};
  const auto asked = [](size_t length, uint64_t seed) { return turn("", length, seed); };
  auto server = start(few, files);
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    for (const size_t length : {1000, 2000, 2300}) {
      server->ask(asked(length, seed));
      EXPECT_LE((*server)->stats().prefix_bytes_disk, few.disk_bytes / 2);
      while (server->store().tidy(StateStore::Hurry::kFull)) continue;
      EXPECT_LE(server->store().usage().bytes,
                static_cast<uint64_t>(few.disk_bytes) / 2 + files.segment_bytes);
    }
  }
  EXPECT_LT((*server)->stats().prefix_states_disk, 18) << "or the test says nothing";
  EXPECT_GT((*server)->stats().prefix_states_disk, 1);
  server.reset();
  server = start(few, files);
  const AnswerPtr last = server->ask(asked(2300, 6));
  EXPECT_GT(last->ending->prefix.tokens, 0);
  EXPECT_EQ(last->bits(), quiet().ask(asked(2300, 6))->bits());
}

TEST_P(DurablePages, ForksMarksAndRewindsAreThereAfterARestart) {
  EngineHarness alone = quiet();
  alone.command({.kind = Kind::kOpen, .name = "s", .rewind_tokens = 5000});
  std::optional<std::unique_ptr<OnDisk>> server = start();
  const auto restart = [&] {
    server.reset();
    server.emplace(start());
  };
  const auto ask = [&](const std::string& session, size_t length, uint64_t seed) {
    EXPECT_EQ((*server)->ask(turn(session, length, seed))->bits(),
              alone.ask(turn(session, length, seed))->bits())
        << session << " " << seed;
  };
  const auto command = [&](Kind kind, const std::string& name, const std::string& other = "") {
    EXPECT_EQ(run(**server, kind, name, other).reason, EndReason::kDone);
    EXPECT_EQ(alone.command(kind, name, other).reason, EndReason::kDone);
  };
  const auto rewind = [&](const std::string& session, int64_t position) {
    const SessionCommand to{.kind = Kind::kRewind, .name = session, .position = position};
    EXPECT_EQ(run(**server, to).absorbed, alone.command(to).absorbed);
  };
  run(**server,
      {.kind = Kind::kOpen, .name = "s", .durability = Durability::kLocal, .rewind_tokens = 5000});
  ask("s", 200, 1);
  command(Kind::kMark, "s", "m");
  ask("s", 300, 2);
  command(Kind::kFork, "s", "f");
  ask("f", 90, 3);
  ask("s", 10, 4);
  restart();
  command(Kind::kRewind, "s", "m");
  ask("s", 300, 5);
  command(Kind::kFork, "f", "g");
  command(Kind::kClose, "f");
  restart();
  rewind("s", 400);
  rewind("g", 450);
  ask("s", 70, 11);
  restart();
  rewind("g", 350);
  ask("g", 60, 6);
  command(Kind::kRewind, "s", "m");
  restart();
  ask("s", 64, 7);
  command(Kind::kUnmark, "s", "m");
  restart();
  ask("s", 1, 8);
  ask("g", 200, 9);
  EXPECT_EQ((**server)->get("g").position, alone.get("g").position);
  command(Kind::kClose, "s");
  command(Kind::kClose, "g");
  restart();  // the writer's thread tidies: see StateStore::tidy()
  EXPECT_EQ((*server)->store().usage().states, 0);
  EXPECT_EQ((*server)->store().usage().set_aside, 0);
}

// All of it is in the export.
TEST_P(DurablePages, AnExportHasAllPages) {
  auto server = start();
  run(*server, {.kind = Kind::kOpen, .name = "s", .durability = Durability::kLocal});
  for (uint64_t t = 1; t < 4; ++t) server->ask(turn("s", 100, t));
  server.reset();
  server = start();
  const SessionResult exported = run(*server, Kind::kExport, "s");
  ASSERT_EQ(exported.reason, EndReason::kDone) << exported.message;
  std::string written(exported.state->bytes(), '\0');
  exported.state->read(0, written);
  const StateHeader wanted{.model = std::string(32, 'a'),
                           .weights = "f32",
                           .chunk = static_cast<int32_t>(model().info().chunk),
                           .layout = layout(),
                           .vocab = vocab()};
  EXPECT_EQ(
      run(*server, {.kind = Kind::kImport, .name = "i", .state = state_reader(wanted)(written)})
          .reason,
      EndReason::kDone);
  EXPECT_EQ(server->ask(turn("i", 70, 5))->bits(), server->ask(turn("s", 70, 5))->bits());
}

// A damaged page is an error that names it, and a session in a slot does not need it.
TEST_P(DurablePages, DamagedPagesLoseNoSessionThatIsInASlot) {
  auto server = start();
  run(*server, {.kind = Kind::kOpen, .name = "s", .durability = Durability::kLocal});
  server->ask(turn("s", 200, 1));
  ASSERT_EQ(run(*server, Kind::kFork, "s", "f").reason, EndReason::kDone);
  server.reset();
  server = start();
  EngineHarness alone = quiet();
  alone.open("s");
  alone.ask(turn("s", 200, 1));
  EXPECT_EQ(server->ask(turn("s", 20, 2))->bits(), alone.ask(turn("s", 20, 2))->bits());
  for (const auto& file : std::filesystem::directory_iterator(dir_.path())) {
    if (!file.path().filename().string().starts_with("segment-")) continue;
    std::fstream bytes(file.path(), std::ios::binary | std::ios::in | std::ios::out);
    bytes.seekp(5000);  // of the first page
    bytes.write("damage", 6);
  }
  EXPECT_EQ(server->ask(turn("f", 20, 2))->reason(), EndReason::kStateLost);
  EXPECT_EQ(server->ask(turn("s", 20, 3))->bits(), alone.ask(turn("s", 20, 3))->bits());
  server.reset();
  server = start();
  EXPECT_EQ(server->ask(turn("s", 20, 4))->bits(), alone.ask(turn("s", 20, 4))->bits());
}

// The pages that sessions share count once, for the tenant and for the disk.
TEST_P(DurablePages, SharedPagesCountOnce) {
  constexpr int64_t kDescribed = 128;
  const auto page = 2 * (static_cast<int64_t>(layout().page_bytes()) + kDescribed);
  const auto one = 2 * static_cast<int64_t>(most_written_bytes(layout(), vocab(), 4096));
  for (const bool of_tenant : {true, false}) {
    SCOPED_TRACE(of_tenant);
    HarnessOptions few = options();
    Identity caller = caller_of("t");
    // A session of 20 pages, and three forks of it.
    const int64_t most = 20 * page + 4 * one + page / 2;
    (of_tenant ? caller.limits.disk_bytes : few.disk_bytes) = most;
    auto server = start(few);
    const auto open = [&](Kind kind, const std::string& name, const std::string& other = "") {
      SessionCommand command{.kind = kind, .name = name, .other = other};
      command.durability = Durability::kLocal;
      command.caller = caller;
      return run(*server, std::move(command)).reason;
    };
    ASSERT_EQ(open(Kind::kOpen, "s"), EndReason::kDone);
    Request long_turn = turn("s", 20 * kPageTokens - 29, 1);
    long_turn.caller = caller;
    ASSERT_EQ(server->ask(std::move(long_turn))->reason(), EndReason::kLength);
    for (const char* fork : {"f", "g", "h"}) {
      EXPECT_EQ(open(Kind::kFork, "s", fork), EndReason::kDone) << fork;
    }
    EXPECT_EQ(open(Kind::kFork, "s", "i"), EndReason::kExhausted);
    // The pages stay as long as one has them.
    EXPECT_EQ(open(Kind::kClose, "s"), EndReason::kDone);
    server.reset();
    server = start(few);
    EXPECT_EQ(open(Kind::kFork, "f", "i"), EndReason::kDone);
    EXPECT_EQ(open(Kind::kFork, "f", "j"), EndReason::kExhausted);
    for (const char* fork : {"f", "g", "h", "i"}) {
      EXPECT_EQ(open(Kind::kClose, fork), EndReason::kDone) << fork;
    }
    Request again = turn("s", 20 * kPageTokens - 29, 1);
    again.caller = caller;
    ASSERT_EQ(open(Kind::kOpen, "s"), EndReason::kDone);
    EXPECT_EQ(server->ask(std::move(again))->reason(), EndReason::kLength);
    EXPECT_EQ(open(Kind::kClose, "s"), EndReason::kDone);
  }
}

// tests/golden/state_version_3: a session after a turn, all of whose state is in one blob, as was
// written before there were page groups.
TEST(DurablePagesWrittenBefore, AFolderOfWholeStatesIsContinued) {
  const TempDir dir;
  std::filesystem::copy(golden_dir() / "state_version_3", dir.path(),
                        std::filesystem::copy_options::recursive);
  const auto backend = make_backend("reference", 2);
  const auto model = ModelRunner::load({"nemotron_h/groups", DType::kF32}, *backend, 0);
  const auto vocab = static_cast<int32_t>(model->info().vocab);
  HarnessOptions disk{.slots = 1};
  disk.identity = {.model = std::string(32, 'a'), .weights = "f32", .chunk = 64};
  const auto start = [&] {
    return std::make_unique<OnDisk>(open_folder(dir.path()), disk, [&](const auto& all) {
      return std::make_unique<EngineHarness>(*model, *backend, all);
    });
  };
  const auto greedy = [&](size_t length, int tokens, uint64_t seed) {
    Request request{.session = "s0"};
    request.prompt = some_prompt(length, seed, vocab);
    request.sampling.temperature = 0;
    request.sampling.repetition_penalty = 1.2f;
    request.sampling.frequency_penalty = 0.3f;
    request.sampling.seed = 1000 + seed;
    request.sampling.max_tokens = tokens;
    return request;
  };
  EngineHarness quiet(*model, *backend, {.slots = 1});
  quiet.open("s0");
  quiet.ask(greedy(70, 200, 0));
  auto server = start();
  EXPECT_EQ((*server)->get("s0").position, quiet.get("s0").position);
  for (uint64_t turn = 1; turn < 4; ++turn) {
    EXPECT_EQ(server->ask(greedy(50, 60, turn))->ids(), quiet.ask(greedy(50, 60, turn))->ids());
    server.reset();
    server = start();
  }
}

INSTANTIATE_TEST_SUITE_P(Growing, DurablePages,
                         ::testing::Values("qwen3_5/pattern", "granite_hybrid/pattern",
                                           "nemotron_h/groups", "falcon_h1/pattern"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '/', '_');
                           return name;
                         });

}  // namespace recurve::testing::durable_pages_test
