#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/storage/state_store.h"

namespace recurve {

// A store whose owner never waits for a disk. One thread commits, as many changes together as have
// come meanwhile; kReaders others read, so that states come back while others are written, and a
// slow read delays no other. What is to be done with what they found, the owner's thread does, in
// take_done(). The store outlives it, and so does what was taken out of it.
class Archive {
 public:
  static constexpr int kReaders = 4;
  using Committed = std::function<void(StateStore::Outcome outcome)>;
  // What was read; or a sentence that says why not, and what that means for the state.
  struct Loaded {
    StateHeader header = {};
    std::string error = {};
    // kNoMemory: the system refused for now. kStateLost: for ever. kStateSealed: until the tenant's
    // key is there again. kOtherModel: until a server of that model reads it.
    EndReason reason = EndReason::kDone;
  };
  using OnLoaded = std::function<void(Loaded loaded)>;

  explicit Archive(StateStore& store);
  ~Archive();  // once all that was asked for is done
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  StateStore& store() { return store_; }
  // What was asked for, by kStateDirCalls' order: a record's change, a state that no client was
  // promised, a state or an answer that is read.
  enum class Call { kCommit, kSpill, kRead };
  // Called by take_done() for each that is done: how long it took, its wait included.
  using Listener = std::function<void(Call call, double seconds, bool failed)>;
  void when_observed(Listener listener) { listener_ = std::move(listener); }
  // Called whenever there is something to take, on another thread: may only post, and calls nothing
  // of the archive. Not any more once all that was asked for has been taken. Before the first call
  // of those below.
  void when_done(std::function<void()> wake) { wake_ = std::move(wake); }

  // Called with StateStore::lost() whenever that has changed, within half a second, on another
  // thread: may only post. Called at once, too.
  using OnLost = std::function<void(const std::string& why)>;
  void when_lost(OnLost listener);
  // StateStore::lost() of half a second ago at most. Any thread.
  std::string lost() const;

  // The owner's thread. What they call is called by take_done(), each once, commits in their order,
  // reads in any.
  void commit(StateStore::Change change, Committed done);
  struct Write {
    StateStore::Change change;
    Committed done;
  };
  // Together: they share their syncs, as far as they are not too large.
  void commit(std::vector<Write> writes);
  // prepare: called before the image is first touched, on another thread; or none.
  void load(StoredPtr state, const StateHeader& wanted, NewImage image,
            std::function<void()> prepare, OnLoaded done);
  // Only the header and the last answer's ids, which are below vocab.
  void load_answer(StoredPtr state, int32_t vocab, OnLoaded done);

  bool working() const { return under_way_ > 0; }  // something was asked for and not taken
  // Does what is to be done with all that has come; false: nothing has.
  bool take_done();
  // Returns once there is something to take, if anything is under way.
  void wait();

 private:
  using Clock = std::chrono::steady_clock;
  struct Commit : Write {
    Clock::time_point asked;
  };
  using Job = std::function<std::function<void()>()>;  // gives what the owner's thread does

  void write();
  void read();
  void watch();
  void commit_group(std::vector<Commit> group);
  Loaded load_now(const StoredPtr& state, const std::function<StateHeader()>& read);
  void add_read(Job job);
  OnLoaded observed(OnLoaded done) const;
  void observe(Call call, Clock::time_point asked, bool failed) const;
  void post(std::vector<std::function<void()>> done);

  StateStore& store_;
  std::function<void()> wake_;
  Listener listener_;
  int64_t under_way_ = 0;  // of the owner's thread

  mutable std::mutex mutex_;  // of all below
  std::condition_variable commits_changed_, reads_changed_, done_changed_, closing_;
  std::deque<Commit> commits_;
  std::deque<Job> reads_;
  std::vector<std::function<void()>> done_;
  bool closed_ = false;
  std::string lost_;
  OnLost on_lost_;

  std::thread writer_, watcher_;
  std::vector<std::thread> readers_;
};

}  // namespace recurve
