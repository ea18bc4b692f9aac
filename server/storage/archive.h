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

// A store whose owner never waits for a disk. One thread commits, and groups all changes that have
// arrived. kReaders other threads read, so that states are read while others are written, and a
// slow read delays no other. The owner's thread handles the results in take_done(). The store
// outlives the archive and everything that was taken out of it.
class Archive {
 public:
  static constexpr int kReaders = 4;
  using Committed = std::function<void(StateStore::Outcome outcome)>;
  // What was read; or an error message, and what the error means for the state.
  struct Loaded {
    StateHeader header = {};
    std::string error = {};
    // kNoMemory: out of memory, try again. kStateLost: permanent. kStateSealed: until the tenant's
    // key is restored. kOtherModel: until a server of that model reads it.
    EndReason reason = EndReason::kDone;
  };
  using OnLoaded = std::function<void(Loaded loaded)>;

  // Throws std::system_error if a thread cannot start.
  explicit Archive(StateStore& store);
  ~Archive();  // waits until all operations are done
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  StateStore& store() { return store_; }
  // The operations, in the order of kStateDirCalls: commit a record, write a state that was
  // promised to no client, read a state or an answer.
  enum class Call { kCommit, kSpill, kRead };
  // Called by take_done() for each operation that is done, with its duration including the wait.
  using Listener = std::function<void(Call call, double seconds, bool failed)>;
  void when_observed(Listener listener) { listener_ = std::move(listener); }
  // Called when there is something to take, on another thread: may only post, and calls nothing of
  // the archive. Not called after everything has been taken. Call it before the first operation.
  void when_done(std::function<void()> wake) { wake_ = std::move(wake); }

  // Called with StateStore::lost() at once, and within half a second after it has changed, on
  // another thread: may only post.
  using OnLost = std::function<void(const std::string& why)>;
  void when_lost(OnLost listener);
  // StateStore::lost() as of at most half a second ago. Any thread.
  std::string lost() const;

  // The owner's thread. take_done() calls each callback once: those of commits in their order,
  // those of reads in any order.
  void commit(StateStore::Change change, Committed done);
  struct Write {
    StateStore::Change change;
    Committed done;
  };
  // Commits these together. They share their syncs unless they are too large.
  void commit(std::vector<Write> writes);
  // prepare: called before the image is first read, on another thread; may be empty.
  void load(StoredPtr state, const StateHeader& wanted, NewImage image,
            std::function<void()> prepare, OnLoaded done);
  // Reads only the header and the ids of the last answer, which are below vocab.
  void load_answer(StoredPtr state, int32_t vocab, OnLoaded done);

  // Reads the tokens of these parts of a text, which follow each other, from `begin` on, which is
  // in the first one, to header.tokens.
  void load_tokens(std::vector<StoredTokens> parts, int64_t begin, int32_t vocab, OnLoaded done);

  bool working() const { return under_way_ > 0; }  // an operation was started and not taken
  // Runs the callbacks of all operations that are done. False: none is done.
  bool take_done();
  // Returns when there is something to take, if an operation is in progress.
  void wait();

 private:
  using Clock = std::chrono::steady_clock;
  struct Commit : Write {
    Clock::time_point asked;
  };
  using Job = std::function<std::function<void()>()>;  // returns the work of the owner's thread

  void write();
  void read();
  void watch();
  void stop();
  void commit_group(std::vector<Commit> group);
  Loaded load_now(const StoredPtr& state, const std::function<StateHeader()>& read);
  void add_read(Job job);
  OnLoaded observed(OnLoaded done) const;
  void observe(Call call, Clock::time_point asked, bool failed) const;
  void post(std::vector<std::function<void()>> done);

  StateStore& store_;
  std::function<void()> wake_;
  Listener listener_;
  int64_t under_way_ = 0;  // used by the owner's thread

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable commits_changed_, reads_changed_, done_changed_, closing_;
  std::deque<Commit> commits_;
  std::deque<Job> reads_;
  std::vector<std::function<void()>> done_;
  bool closed_ = false;
  std::string lost_;
  OnLost on_lost_;

  std::vector<std::thread> threads_;
};

}  // namespace recurve
