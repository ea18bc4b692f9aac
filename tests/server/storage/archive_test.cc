// What the threads of an archive do at the same time.
#include "server/storage/archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "tests/support/engine/recording_folder.h"
#include "tests/support/engine/store_workload.h"

namespace recurve::testing::archive_test {

// States of one store, and reads of the disk that a test holds up.
class Readers : public ::testing::Test {
 protected:
  StoredPtr commit(uint64_t number) {
    StateStore::Change change{.key = "record " + std::to_string(number)};
    change.state.emplace(StateStore::NewState{header(kSmall), image_of(kSmall, number)});
    change.states = {change.state->header.id = store_.new_id()};
    StateStore::Outcome outcome = store_.commit({&change, 1}).at(0);
    EXPECT_EQ(outcome.error, "");
    return outcome.state;
  }
  void load(const StoredPtr& state, Archive::OnLoaded done) {
    archive_.load(state, header(kSmall), make_image(header(kSmall).layout), {}, std::move(done));
  }
  // Takes what is done until the condition is true, or for ten seconds.
  bool take_until(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!condition() && std::chrono::steady_clock::now() < end) {
      if (!archive_.take_done()) std::this_thread::yield();
    }
    return condition();
  }
  void on_read(std::function<void()> act) {
    disk_->on_call = [act = std::move(act)](int, const char* what) {
      if (std::string(what) == "read") act();
    };
  }
  // Waits until the other thread of two is here as well, or for ten seconds.
  void meet() {
    std::unique_lock lock(mutex_);
    ++here_;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(10), [this] { return here_ >= 2; });
  }

  std::shared_ptr<RecordingDisk> disk_ = std::make_shared<RecordingDisk>();
  StateStore store_{std::make_unique<RecordingFolder>(disk_), {}};
  std::mutex mutex_;
  std::condition_variable changed_;
  int here_ = 0;
  Archive archive_{store_};
};

TEST_F(Readers, ASlowReadDelaysNoOther) {
  const StoredPtr slow = commit(1), fast = commit(2);
  std::atomic<bool> first = true, open = false;
  on_read([&] {
    if (first.exchange(false)) open.wait(false);
  });
  bool slow_came = false, fast_came = false;
  load(slow, [&](const auto& loaded) { slow_came = loaded.error.empty(); });
  ASSERT_TRUE(take_until([&] { return !first; }));
  load(fast, [&](const auto& loaded) { fast_came = loaded.error.empty(); });
  EXPECT_TRUE(take_until([&] { return fast_came; }));
  EXPECT_FALSE(slow_came);
  open = true;
  open.notify_all();
  EXPECT_TRUE(take_until([&] { return slow_came; }));
}

// A session and its mark may have the same state.
TEST_F(Readers, WhatTwoFindDamagedIsSetAsideOnce) {
  const StoredPtr state = commit(1);
  disk_->bytes_of("segment-1").back() ^= 1;
  on_read([this] { meet(); });
  std::vector<EndReason> reasons;
  for (int i = 0; i < 2; ++i) {
    load(state, [&](const auto& loaded) { reasons.push_back(loaded.reason); });
  }
  ASSERT_TRUE(take_until([&] { return reasons.size() == 2; }));
  EXPECT_THAT(reasons, ::testing::Each(EndReason::kStateLost));
  EXPECT_EQ(store_.usage().set_aside, 1);
  EXPECT_TRUE(store_.is_gone(*state));
}

}  // namespace recurve::testing::archive_test
