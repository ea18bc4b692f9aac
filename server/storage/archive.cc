#include "server/storage/archive.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

namespace recurve {
namespace {

// Most bytes of states that are committed together, so that a small commit does not wait for many
// large ones.
constexpr size_t kGroupBytes = size_t{64} << 20;
// The interval of checks whether the folder still exists.
constexpr auto kWatch = std::chrono::milliseconds(400);

}  // namespace

Archive::Archive(StateStore& store) : store_(store) {
  const auto start = [this](const char* name, void (Archive::*work)()) {
    threads_.emplace_back([this, name, work] {
      pthread_setname_np(pthread_self(), name);
      (this->*work)();
    });
  };
  try {
    start("state-writer", &Archive::write);
    start("state-watcher", &Archive::watch);
    for (int r = 0; r < kReaders; ++r) start("state-reader", &Archive::read);
  } catch (...) {
    stop();
    throw;
  }
}

Archive::~Archive() { stop(); }

void Archive::stop() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  commits_changed_.notify_all();
  reads_changed_.notify_all();
  closing_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Archive::when_lost(OnLost listener) {
  const std::lock_guard lock(mutex_);
  on_lost_ = std::move(listener);
  on_lost_(lost_);
}

std::string Archive::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

void Archive::watch() {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    lock.unlock();
    std::string why = store_.lost();
    lock.lock();
    if (why != lost_) {
      lost_ = std::move(why);
      if (on_lost_) on_lost_(lost_);
    }
    closing_.wait_for(lock, kWatch, [this] { return closed_; });
  }
}

void Archive::commit(StateStore::Change change, Committed done) {
  std::vector<Write> writes;
  writes.push_back({std::move(change), std::move(done)});
  commit(std::move(writes));
}

void Archive::commit(std::vector<Write> writes) {
  {
    const std::lock_guard lock(mutex_);
    for (Write& write : writes) {
      commits_.push_back({std::move(write), Clock::now()});
      ++under_way_;
    }
  }
  commits_changed_.notify_one();
}

void Archive::load(StoredPtr state, const StateHeader& wanted, NewImage image,
                   std::function<void()> prepare, OnLoaded done) {
  add_read([this, state = std::move(state), wanted, image = std::move(image),
            prepare = std::move(prepare), done = observed(std::move(done))] {
    Loaded loaded = load_now(state, [&] {
      if (prepare) prepare();
      return store_.read(*state, wanted, image.rooms);
    });
    return [done, loaded = std::move(loaded)]() mutable { done(std::move(loaded)); };
  });
}

void Archive::load_answer(StoredPtr state, int32_t vocab, OnLoaded done) {
  add_read([this, state = std::move(state), vocab, done = observed(std::move(done))] {
    Loaded loaded = load_now(state, [&] { return store_.read_answer(*state, vocab); });
    return [done, loaded = std::move(loaded)]() mutable { done(std::move(loaded)); };
  });
}

void Archive::load_tokens(std::vector<StoredTokens> parts, int64_t begin, int32_t vocab,
                          OnLoaded done) {
  add_read([this, parts = std::move(parts), begin, vocab, done = observed(std::move(done))] {
    Loaded all;
    for (const StoredTokens& part : parts) {
      Loaded one = load_now(part.stored,
                            [&] { return StateHeader{.tokens = store_.read_tokens(part, vocab)}; });
      if (!one.error.empty()) {
        all = std::move(one);
        break;
      }
      const auto skipped = static_cast<ptrdiff_t>(std::max<int64_t>(begin - part.first, 0));
      const std::vector<uint32_t>& tokens = one.header.tokens;
      all.header.tokens.insert(all.header.tokens.end(), tokens.begin() + skipped, tokens.end());
    }
    return [done, all = std::move(all)]() mutable { done(std::move(all)); };
  });
}

// Calls `done` after it has passed the duration to the listener.
Archive::OnLoaded Archive::observed(OnLoaded done) const {
  return [this, asked = Clock::now(), done = std::move(done)](Loaded loaded) {
    observe(Call::kRead, asked, !loaded.error.empty());
    done(std::move(loaded));
  };
}

void Archive::observe(Call call, Clock::time_point asked, bool failed) const {
  if (!listener_) return;
  listener_(call, std::chrono::duration<double>(Clock::now() - asked).count(), failed);
}

Archive::Loaded Archive::load_now(const StoredPtr& state,
                                  const std::function<StateHeader()>& read) {
  const auto failed = [&](const std::exception& error, EndReason reason) {
    try {
      if (reason == EndReason::kStateLost) store_.set_aside(*state);
    } catch (const std::exception&) {  // the file stays where it is
    }
    return Loaded{.header = {}, .error = error.what(), .reason = reason};
  };
  Loaded loaded;
  try {
    loaded.header = read();
  } catch (const StateError& error) {
    const bool other = error.reason() == EndReason::kOtherModel;
    return failed(error, other ? EndReason::kOtherModel : EndReason::kStateLost);
  } catch (const FileDamaged& error) {
    return failed(error, EndReason::kStateLost);
  } catch (const KeyMissing& error) {
    return failed(error, EndReason::kStateSealed);
  } catch (const std::exception& error) {
    return failed(error, EndReason::kNoMemory);
  }
  return loaded;
}

void Archive::add_read(Job job) {
  {
    const std::lock_guard lock(mutex_);
    reads_.push_back(std::move(job));
  }
  ++under_way_;
  reads_changed_.notify_one();
}

bool Archive::take_done() {
  std::vector<std::function<void()>> done;
  {
    const std::lock_guard lock(mutex_);
    done.swap(done_);
  }
  for (const auto& act : done) {
    --under_way_;
    act();
  }
  return !done.empty();
}

void Archive::wait() {
  std::unique_lock lock(mutex_);
  if (under_way_ > 0) done_changed_.wait(lock, [this] { return !done_.empty(); });
}

// Notifies with the mutex locked, before the results can be taken: after it has taken everything,
// the owner may be destroyed, and what wake_ wakes with it.
void Archive::post(std::vector<std::function<void()>> done) {
  const std::lock_guard lock(mutex_);
  for (auto& act : done) done_.push_back(std::move(act));
  done_changed_.notify_all();
  if (wake_) wake_();
}

void Archive::write() {
  std::unique_lock lock(mutex_);
  while (true) {
    while (commits_.empty() && !closed_) {
      lock.unlock();
      const bool tidied = store_.tidy();
      lock.lock();
      if (!tidied) commits_changed_.wait(lock, [this] { return closed_ || !commits_.empty(); });
    }
    if (commits_.empty()) return;
    std::vector<Commit> group;
    size_t bytes = 0;
    while (!commits_.empty() && bytes < kGroupBytes) {
      group.push_back(std::move(commits_.front()));
      commits_.pop_front();
      bytes += store_.bytes_to_write(group.back().change);
    }
    lock.unlock();
    commit_group(std::move(group));
    lock.lock();
  }
}

void Archive::commit_group(std::vector<Commit> group) {
  std::vector<StateStore::Change> changes;
  std::vector<Call> calls;
  for (Commit& commit : group) {
    const std::string& key = commit.change.key;
    calls.push_back(key.empty() || is_expendable(key) ? Call::kSpill : Call::kCommit);
    changes.push_back(std::move(commit.change));
  }
  std::vector<StateStore::Outcome> outcomes;
  try {
    outcomes = store_.commit(changes);
  } catch (const std::bad_alloc&) {
    outcomes.assign(group.size(), {.error = "not enough memory to write it"});
  }
  changes.clear();  // frees the images before the owner is notified
  std::vector<std::function<void()>> done;
  for (size_t c = 0; c < group.size(); ++c) {
    done.push_back([this, call = calls[c], asked = group[c].asked, act = std::move(group[c].done),
                    outcome = std::move(outcomes[c])] {
      observe(call, asked, !outcome.error.empty());
      act(outcome);
    });
  }
  post(std::move(done));
}

void Archive::read() {
  std::unique_lock lock(mutex_);
  while (true) {
    reads_changed_.wait(lock, [this] { return closed_ || !reads_.empty(); });
    if (reads_.empty()) return;
    Job job = std::move(reads_.front());
    reads_.pop_front();
    lock.unlock();
    std::vector<std::function<void()>> done;
    done.push_back(job());
    job = nullptr;  // it has the image too: freed before the owner is notified
    post(std::move(done));
    lock.lock();
  }
}

}  // namespace recurve
