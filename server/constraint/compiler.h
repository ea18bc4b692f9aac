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
  int most_waiting = 64;                  // constraints; more: kFull
  int most_of_one = 16;                   // of one client, likewise
  size_t cache_bytes = size_t{64} << 20;  // of constraints that are kept, and of refusals
  double most_seconds = 20;               // of a processor on one constraint; more: refused
  int most_begun = 4;                     // of as many clients
  double slice_seconds = 0.02;            // that one computes while another client waits
  double starved_seconds = 1;             // for which a slice goes on; more: a higher priority
};

// Since the start, and now.
struct CompileCounts {
  int64_t compiled = 0, refused = 0, from_cache = 0, given_up = 0, turned_away = 0;
  int64_t begun_again = 0;  // with a higher priority
  int waiting = 0;          // and under way
  size_t cached_bytes = 0;
  double slowest_seconds = 0;
};

// Who counts. Both may be empty.
struct CompileReports {
  std::function<void(const CompileCounts&)> counts = {};  // whenever they change
  // Of a processor, that one constraint took, whatever became of it.
  std::function<void(double seconds)> compiled = {};
};

// Compiles constraints, each once, with what the processors have left: whoever is served already
// does not notice. Where they leave next to nothing, it begins again with a tenth of one, in pieces
// of 0.1 ms. Clients take turns, within a constraint that takes long too: it rests while one of
// another client is compiled, so as many have begun as there are threads, and one computes at a
// time. Any thread.
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

  using Counts = CompileCounts;

  // `tokens` is called once, by the first that is to be compiled.
  ConstraintCompiler(std::function<TokenTexts()> tokens, CompileLimits limits = {},
                     CompileReports reports = {});
  // Nobody waits any more. What is under way is given up.
  ~ConstraintCompiler();

  // The outcome, where it is known. Otherwise `waiter` waits for it, and `done`, which may only
  // post, is called once it is there. `client`: whose turn it is.
  std::optional<Outcome> compile(const ConstraintText& text, uint64_t client,
                                 std::function<void()> done, Waiter* waiter);

  Counts counts() const;

 private:
  using Job = Waiter::Job;
  using Clock = std::chrono::steady_clock;

  // On its threads, which hold nothing.
  void work(ThreadPriority priority);
  std::shared_ptr<Job> next_job(ThreadPriority priority);
  void rest(Job& job, double seconds);
  void begin_again(Job& job);
  void finish(Job& job, Outcome outcome, double seconds);
  Outcome compiled(Job& job);

  // Under the mutex.
  std::optional<Outcome> remembered(const ConstraintText& text, uint64_t client);
  void add(const ConstraintText& text, uint64_t client);
  void make_threads();
  std::shared_ptr<Job> whose_turn() const;
  void pass_turn();
  void remember(const Job& job, const Outcome& outcome);
  void forget_job(const Job& job);
  void report() const;
  Counts counts_now() const;

  const std::function<TokenTexts()> tokens_;
  const CompileLimits limits_;
  const CompileReports reports_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::map<ConstraintText, std::shared_ptr<Job>> jobs_;           // wait, or have begun
  std::map<uint64_t, std::deque<std::shared_ptr<Job>>> waiting_;  // by client
  std::map<uint64_t, std::shared_ptr<Job>> begun_;                // by client, one of each
  std::shared_ptr<Job> turn_;  // whose thread computes; null: none does
  uint64_t last_client_ = 0;   // whose turn was last
  uint64_t waiters_ = 0;
  FairCache<ConstraintText, Outcome> kept_, refused_;
  Counts counts_;
  std::unique_ptr<ConstraintLibrary> library_;  // of who has the turn
  std::vector<std::thread> threads_;            // at most most_begun of each priority
};

}  // namespace recurve
