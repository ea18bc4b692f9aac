// What sessions and marks reserve, compared to what they make the process really hold.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "server/session/session_store.h"

namespace recurve::session_memory_test {

using Kind = SessionCommand::Kind;

constexpr int32_t kVocab = 4096;

// Without the program's own pages, which come when code first runs.
int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0, of_files = 0;
  statm >> total >> resident >> of_files;
  return (resident - of_files) * sysconf(_SC_PAGESIZE);
}

// Of the mappings without a name that have at least so many bytes: large states alone.
int64_t resident_in_mappings_of(int64_t least) {
  std::ifstream maps("/proc/self/smaps");
  int64_t sum = 0;
  bool counts = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string first, access, offset, device, inode, name;
    words >> first;
    if (const size_t dash = first.find('-'); dash != std::string::npos) {
      words >> access >> offset >> device >> inode >> name;
      const uint64_t begin = std::stoull(first, nullptr, 16);
      const uint64_t end = std::stoull(first.substr(dash + 1), nullptr, 16);
      counts = name.empty() && static_cast<int64_t>(end - begin) >= least;
    } else if (int64_t kib = 0; counts && first == "Rss:" && words >> kib) {
      sum += kib << 10;
    }
  }
  return sum;
}

class SessionMemory : public ::testing::TestWithParam<int64_t /* floats of a state */> {
 protected:
  SessionMemory() { malloc_trim(0); }

  void run(Kind kind, const std::string& name, const std::string& other = "") {
    const SessionResult result = store_.run({.kind = kind, .name = name, .other = other}, now_);
    ASSERT_EQ(result.reason, EndReason::kDone) << result.message;
  }
  int64_t reserved(const std::string& name) {
    return store_.run({.kind = Kind::kGet, .name = name}, now_).sessions.at(0).host_bytes;
  }
  // A request that has seen every token there is; then the state leaves its slot.
  void use(const std::string& name) {
    Session& session = *store_.find(name);
    store_.set_busy(session, true);
    StateSlot slot = store_.check_out(session);
    std::memset(pool_.array<std::byte>(0) + static_cast<size_t>(slot.id()) * layout().bytes(), 7,
                layout().bytes());
    Snapshot at{.position = 1};
    for (int32_t id = 0; id < kVocab; ++id) at.history.add_generated(id);
    store_.check_in(session, std::move(slot), std::move(at), now_);
    store_.evict_one();
  }

  static StateLayout layout() { return {.arrays = {{.name = "x", .shape = {GetParam()}}}}; }

  std::unique_ptr<Backend> backend_ = make_backend("reference");
  std::unique_ptr<Stream> stream_ = backend_->make_stream();
  StatePool pool_{*backend_, layout(), 1, *stream_};
  Clock::time_point now_ = Clock::now();
  StateCache states_{*backend_, pool_, int64_t{1} << 40};
  SessionStore store_{states_, pool_, {.host_bytes = int64_t{1} << 40}, kVocab};
};

TEST_P(SessionMemory, WhatIsReservedIsWhatIsResident) {
  const int count = GetParam() > 10'000 ? 400 : 4000;
  run(Kind::kOpen, "warm");
  use("warm");
  const int64_t before = resident_bytes();
  int64_t all = 0;
  for (int i = 0; i < count; ++i) {
    // Short names, and names that take memory.
    const std::string name = i % 2 ? fmt::format("s{}", i) : fmt::format("a-long-name-{:0>100}", i);
    if (i % 4 == 3) {  // whose parent's name, a long one, is held too
      run(Kind::kFork, fmt::format("a-long-name-{:0>100}", i - 1), name);
    } else {
      run(Kind::kOpen, name);
    }
    use(name);
    if (i % 2) run(Kind::kMark, name, "before-the-first-question-of-the-talk");
    use(name);
    all += reserved(name);
  }
  const auto really = static_cast<double>(resident_bytes() - before);
  const auto planned = static_cast<double>(all);
  fmt::print("state of {} bytes: {:.0f} reserved each, {:.0f} resident\n", layout().bytes(),
             planned / count, really / count);
  EXPECT_LE(really, planned);
  EXPECT_GE(really, 0.7 * planned) << "what will not be taken is not reserved";
}

TEST_P(SessionMemory, WhatIsClosedGoesBack) {
  const int count = GetParam() > 10'000 ? 400 : 4000;
  run(Kind::kOpen, "stays");
  use("stays");
  const int64_t before = resident_bytes();
  for (int i = 0; i < count; ++i) {
    run(Kind::kOpen, std::to_string(i));
    use(std::to_string(i));
  }
  const int64_t most = resident_bytes();
  for (int i = 0; i < count; ++i) run(Kind::kClose, std::to_string(i));
  malloc_trim(0);  // the images do not need that, names and maps do
  EXPECT_LT(resident_bytes() - before, (most - before) / 10);
}

// Bytes: less than a page, a page and a bit, some hundred pages.
INSTANTIATE_TEST_SUITE_P(Floats, SessionMemory, ::testing::Values(8, 750, 1100, 66'000));

TEST(PieceMemory, PiecesAreApartAndComeBack) {
  const auto backend = make_backend("reference");
  for (const size_t bytes : {1, 64, 100, 4096, 5000, 20 << 20, 40 << 20}) {
    PieceMemory memory(*backend, bytes);
    std::vector<std::shared_ptr<std::byte>> pieces;
    const int count = bytes > 100'000 ? 5 : 3000;
    for (int round = 0; round < 3; ++round) {
      while (static_cast<int>(pieces.size()) < count) {
        pieces.push_back(memory.take());
        std::memset(pieces.back().get(), static_cast<int>(pieces.size()) % 251,
                    std::min<size_t>(bytes, 5000));
      }
      EXPECT_EQ(memory.pieces(), count);
      std::vector<std::byte*> places;
      for (const auto& piece : pieces) places.push_back(piece.get());
      std::sort(places.begin(), places.end());
      for (int i = 1; i < count; ++i) {
        ASSERT_GE(places[static_cast<size_t>(i)] - places[static_cast<size_t>(i) - 1],
                  static_cast<ptrdiff_t>(bytes));
      }
      for (int i = 0; i < count; i += 2) {  // every second one goes
        const auto at = static_cast<size_t>(i);
        if (round == 0) {
          EXPECT_EQ(*pieces[at], static_cast<std::byte>((i + 1) % 251));
        }
        pieces[at].reset();
      }
      std::erase(pieces, nullptr);
    }
    pieces.clear();
    EXPECT_EQ(memory.pieces(), 0);
  }
}

// Of the pages from there on.
int64_t resident_bytes(std::byte* from, size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> there(bytes / page);
  if (mincore(from, there.size() * page, there.data()) != 0) return 0;  // they are not mapped
  const auto count = std::count_if(there.begin(), there.end(), [](auto is) { return is & 1; });
  return static_cast<int64_t>(count) * static_cast<int64_t>(page);
}

TEST(PieceMemory, ALargePieceLeavesItsPagesToTheNextWhereThatIsWanted) {
  const auto backend = make_backend("reference");
  constexpr size_t kBytes = size_t{40} << 20;
  PieceMemory memory(*backend, kBytes);
  const auto filled = [&] {
    std::shared_ptr<std::byte> piece = memory.take();
    std::memset(piece.get(), 1, kBytes);
    return piece;
  };
  std::byte* place = filled().get();
  EXPECT_EQ(resident_bytes(place, kBytes), 0);

  memory.keep_spare(true);
  std::shared_ptr<std::byte> first = filled(), second = filled();
  place = first.get();
  std::byte* const other = second.get();
  first.reset();
  second.reset();  // one of them is enough
  EXPECT_EQ(memory.pieces(), 0);
  EXPECT_EQ(resident_bytes(place, kBytes), kBytes);
  EXPECT_EQ(resident_bytes(other, kBytes), 0);
  first = memory.take();
  second = memory.take();
  EXPECT_EQ(first.get(), place);
  EXPECT_NE(second.get(), place);

  first.reset();
  memory.keep_spare(false);
  EXPECT_EQ(resident_bytes(place, kBytes), 0);
}

// An image may keep one piece of another, and no more of it than that.
TEST(ImageMemory, PiecesGoWithTheirLastOwners) {
  const auto backend = make_backend("reference");
  const StateLayout layout{.arrays = {{.name = "x", .shape = {1000}},
                                      {.name = "w", .shape = {5000}, .piece = "window"}}};
  ImageMemory memory(*backend, layout);
  NewImage first = memory.take();
  std::memset(first.rooms[1].data(), 5, first.rooms[1].size());
  NewImage second = memory.take();
  EXPECT_EQ(memory.bytes(), 2 * 24'000);
  const StateImage both = std::make_shared<const std::vector<StatePiece>>(
      std::vector<StatePiece>{second.image->at(0), first.image->at(1)});
  first = {};
  second = {};
  EXPECT_EQ(memory.bytes(), 24'000);
  EXPECT_EQ(both->at(1).data.get()[19'999], std::byte{5});
}

// A state that goes on from another one shares the pages that are full.
TEST(ImageMemory, FullPagesAreShared) {
  const auto backend = make_backend("reference");
  const StateLayout layout{
      .arrays = {{.name = "x", .shape = {1000}},
                 {.name = "K", .shape = {8}, .growth = StateGrowth::kPerToken}}};
  constexpr int64_t kSlot = 4000, kPage = 64 * 8 * 4;
  ImageMemory memory(*backend, layout);
  NewImage first = memory.take(130);
  ASSERT_EQ(first.rooms.size(), 1 + 3u);
  EXPECT_EQ(memory.bytes(), kSlot + 3 * kPage);
  EXPECT_EQ(memory.bytes(), static_cast<int64_t>(layout.bytes(130)));
  std::memset(first.rooms[2].data(), 5, kPage);
  NewImage second = memory.take(200, first.image, 130);
  EXPECT_EQ(memory.bytes(), 2 * kSlot + (3 + 2) * kPage);
  EXPECT_EQ(second.image->at(2).data, first.image->at(2).data);
  EXPECT_NE(second.image->at(3).data, first.image->at(3).data) << "that was not full";
  EXPECT_TRUE(second.rooms[1].empty() && second.rooms[2].empty());
  EXPECT_EQ(second.rooms[3].size(), size_t{kPage});
  NewImage back = memory.take(70, first.image, 130);  // a rewind
  EXPECT_EQ(back.image->size(), 1 + 2u);
  EXPECT_NE(back.image->at(2).data, first.image->at(2).data) << "it is written on";
  first = back = {};
  EXPECT_EQ(memory.bytes(), kSlot + 4 * kPage);
  EXPECT_EQ(second.image->at(2).data.get()[kPage - 1], std::byte{5});
  second = {};
  EXPECT_EQ(memory.bytes(), 0);
}

// What preempted requests take beyond their plan is missing for prefixes before it is taken, and
// theirs again once it is given back.
TEST(PreemptedMemory, BeyondItsPlanIsThatOfPrefixes) {
  const StateLayout layout{.arrays = {{.name = "x", .shape = {256}}}};
  const auto backend = make_backend("reference");
  const auto stream = backend->make_stream();
  StatePool pool(*backend, layout, 1, *stream);
  const auto each = static_cast<int64_t>(layout.bytes());
  StateCache states(*backend, pool, 10 * each, nullptr, each);
  std::vector<int64_t> said, taken;
  states.on_reserve([&] {
    said.push_back(states.unreserved());
    taken.push_back(states.bytes(StateCache::Owner::kPreempted));
  });
  const StateSlot slot = *pool.acquire();
  std::vector<StateImage> images;
  const auto save = [&](StateCache::Owner owner) { images.push_back(states.save(owner, slot, 1)); };
  save(StateCache::Owner::kPreempted);
  save(StateCache::Owner::kPrefixes);
  EXPECT_EQ(states.unreserved(), 10 * each) << "what is planned";
  save(StateCache::Owner::kPreempted);
  save(StateCache::Owner::kPreempted);
  states.reserve(5 * each);
  EXPECT_EQ(states.unreserved(), 3 * each);
  EXPECT_THAT(said, ::testing::ElementsAre(9 * each, 8 * each, 3 * each));
  EXPECT_THAT(taken, ::testing::ElementsAre(each, 2 * each, 3 * each)) << "before it is taken";
  states.reserve(10 * each);
  EXPECT_EQ(states.unreserved(), 0);
  images.clear();
  states.reserve(0);
  states.count_preempted();
  EXPECT_EQ(states.unreserved(), 10 * each);
  EXPECT_EQ(said.back(), 10 * each);
}

// What is spared is what a session in a slot has reserved: no more once none is.
TEST(LargeSessionMemory, WhatIsResidentIsOfTheSessionsThatAreOpen) {
  const StateLayout layout{.arrays = {{.name = "x", .shape = {10 << 20}}}};
  const auto backend = make_backend("reference");
  const auto stream = backend->make_stream();
  StatePool pool(*backend, layout, 1, *stream);
  StateCache states(*backend, pool, int64_t{1} << 40);
  SessionStore store(states, pool, {.host_bytes = int64_t{1} << 40}, kVocab);
  const auto now = Clock::now();
  const auto run = [&](Kind kind, const std::string& name) {
    ASSERT_EQ(store.run({.kind = kind, .name = name}, now).reason, EndReason::kDone);
  };
  const auto turn = [&](const std::string& name) {
    Session& session = *store.find(name);
    store.set_busy(session, true);
    if (pool.free_slots() == 0) store.evict_one();
    StateSlot slot = store.check_out(session);
    std::memset(pool.array<std::byte>(0) + static_cast<size_t>(slot.id()) * layout.bytes(), 7,
                layout.bytes());
    store.check_in(session, std::move(slot), {.position = 1}, now);
  };
  run(Kind::kOpen, "a");
  turn("a");  // the slot's own pages are there from now on
  pool.wait_for_copies();
  const auto state = static_cast<int64_t>(layout.bytes());
  const int64_t before = resident_in_mappings_of(state);
  EXPECT_GE(before, state) << "the slot";
  run(Kind::kOpen, "b");
  for (int i = 0; i < 3; ++i) {
    turn("b");
    turn("a");
    pool.wait_for_copies();
    // The image of b, and one that is spared unless that of a went before a was in its slot.
    EXPECT_LE(resident_in_mappings_of(state) - before, 2 * state);
    EXPECT_GE(resident_in_mappings_of(state) - before, state);
  }
  run(Kind::kClose, "a");
  run(Kind::kClose, "b");
  EXPECT_EQ(resident_in_mappings_of(state), before);
}

}  // namespace recurve::session_memory_test
