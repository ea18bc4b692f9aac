#include "clients/loadgen/load_test.h"

#include <fmt/format.h>

#include <stdexcept>

#include "clients/cpp/client.h"

namespace recurve::loadgen {
namespace {

constexpr double kProbeSeconds = 3;  // of the closed loop that shows where a sweep begins
constexpr double kFirstShare = 0.7;  // of what that reaches
constexpr double kOverload = 2;      // times the highest rate, at the end of a sweep

std::string workload_text(const Options& o) {
  const WorkloadOptions& w = o.workload;
  std::string text;
  if (!w.prompts.empty()) {
    text = fmt::format("{} prompts of {}", w.prompts.size(), o.prompts_file);
  } else if (w.trace.empty()) {
    text = fmt::format("prompts of {} random tokens", w.prompt_tokens.text());
  }
  if (!w.trace.empty()) {
    text += fmt::format("{}lengths of {} ({} requests)", text.empty() ? "" : ", ", o.trace_file,
                        w.trace.size());
  } else {
    text += fmt::format(", answers of {}", w.output_tokens.text());
  }
  if (w.turns > 1) {
    text += fmt::format(", {} turns a session with {} s between", w.turns, w.think_seconds.text());
  }
  if (o.run.durability == v1::DURABILITY_LOCAL) text += ", sessions of durability local";
  if (o.run.durability == v1::DURABILITY_REMOTE) text += ", sessions of durability remote";
  if (w.forks > 1) text += fmt::format(", {} answers a prompt", w.forks);
  return text + fmt::format(", temperature {:g}, seed {}", o.run.temperature, w.seed);
}

void check_forks(const Options& o, const ServerFacts& server) {
  const bool sessions = o.workload.turns > 1 || o.run.durability != v1::DURABILITY_NONE;
  if (o.workload.forks > 1 && sessions) {
    throw std::invalid_argument(
        "--forks excludes --turns and --durability: an answer of a session "
        "is one");
  }
  if (o.workload.forks > server.max_choices) {
    throw std::invalid_argument(fmt::format("--forks {} is over the server's limit of {}",
                                            o.workload.forks, server.max_choices));
  }
}

// A test under way.
class LoadTest {
 public:
  LoadTest(const Options& options, const LoadTestEvents& events,
           const std::atomic<bool>& interrupted)
      : o_(options), events_(events), interrupted_(interrupted) {
    Client client(o_.endpoint());
    report_.server = ask_server(client, o_.run.model);
    check_forks(o_, report_.server);
    workload_.emplace(o_.workload, report_.server.limits);
    report_.workload = workload_text(o_);
    report_.options = o_.run;
  }

  Report run() {
    events_.on_begin(report_);
    if (o_.sweep) {
      sweep();
    } else if (o_.streams) {
      keep(closed_loop(*o_.streams, o_.run));
    } else {
      keep(open_loop(o_.rate));
    }
    return std::move(report_);
  }

 private:
  void sweep() {
    SweepOptions sweep{.precision = o_.sweep_precision};
    sweep.first_rate = o_.sweep_first_rate ? *o_.sweep_first_rate : first_rate();
    const auto try_rate = [&](double rate) {
      if (interrupted_) return false;
      keep(open_loop(rate));
      return holds(report_.trials.back(), o_.run.level);
    };
    report_.highest_rate = find_highest_rate(sweep, try_rate);
    if (interrupted_ || *report_.highest_rate == 0) return;
    keep(open_loop(kOverload * *report_.highest_rate));
    report_.overload_trial = report_.trials.size() - 1;
  }

  // A share of the rate that a closed loop of all slots reaches. Not part of the report.
  double first_rate() {
    RunOptions options = o_.run;
    options.warmup_seconds = std::min(options.warmup_seconds, kProbeSeconds);
    options.measured_seconds = std::min(options.measured_seconds, kProbeSeconds);
    options.cooldown_seconds = 0;
    const Trial probe = closed_loop(std::max(1, report_.server.slots), options);
    const double tokens_each = mean_tokens();
    const double rate = std::max(request_rate(probe), token_rate(probe) / tokens_each);
    return std::max(kFirstShare * rate / o_.workload.turns, 0.01);
  }

  // Tokens that a request generates, from the conversations that will be asked.
  double mean_tokens() const {
    constexpr uint64_t kSample = 200;
    double sum = 0;
    for (uint64_t i = 0; i < kSample; ++i) {
      for (const Turn& turn : workload_->conversation(i).turns) {
        sum += static_cast<double>(turn.output_tokens);
      }
    }
    return sum / static_cast<double>(kSample) / o_.workload.turns * o_.workload.forks;
  }

  Trial closed_loop(int streams, const RunOptions& options) {
    Trial trial{.load = fmt::format("closed loop, {} streams", streams), .streams = streams};
    trial.result = run_load(o_.endpoint(), *workload_, ClosedLoop{streams}, options,
                            events_.on_progress, interrupted_);
    return trial;
  }

  Trial open_loop(std::optional<double> rate) {
    const char* kind = o_.arrivals == ArrivalKind::kConstant ? "constant" : "Poisson";
    Trial trial{.load = fmt::format("open loop, {} arrivals, {:.4g}/s", kind, rate.value_or(0)),
                .rate = rate};
    if (o_.arrivals == ArrivalKind::kTrace) {
      trial.load = fmt::format("open loop, arrivals of {} at {:g} times its speed", o_.trace_file,
                               o_.trace_speed);
    }
    trial.result = run_load(o_.endpoint(), *workload_,
                            OpenLoop{.arrivals = arrivals(rate), .max_running = o_.max_running},
                            o_.run, events_.on_progress, interrupted_);
    return trial;
  }

  Arrivals arrivals(std::optional<double> rate) const {
    switch (o_.arrivals) {
      case ArrivalKind::kTrace:
        return Arrivals::trace(o_.workload.trace, o_.trace_speed);
      case ArrivalKind::kConstant:
        return Arrivals::constant(rate.value());
      default:
        return Arrivals::poisson(rate.value(), o_.workload.seed);
    }
  }

  void keep(Trial trial) {
    report_.trials.push_back(std::move(trial));
    events_.on_trial(report_.trials.back());
  }

  const Options& o_;
  const LoadTestEvents& events_;
  const std::atomic<bool>& interrupted_;
  Report report_;
  std::optional<Workload> workload_;
};

}  // namespace

Report run_load_test(const Options& options, const LoadTestEvents& events,
                     const std::atomic<bool>& interrupted) {
  return LoadTest(options, events, interrupted).run();
}

}  // namespace recurve::loadgen
