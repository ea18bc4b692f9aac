// Folders and exports that servers of an earlier version of the written form have left: committed
// in tests/golden/state_version_N. What this server writes is read by the same test.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "server/session/state_transfer.h"
#include "tests/server/engine/tier_server.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::tiers_test {
namespace {

namespace fs = std::filesystem;
using Kind = SessionCommand::Kind;
constexpr const char* kExport = "s.state";

HarnessOptions with_prefixes() { return {.prefix = {.bytes = int64_t{1} << 24, .disk_time = 1}}; }
Request prompt_alone() { return NullHarness::request(40, 3, 7); }

// A folder, and next to it an export: the session "s" after two turns with a mark between them, its
// fork "f" at the mark, and the state that a prompt without a session has left.
void write_folder(const fs::path& folder) {
  Server server(open_folder((folder / "states").string()), with_prefixes());
  server.open("s", Durability::kLocal);
  server.ask(turn("s", 1));
  ASSERT_EQ(server->command(Kind::kMark, "s", "here").reason, EndReason::kDone);
  ASSERT_EQ(server->command(Kind::kFork, "s", "f").reason, EndReason::kDone);
  Request second = turn("s", 2);
  second.id = "r-2";
  server.ask(second);
  server.ask(prompt_alone());
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (server->stats().prefix_states_disk < 2 && std::chrono::steady_clock::now() < end) {
    server.ask(NullHarness::request(3, 1));  // shorter than a chunk: leaves no state
  }
  const SessionResult exported = server->command(Kind::kExport, "s");
  ASSERT_EQ(exported.reason, EndReason::kDone) << exported.message;
  std::string written(exported.state->bytes(), '\0');
  exported.state->read(0, written);
  std::ofstream(folder / kExport, std::ios::binary) << written;
}

std::shared_ptr<const ReadyState> read_export(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string written{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  StateHeader wanted;
  wanted.layout = NullModel(NullHarness::kVocab, {.ballast = kBallast}).state_layout();
  return state_reader(wanted)(written);
}

// folder: as write_folder() has left it; it is changed.
void check_folder(const fs::path& folder) {
  Server server(open_folder((folder / "states").string()), with_prefixes());
  EXPECT_EQ(server->stats().sessions_not_restored, 0);
  EXPECT_EQ(server->stats().prefix_states_disk, 2);
  const auto after = [](std::vector<Request> turns) { return Server::quiet(turns); };
  Request again = turn("s", 2);
  again.id = "r-2";
  EXPECT_EQ(server.ask(again)->ids(), after({turn("s", 1), turn("s", 2)})->ids());
  EXPECT_EQ(server.ask(turn("s", 3))->bits(),
            after({turn("s", 1), turn("s", 2), turn("s", 3)})->bits());
  EXPECT_EQ(server.ask(turn("f", 3))->bits(), after({turn("f", 1), turn("f", 3)})->bits());
  EXPECT_EQ(server->command(Kind::kRewind, "s", "here").reason, EndReason::kDone);
  EXPECT_EQ(server.ask(turn("s", 2))->bits(), after({turn("s", 1), turn("s", 2)})->bits());
  const AnswerPtr prompt = server.ask(prompt_alone());
  EXPECT_EQ(prompt->ending->prefix.tokens, 32);
  EXPECT_EQ(prompt->bits(), after({prompt_alone()})->bits());
  EXPECT_EQ(server
                ->command({.kind = Kind::kImport,
                           .name = "i",
                           .durability = Durability::kLocal,
                           .state = read_export(folder / kExport)})
                .reason,
            EndReason::kDone);
  EXPECT_EQ(server.ask(turn("i", 3))->bits(),
            after({turn("i", 1), turn("i", 2), turn("i", 3)})->bits());
}

TEST(WrittenBefore, AFolderAndAnExportOfVersion2AreReadAgain) {
  const TempDir dir;
  fs::copy(golden_dir() / "state_version_2", dir.path(), fs::copy_options::recursive);
  check_folder(dir.path());
}

// RECURVE_WRITTEN: a folder for what is written here, from where it can be committed before the
// form changes.
TEST(WrittenBefore, AFolderAndAnExportOfThisVersionAreReadAgain) {
  const TempDir dir;
  write_folder(dir.path());
  if (const char* copy = std::getenv("RECURVE_WRITTEN")) {
    fs::copy(dir.path(), copy, fs::copy_options::recursive);
  }
  check_folder(dir.path());
}

}  // namespace
}  // namespace recurve::testing::tiers_test
