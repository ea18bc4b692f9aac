#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/constraint/constraint_library.h"

namespace recurve {

struct CompileLimits {
  int most_waiting = 64;                  // constraints; more: kFull
  int most_of_one = 16;                   // of one client, likewise
  size_t cache_bytes = size_t{64} << 20;  // of constraints that nobody uses any more
  size_t most_refusals = 1024;            // that are remembered
  double most_seconds = 20;               // of a processor on one constraint; more: refused
};

// Compiles constraints, each once, on a thread of its own that takes what the processors have left:
// whoever is served already is not slowed. Clients take turns. Any thread.
class ConstraintCompiler {
 public:
  // What has become of a constraint.
  struct Outcome {
    std::shared_ptr<const Constraint> constraint = {};  // null: it is refused
    std::string refusal = {};                           // in a sentence
    bool full = false;                                  // too many wait: not the constraint's fault
  };
  // A constraint that is waited for.
  class Waiter {
   public:
    Waiter() = default;
    Waiter(Waiter&& other) noexcept { *this = std::move(other); }
    Waiter& operator=(Waiter&& other) noexcept;
    ~Waiter() { forget(); }
    // `done` is not called afterwards, nor under way. What nobody waits for is not compiled, or is
    // given up.
    void forget();
    // Empty: it is still being compiled.
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

  // `tokens` is called once, by the first that is to be compiled.
  ConstraintCompiler(std::function<TokenTexts()> tokens, CompileLimits limits = {});
  // Nobody waits any more. What is under way is given up.
  ~ConstraintCompiler();

  // The outcome, where it is known. Otherwise `waiter` waits for it, and `done`, which may only
  // post, is called once it is there. `client`: whose turn it is.
  std::optional<Outcome> compile(const ConstraintText& text, uint64_t client,
                                 std::function<void()> done, Waiter* waiter);

  // For metrics and tests.
  struct Counts {
    int64_t compiled = 0, refused = 0, from_cache = 0, given_up = 0;
    int waiting = 0;
    size_t cached_bytes = 0;
    double slowest_seconds = 0;
  };
  Counts counts() const;

 private:
  using Job = Waiter::Job;
  using Clock = std::chrono::steady_clock;

  std::optional<Outcome> remembered(const ConstraintText& text);
  void work();
  std::shared_ptr<Job> next_job();
  void finish(Job& job, Outcome outcome, double seconds);
  void remember(const ConstraintText& text, const Outcome& outcome);
  Outcome outcome_of(const Job& job);
  void forget_job(const Job& job);

  const std::function<TokenTexts()> tokens_;
  const CompileLimits limits_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::map<ConstraintText, std::shared_ptr<Job>> jobs_;           // wait, or are being compiled
  std::shared_ptr<Job> under_way_;                                // what the thread compiles
  std::map<uint64_t, std::deque<std::shared_ptr<Job>>> waiting_;  // by client
  uint64_t last_client_ = 0;                                      // whose turn was last
  uint64_t waiters_ = 0;
  // The last used first.
  struct Kept {
    ConstraintText text;
    Outcome outcome;
  };
  std::list<Kept> kept_;
  std::map<ConstraintText, std::list<Kept>::iterator> kept_at_;
  size_t kept_bytes_ = 0, kept_refusals_ = 0;
  Counts counts_;
  std::unique_ptr<ConstraintLibrary> library_;  // the thread's
  std::thread thread_;                          // since the first
};

}  // namespace recurve
