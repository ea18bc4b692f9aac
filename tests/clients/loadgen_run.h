#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

#include "clients/loadgen/load_test.h"
#include "tests/clients/fake_server.h"

// Runs of the load generator against a server whose delays are known: each answer is scripted, and
// the server notes when it really wrote, so that a busy machine does not blur what is compared.
namespace recurve::testing {

// What this process adds to a latency on a busy machine, at the median.
inline constexpr double kSlack = 0.015;

inline double seconds_since(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

// Answers with one token a message: the first after `first`, each further one after `each`.
class ScriptedAnswers {
 public:
  ScriptedAnswers(std::chrono::milliseconds first, std::chrono::milliseconds each)
      : first_(first), each_(each) {}

  grpc::Status operator()(const v1::GenerateRequest& request, GenerateWriter* writer) {
    const std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
    writer->Write(prompt_message(request));
    std::this_thread::sleep_until(began + first_);
    const double ttft = seconds_since(began);
    const int tokens = request.stop().max_tokens(), choices = std::max(1, request.n());
    for (int t = 0; t < tokens; ++t) {
      if (t > 0) std::this_thread::sleep_for(each_);
      for (int c = 0; c < choices; ++c) writer->Write(chunk_message("", c));
    }
    const double tpot = (seconds_since(began) - ttft) / std::max(1, tokens - 1);
    auto last = final_message(choices);
    last.mutable_final()->mutable_usage()->set_queue_seconds(0.125);
    writer->Write(last);
    std::lock_guard lock(mutex_);
    ttft_.record(ttft);
    tpot_.record(tpot);
    return grpc::Status::OK;
  }

  double ttft(double share) const { return quantile(ttft_, share); }
  double tpot(double share) const { return quantile(tpot_, share); }

 private:
  double quantile(const loadgen::Histogram& histogram, double share) const {
    std::lock_guard lock(mutex_);
    return histogram.quantile(share);
  }

  const std::chrono::milliseconds first_, each_;
  mutable std::mutex mutex_;
  loadgen::Histogram ttft_, tpot_;  // as they really were
};

inline loadgen::Options options_for(const FakeServer& server, double warmup, double measured) {
  loadgen::Options options;
  options.server = server.address();
  options.workload.prompt_tokens = loadgen::Distribution(20);
  options.workload.output_tokens = loadgen::Distribution(5);
  options.run.warmup_seconds = warmup;
  options.run.measured_seconds = measured;
  return options;
}

inline loadgen::Report run_once(const loadgen::Options& options) {
  const std::atomic<bool> interrupted = false;
  return loadgen::run_load_test(options,
                                {.on_begin = [](const loadgen::Report&) {},
                                 .on_progress = [](const loadgen::RunProgress&) {},
                                 .on_trial = [](const loadgen::Trial&) {}},
                                interrupted);
}

// The generator's own timers say where the machine did not run this process in time: the figures
// are those of the machine then.
inline bool held_up(const loadgen::Trial& trial) {
  constexpr double kHeldUpSeconds = 0.05;
  const loadgen::ClientCost& client = trial.result.client;
  return client.timer_lateness.max() > kHeldUpSeconds ||
         client.handling_delay.max() > kHeldUpSeconds;
}

// A run that the machine did not hold up, or the last of ten. `reset` forgets the runs before.
inline loadgen::Report run_test(
    const loadgen::Options& options, const std::function<void()>& reset = [] {}) {
  for (int left = 9;; --left) {
    reset();
    loadgen::Report report = run_once(options);
    if (left == 0 || std::none_of(report.trials.begin(), report.trials.end(), held_up)) {
      return report;
    }
  }
}

// A request handler that shares `answers` with the test.
template <class Answers>
OnGenerate ask(Answers& answers) {
  return [&answers](grpc::ServerContext*, const v1::GenerateRequest& request,
                    GenerateWriter* writer) { return answers(request, writer); };
}

}  // namespace recurve::testing
