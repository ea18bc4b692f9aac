// A store over a folder of the system, each of whose calls, or each third, fails once, or is
// interrupted, or does half of what was asked for.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/support/engine/store_workload.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::folder_test {

using ::testing::HasSubstr;

// What happens to calls of the system that this thread makes. Nothing here waits for a disk: what
// is written is in the page cache, which outlives the store.
struct Calls {
  bool watched = false;
  int made = 0;
  std::function<int(int call)> fails = {};  // gives an errno; 0: it does not
  bool halves = false;                      // reads and writes do half of what they are asked for
};
thread_local Calls calls;

// Whether the call is to fail, with errno set.
bool fails() {
  if (!calls.watched) return false;
  const int error = calls.fails ? calls.fails(++calls.made) : (++calls.made, 0);
  errno = error;
  return error != 0;
}
size_t part_of(size_t bytes) { return calls.watched && calls.halves ? (bytes + 1) / 2 : bytes; }

}  // namespace recurve::testing::folder_test

// In place of the C library's, for all of this program.
extern "C" {

ssize_t write(int file, const void* bytes, size_t count) {
  using namespace recurve::testing::folder_test;
  return fails() ? -1 : syscall(SYS_write, file, bytes, part_of(count));
}
ssize_t pread(int file, void* bytes, size_t count, off_t offset) {
  using namespace recurve::testing::folder_test;
  return fails() ? -1 : syscall(SYS_pread64, file, bytes, part_of(count), offset);
}
int fdatasync(int file) {
  using namespace recurve::testing::folder_test;
  if (fails()) return -1;
  return calls.watched ? 0 : static_cast<int>(syscall(SYS_fdatasync, file));
}
int fsync(int file) {
  using namespace recurve::testing::folder_test;
  if (fails()) return -1;
  return calls.watched ? 0 : static_cast<int>(syscall(SYS_fsync, file));
}
int openat(int folder, const char* name, int flags, ...) {
  using namespace recurve::testing::folder_test;
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  const bool ours = (flags & O_DIRECTORY) == 0;  // the C++ library opens folders to list them
  return ours && fails() ? -1 : static_cast<int>(syscall(SYS_openat, folder, name, flags, mode));
}
int renameat(int from, const char* name, int to, const char* other) noexcept {
  using namespace recurve::testing::folder_test;
  return fails() ? -1 : static_cast<int>(syscall(SYS_renameat, from, name, to, other));
}
int unlinkat(int folder, const char* name, int flags) noexcept {
  using namespace recurve::testing::folder_test;
  return fails() ? -1 : static_cast<int>(syscall(SYS_unlinkat, folder, name, flags));
}

}  // extern "C"

namespace recurve::testing::folder_test {

// What a workload in a folder of its own comes to while calls fail as is said, and the values that
// are found after it: by another store, once the calls work again.
struct Trial {
  explicit Trial(std::function<int(int call)> fails, bool halves = false) {
    const TempDir dir;
    {
      StateStore store(open_folder(dir.path().string()), options());
      Workload workload(store);
      calls = {.watched = true, .fails = std::move(fails), .halves = halves};
      workload.run();
      made = calls.made;
      calls = {.watched = true};
      // It works again, as a store that nothing ever happened to.
      works_again = workload.commit({{"a"}, {"large", kLarge}});
      said = workload;
    }
    StateStore store(open_folder(dir.path().string()), options());
    found = values_in(store);
    set_aside = store.usage().set_aside;
    calls = {};
  }
  Promises said;
  Values found;
  int made = 0;
  int64_t set_aside = 0;
  bool works_again = false;
};

class FailingCalls : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(FailingCalls, LoseNothingThatWasAcknowledged) {
  const auto [error, stays] = GetParam();
  const int made = Trial({}).made;
  ASSERT_GT(made, 150);
  for (int bad = 1; bad <= made; bad += kCallStep) {
    SCOPED_TRACE("call " + std::to_string(bad));
    const Trial run([&](int call) { return call == bad || (stays && call > bad) ? error : 0; });
    expect_kept(run.said, run.found);
    EXPECT_TRUE(run.works_again) << run.said.error;
    EXPECT_EQ(run.set_aside, 0);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Errors, FailingCalls,
                         ::testing::Values(std::tuple(ENOSPC, false), std::tuple(ENOSPC, true),
                                           std::tuple(EIO, false), std::tuple(EROFS, true)));

TEST(FailingCalls, InterruptedOnesAreMadeAgainAndShortOnesGoOn) {
  Trial plain({});
  std::erase_if(plain.said.acknowledged, [](const auto& value) { return !value.second; });
  for (const bool halves : {false, true}) {
    const Trial run([](int call) { return call % 2 == 1 ? EINTR : 0; }, halves);
    EXPECT_TRUE(run.said.unknown.empty()) << "nothing failed";
    EXPECT_EQ(run.found, plain.said.acknowledged);
    EXPECT_GT(run.made, 2 * plain.made - 10);
  }
}

TEST(StateFolder, IsOneServersAtATime) {
  const TempDir dir;
  const std::string path = (dir / "states").string();
  auto first = open_folder(path);
  EXPECT_THAT(error_of([&] { open_folder(path); }), HasSubstr("another server"));
  first.reset();
  EXPECT_NO_THROW(open_folder(path));
}

// Though its lock file is gone, or another one is in its place.
TEST(StateFolder, IsOneServersWithoutItsLockFileToo) {
  const TempDir dir;
  const auto first = open_folder(dir.path().string());
  std::filesystem::remove(dir / "lock");
  EXPECT_THAT(error_of([&] { open_folder(dir.path().string()); }), HasSubstr("another server"));
}

// What is acknowledged would not be found again.
TEST(StateFolder, ThatWasDeletedOrReplacedTakesNoCommits) {
  namespace fs = std::filesystem;
  using Do = std::function<void(const fs::path& folder)>;
  const std::vector<std::pair<Do, std::string>> ways = {
      {[](const fs::path& at) { fs::remove_all(at); }, ""},
      {[](const fs::path& at) { fs::rename(at, at.string() + "-moved"); }, ""},
      {[](const fs::path& at) {
         fs::rename(at, at.string() + "-moved");
         fs::copy(at.string() + "-moved", at);
       },
       ""},
      {[](const fs::path& at) { fs::remove(at / "lock"); }, "/lock"},
      {[](const fs::path& at) {
         fs::remove(at / "lock");
         std::ofstream(at / "lock").put('x');
       },
       "/lock"}};
  for (const auto& [change, name] : ways) {
    const TempDir dir;
    StateStore store(open_folder((dir / "states").string()), options());
    Workload workload(store);
    ASSERT_TRUE(workload.commit({{"a"}}));
    EXPECT_EQ(store.lost(), "");
    change(dir / "states");
    EXPECT_FALSE(workload.commit({{"a"}, {"b", kLarge}}));
    EXPECT_THAT(workload.error, HasSubstr((dir / "states").string() + name + " was deleted"));
    EXPECT_EQ(store.lost(), workload.error);
    if (!name.empty()) continue;
    fs::remove_all(dir / "states");
    if (!fs::exists(dir / "states-moved")) continue;
    fs::rename(dir / "states-moved", dir / "states");
    EXPECT_TRUE(workload.commit({{"a"}, {"b", kLarge}})) << "it is there again";
  }
}

TEST(StateFolder, ThatCannotBeWrittenIsRefusedByName) {
  const TempDir dir;
  calls = {.watched = true, .fails = [](int) { return EROFS; }};
  const std::string error = error_of([&] { open_folder((dir / "other").string())->create("a"); });
  calls = {};
  EXPECT_THAT(error, HasSubstr((dir / "other/a").string()));
  EXPECT_THAT(error, HasSubstr("Read-only file system"));
}

TEST(StateFolder, KeepsWhatIsCommittedInFiles) {
  const TempDir dir;
  Values acknowledged;
  {
    StateStore store(open_folder(dir.path().string()), options());
    Workload workload(store);
    workload.run();
    acknowledged = workload.acknowledged;
  }
  StateStore store(open_folder(dir.path().string()), options());
  std::erase_if(acknowledged, [](const auto& value) { return !value.second; });
  EXPECT_EQ(values_in(store), acknowledged);
}

// What is large goes to the disk and comes from it past the page cache, in calls that may do half
// of what they are asked for, or know no such way; and from the page cache where that has it.
TEST(StateFolder, WhatIsLargeIsWhatWasWritten) {
  constexpr size_t kFront = 4096, kMiddle = (size_t{9} << 20) + 100, kBack = 777;
  const std::unique_ptr<char, void (*)(void*)> memory(
      static_cast<char*>(std::aligned_alloc(4096, size_t{10} << 20)), std::free);
  for (size_t i = 0; i < kMiddle; ++i) memory.get()[i] = static_cast<char>(i * 7919 >> 8);
  const std::string front(kFront, 'f'), back(kBack, 'b');
  const std::string all = front + std::string(memory.get(), kMiddle) + back;
  for (const int error : {0, EINVAL}) {
    for (const bool halves : {false, true}) {
      if (error != 0 && halves) continue;
      const TempDir dir;
      const auto folder = open_folder(dir.path().string());
      {
        const auto writer = folder->create("large");
        calls = {.watched = true,
                 // The first call of the middle, where calls are whole.
                 .fails = [error](int call) { return call == 2 ? error : 0; },
                 .halves = halves};
        writer->append(front);
        writer->append({memory.get(), kMiddle});
        writer->append(back);
        writer->sync();
        calls = {};
      }
      for (const bool cold : {true, false}) {
        if (cold) {
          const int file = open((dir.path() / "large").c_str(), O_RDONLY);
          ASSERT_EQ(syscall(SYS_fdatasync, file), 0);
          posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
          close(file);
        }
        std::memset(memory.get(), 0, kMiddle);
        std::string begin(kFront, '?'), end(kBack, '?');
        const auto reader = folder->open("large");
        calls = {.watched = true, .halves = halves};
        ASSERT_EQ(reader->bytes(), all.size());
        reader->read(0, std::as_writable_bytes(std::span(begin)));
        reader->read(kFront, std::as_writable_bytes(std::span(memory.get(), kMiddle)));
        reader->read(kFront + kMiddle, std::as_writable_bytes(std::span(end)));
        calls = {};
        EXPECT_TRUE(begin + std::string(memory.get(), kMiddle) + end == all) << cold << halves;
      }
    }
  }
}

}  // namespace recurve::testing::folder_test
