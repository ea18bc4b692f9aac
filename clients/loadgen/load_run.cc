#include "clients/loadgen/load_run.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "clients/loadgen/pacer.h"
#include "clients/loadgen/user.h"
#include "clients/loadgen/worker.h"

namespace recurve::loadgen {
namespace {

constexpr double kTickSeconds = 0.01;  // of the timer that shows stalls
constexpr double kPollSeconds = 0.05;  // how soon the end is seen
constexpr double kProgressSeconds = 0.1;
constexpr double kLeastRetrySeconds = 0.1;  // a closed loop must not flood a server that refuses
constexpr double kLastAnswersSeconds = 10;  // for cancelled calls and the closing of sessions

double process_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// One run: workers, pacer and users, from construction to the end of run().
class LoadRun {
 public:
  LoadRun(const Endpoint& endpoint, const Workload& workload,
          const std::variant<ClosedLoop, OpenLoop>& loop, const RunOptions& options)
      : options_(options),
        loop_(loop),
        window_{options.warmup_seconds, options.warmup_seconds + options.measured_seconds},
        pacer_(watch_),
        context_{.workload = workload,
                 .watch = watch_,
                 .pacer = pacer_,
                 .on_end = [this](User* user, Worker& worker,
                                  ConversationEnd end) { went(user, worker, end); },
                 .options = options_} {
    for (int w = 0; w < std::max(1, options.workers); ++w) {
      workers_.push_back(std::make_unique<Worker>(endpoint, watch_, window_, options.level));
    }
  }

  RunResult run(const OnProgress& on_progress, const std::atomic<bool>& interrupted) {
    const double cpu_before = process_cpu_seconds();
    watch_.restart();
    begin_load();
    tick(kTickSeconds);
    pacer_.at(window_.end, [this] { window_closed_ = true; });
    const bool cut = wait_for_end(on_progress, interrupted);
    RunResult result{.window = window_, .interrupted = cut};
    const double ended = watch_.now();
    if (cut) result.window.end = std::clamp(ended, window_.begin, window_.end);
    result.seconds = ended;
    result.client.cpu_cores = (process_cpu_seconds() - cpu_before) / result.seconds;
    stop_load();
    note_overdue(result);
    collect(&result);
    return result;
  }

 private:
  void begin_load() {
    if (std::holds_alternative<OpenLoop>(loop_)) return schedule_arrival();
    // Spread over half the warm-up, so that the users do not go in step.
    const int streams = std::get<ClosedLoop>(loop_).streams;
    for (int s = 0; s < streams; ++s) {
      const double due = options_.warmup_seconds / 2 * s / streams;
      pacer_.at(due, [this, due] {
        if (!context_.stopping) begin_user(due);
      });
    }
  }

  // In an open loop each arrival brings the next about.
  void schedule_arrival() {
    next_arrival_ = std::get<OpenLoop>(loop_).arrivals.next();
    pacer_.at(next_arrival_, [this, due = next_arrival_] {
      if (context_.stopping) return;  // where it was due in time, note_overdue() counts it
      if (context_.running < std::get<OpenLoop>(loop_).max_running) {
        begin_user(due);
      } else {
        note_not_sent(due);
      }
      schedule_arrival();
    });
  }

  void begin_user(double due) {
    const uint64_t index = next_conversation_++;
    Worker& worker = *workers_[index % workers_.size()];
    User* const user = worker.adopt(std::make_unique<User>(context_, worker));
    user->begin(context_.workload.conversation(index), due);
  }

  // A user's conversation has ended. One of a closed loop begins another.
  void went(User* user, Worker& worker, ConversationEnd end) {
    if (context_.stopping || std::holds_alternative<OpenLoop>(loop_)) return worker.release(user);
    const double now = watch_.now();
    const double due = end.failed ? now + std::max(end.retry_seconds, kLeastRetrySeconds) : now;
    const auto begin = [this, user, due] {
      user->begin(context_.workload.conversation(next_conversation_++), due);
    };
    if (!end.failed) return begin();
    pacer_.at(due, [this, user, &worker, begin] {
      if (context_.stopping) {
        worker.release(user);
      } else {
        begin();
      }
    });
  }

  void note_not_sent(double due) {
    const double now = watch_.now();
    workers_[0]->recorder().request(
        {.due = due, .sent = now, .first = now, .end = now, .error = kNotSent},
        "the maximum of concurrent requests was reached, so no more were sent (--max-running)");
  }

  void tick(double time) {
    pacer_.at(time, [this, time] {
      if (context_.stopping) return;
      for (const auto& worker : workers_) worker->probe();
      tick(std::max(time + kTickSeconds, watch_.now()));
    });
  }

  // Until all that is measured has ended, or the time for it; true where it was interrupted.
  bool wait_for_end(const OnProgress& on_progress, const std::atomic<bool>& interrupted) {
    const double last = window_.end + options_.cooldown_seconds;
    double shown = 0;
    // Twice, for between one turn and the next of a conversation nothing is running.
    for (int idle_polls = 0; idle_polls < 2 && watch_.now() < last;) {
      if (interrupted) return true;
      std::this_thread::sleep_for(std::chrono::duration<double>(kPollSeconds));
      idle_polls = window_closed_ && context_.measured_running == 0 ? idle_polls + 1 : 0;
      if (watch_.now() - shown < kProgressSeconds) continue;
      shown = watch_.now();
      on_progress(progress());
    }
    return false;
  }

  RunProgress progress() const {
    RunProgress progress{.now = watch_.now(), .options = options_, .running = context_.running};
    for (const auto& worker : workers_) {
      const Progress part = worker->recorder().progress();
      progress.seen.ended += part.ended;
      progress.seen.failed += part.failed;
      progress.seen.tokens += part.tokens;
      progress.seen.ttft_p99 = std::max(progress.seen.ttft_p99, part.ttft_p99);
    }
    return progress;
  }

  void stop_load() {
    context_.stopping = true;
    pacer_.hurry();
    end_users();
    pacer_.stop();
    end_users();  // the pacer may have begun one more before it saw that all stops
  }

  void end_users() {
    const double last = watch_.now() + kLastAnswersSeconds;
    const auto all_gone = [&] {
      return std::all_of(workers_.begin(), workers_.end(),
                         [](const auto& worker) { return worker->user_count() == 0; });
    };
    while (!all_gone() && watch_.now() < last) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      // Again: a user may have come while the others were cancelled.
      for (const auto& worker : workers_) worker->cancel_users();
    }
  }

  // What was due in the window but the pacer, which has stopped, was too late to begin.
  void note_overdue(const RunResult& result) {
    while (next_arrival_ < result.window.end) {
      workers_[0]->recorder().overdue(next_arrival_, result.seconds);
      next_arrival_ = std::get<OpenLoop>(loop_).arrivals.next();
    }
  }

  void collect(RunResult* result) {
    result->client.timer_lateness = pacer_.lateness();
    for (const auto& worker : workers_) {
      result->records.merge(worker->recorder().records());
      result->client.handling_delay.merge(worker->handling_delay());
      result->client.busiest_worker =
          std::max(result->client.busiest_worker, worker->cpu_seconds() / result->seconds);
    }
  }

  const RunOptions options_;
  std::variant<ClosedLoop, OpenLoop> loop_;
  const Window window_;
  Stopwatch watch_;
  Pacer pacer_;
  UserContext context_;
  double next_arrival_ = std::numeric_limits<double>::infinity();  // of an open loop: not begun yet
  std::atomic<uint64_t> next_conversation_ = 0;
  std::atomic<bool> window_closed_ = false;
  std::vector<std::unique_ptr<Worker>> workers_;  // last: their threads use the others
};

}  // namespace

RunResult run_load(const Endpoint& endpoint, const Workload& workload,
                   const std::variant<ClosedLoop, OpenLoop>& loop, const RunOptions& options,
                   const OnProgress& on_progress, const std::atomic<bool>& interrupted) {
  return LoadRun(endpoint, workload, loop, options).run(on_progress, interrupted);
}

}  // namespace recurve::loadgen
