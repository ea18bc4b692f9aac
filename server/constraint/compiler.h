#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/constraint/constraint_library.h"
#include "server/constraint/fair_cache.h"
#include "server/constraint/thread_priority.h"

namespace recurve {

struct CompileLimits {
  int most_waiting = 64;                  // constraints; more: full
  int most_of_one = 16;                   // constraints of one client; more: full
  size_t cache_bytes = size_t{64} << 20;  // of compiled constraints and refusals
  double most_seconds = 20;               // processor time for one constraint; more: refused
  int most_begun = 4;                     // constraints that have begun, one per client
  double slice_seconds = 0.02;            // processor time of a turn while another client waits
  double starved_seconds = 1;  // duration of a turn; more: restarted with a higher priority
};

// Counters since the start, and current values.
struct CompileCounts {
  int64_t compiled = 0, refused = 0, from_cache = 0, given_up = 0, turned_away = 0;
  int64_t begun_again = 0;  // restarted with a higher priority
  int waiting = 0;          // or being compiled
  size_t cached_bytes = 0;
  double slowest_seconds = 0;
};

// Callbacks for metrics. Both may be empty.
struct CompileReports {
  std::function<void(const CompileCounts&)> counts = {};  // whenever they change
  // The processor time of each constraint, whatever the outcome.
  std::function<void(double seconds)> compiled = {};
};

// Compiles constraints, each once, in idle processor time, so that answers are not delayed. If
// there is almost none, it restarts the compilation with a tenth of a processor, in pieces of 0.1
// ms. Clients take turns, also during a long compilation: it pauses while a constraint of another
// client is compiled. One constraint is compiled at a time. Any thread.
class ConstraintCompiler {
 public:
  // The result of a compilation.
  struct Outcome {
    std::shared_ptr<const Constraint> constraint = {};  // null: refused, or full
    std::string refusal = {};                           // the reason
    bool full = false;                                  // too many constraints wait
  };
  // A request that waits for a constraint.
  class Waiter {
   public:
    Waiter() = default;
    Waiter(Waiter&& other) noexcept { *this = std::move(other); }
    Waiter& operator=(Waiter&& other) noexcept;
    ~Waiter() { forget(); }
    // Stops waiting. When this returns, `done` is not running and will not be called. Without
    // another waiter, the compilation is cancelled.
    void forget();
    // Empty until the constraint is compiled.
    std::optional<Outcome> outcome() const;

   private:
    friend class ConstraintCompiler;
    struct Job;
    Waiter(ConstraintCompiler* compiler, std::shared_ptr<Job> job, uint64_t number)
        : compiler_(compiler), job_(std::move(job)), number_(number) {}
    ConstraintCompiler* compiler_ = nullptr;
    std::shared_ptr<Job> job_;
    uint64_t number_ = 0;
  };

  using Counts = CompileCounts;

  // `tokens` is called once, before the first compilation.
  ConstraintCompiler(std::function<TokenTexts()> tokens, CompileLimits limits = {},
                     CompileReports reports = {});
  // There must be no waiters. Cancels running compilations.
  ~ConstraintCompiler();

  // The outcome if it is known. Otherwise sets `waiter`, and calls `done`, which must not block,
  // when the outcome is known. `client`: the client that takes turns.
  std::optional<Outcome> compile(const ConstraintText& text, uint64_t client,
                                 std::function<void()> done, Waiter* waiter);

  Counts counts() const;

 private:
  using Job = Waiter::Job;
  using Clock = std::chrono::steady_clock;

  // On the compiler's threads, without the mutex.
  void work(ThreadPriority priority);
  std::shared_ptr<Job> next_job(ThreadPriority priority);
  void pause(Job& job, double seconds);
  void restart(Job& job);
  void finish(Job& job, Outcome outcome, double seconds);
  Outcome compiled(Job& job);

  // With the mutex locked.
  std::optional<Outcome> cached(const ConstraintText& text, uint64_t client);
  void add(const ConstraintText& text, uint64_t client);
  void add_threads();
  std::shared_ptr<Job> next_turn() const;
  void pass_turn();
  void cache(const Job& job, const Outcome& outcome);
  void drop_job(const Job& job);
  void report() const;
  Counts counts_now() const;

  const std::function<TokenTexts()> tokens_;
  const CompileLimits limits_;
  const CompileReports reports_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::map<ConstraintText, std::shared_ptr<Job>> jobs_;           // waiting or begun
  std::map<uint64_t, std::deque<std::shared_ptr<Job>>> waiting_;  // by client
  std::map<uint64_t, std::shared_ptr<Job>> begun_;                // by client, one each
  std::shared_ptr<Job> turn_;  // the job that is compiled now; null: none
  uint64_t last_client_ = 0;   // of the last turn
  uint64_t waiters_ = 0;
  FairCache<ConstraintText, Outcome> compiled_, refused_;
  Counts counts_;
  std::unique_ptr<ConstraintLibrary> library_;  // used by the job whose turn it is
  std::vector<std::thread> threads_;            // at most most_begun of each priority
};

}  // namespace recurve
