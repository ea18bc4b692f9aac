// recurve-bench overhead: what engine, gRPC and detokenisation cost by themselves. A model that
// computes nothing is served to clients in this process, over a real socket.
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <thread>

#include "recurve/v1/inference.grpc.pb.h"
#include "server/engine/engine.h"
#include "server/observe/log.h"
#include "server/rpc/server.h"
#include "server/text/tokenizer.h"
#include "tests/bench/commands.h"
#include "tests/bench/report.h"
#include "tests/support/null_model.h"

namespace recurve::bench {
namespace {

struct OverheadOptions {
  std::string tokenizer = "weights_tools/demo/xlstm-books";
  int streams = 64;
  int tokens = 4000;       // of each stream, at full speed
  int paced_tokens = 300;  // of each stream, for the latency
  double step_ms = 5;      // of a paced step
};

// Makes every step take a given time, and notes when each ended.
class PacedModel final : public Model {
 public:
  PacedModel(const Model& inner, Clock::duration step) : inner_(inner), step_(step) {}
  const ModelInfo& info() const override { return inner_.info(); }
  StateLayout state_layout() const override { return inner_.state_layout(); }
  size_t arena_bytes(const StepLimits& limits) const override { return inner_.arena_bytes(limits); }
  void forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
               float* logits) const override {
    const Clock::time_point began = Clock::now();
    inner_.forward(batch, states, arena, stream, logits);
    if (step_.count() == 0) return;
    std::this_thread::sleep_until(began + step_);
    ended_ = Clock::now().time_since_epoch().count();
  }
  // When the newest step ended. Right for a token that arrives before the next one does.
  Clock::time_point ended() const { return Clock::time_point(Clock::duration(ended_.load())); }

 private:
  const Model& inner_;
  const Clock::duration step_;
  mutable std::atomic<Clock::rep> ended_{0};
};

// One stream's client: counts tokens, and notes how late they come.
class Reader final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Reader(v1::Inference::Stub& stub, int tokens, const PacedModel& model) : model_(model) {
    request_.set_text("Call me Ishmael.");
    request_.mutable_stop()->set_max_tokens(tokens);
    request_.mutable_stop()->set_ignore_eos(true);
    request_.mutable_sampling()->set_temperature(0);
    stub.async()->Generate(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (response_.has_chunk()) {
      tokens_ += response_.chunk().ids_size();
      delays_.push_back(std::chrono::duration<double>(Clock::now() - model_.ended()).count());
    }
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    std::lock_guard lock(mutex_);
    status_ = status;
    done_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
    if (!status_.ok()) throw std::runtime_error("Generate: " + status_.error_message());
  }
  int64_t tokens() const { return tokens_; }
  const std::vector<double>& delays() const { return delays_; }

 private:
  const PacedModel& model_;
  grpc::ClientContext context_;
  v1::GenerateRequest request_;
  v1::GenerateResponse response_;
  int64_t tokens_ = 0;
  std::vector<double> delays_;
  std::mutex mutex_;
  std::condition_variable changed_;
  grpc::Status status_;
  bool done_ = false;
};

struct Outcome {
  double tokens_per_second;
  std::vector<double> delays;  // seconds, each message of each stream
};

Outcome serve_streams(const OverheadOptions& o, int streams, int tokens, Clock::duration step) {
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(o.tokenizer);
  const auto backend = make_backend("reference");
  const testing::NullModel null(tokenizer->size());
  const PacedModel model(null, step);
  Metrics metrics;
  EngineStats stats;
  AdmissionQueue queue(streams);
  Serving serving({}, queue, stats, metrics);
  RpcServer rpc({.listen = "127.0.0.1:0"}, serving);
  Engine engine(model, *backend,
                {.rows = tokenizer->size(), .usable = tokenizer->size(), .eos_ids = {}}, queue,
                stats, metrics, {.slots = streams, .sessions = {}});
  std::thread engine_thread([&] { engine.run(); });
  ServingInfo info{.model_name = "null", .vocab_rows = tokenizer->size(), .slots = streams};
  serving.serve(tokenizer, info);

  const auto channel = grpc::CreateChannel(fmt::format("127.0.0.1:{}", rpc.port()),
                                           grpc::InsecureChannelCredentials());
  const auto stub = v1::Inference::NewStub(channel);
  Outcome outcome{};
  const auto round = [&](int count) {
    std::vector<std::unique_ptr<Reader>> readers;
    const Clock::time_point began = Clock::now();
    for (int s = 0; s < streams; ++s) {
      readers.push_back(std::make_unique<Reader>(*stub, count, model));
    }
    int64_t received = 0;
    for (auto& reader : readers) {
      reader->wait();
      received += reader->tokens();
      outcome.delays.insert(outcome.delays.end(), reader->delays().begin(), reader->delays().end());
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
    outcome.tokens_per_second = static_cast<double>(received) / seconds;
  };
  round(std::min(tokens, 20));  // warm-up
  outcome.delays.clear();
  round(tokens);

  rpc.shutdown();
  queue.close();
  engine_thread.join();
  return outcome;
}

void run(const OverheadOptions& o, bool json) {
  init_logging(LogLevel::kWarning, LogFormat::kText);
  Report report(json);
  const Outcome full = serve_streams(o, o.streams, o.tokens, Clock::duration(0));
  report.add({{"bench", "overhead"},
              {"what", "throughput"},
              {"streams", o.streams},
              {"tok_per_s", full.tokens_per_second},
              {"target", ">= 60000"}});
  const auto step = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double, std::milli>(o.step_ms));
  for (const int streams : {1, o.streams}) {
    const Outcome paced = serve_streams(o, streams, o.paced_tokens, step);
    report.add({{"bench", "overhead"},
                {"what", "latency added to a token"},
                {"streams", streams},
                {"tok_per_s", paced.tokens_per_second},
                {"median_us", median(paced.delays) * 1e6},
                {"p99_us", quantile(paced.delays, 0.99) * 1e6},
                {"target", "median < 100"}});
  }
}

}  // namespace

void add_overhead(CLI::App& app, const bool& json) {
  auto o = std::make_shared<OverheadOptions>();
  CLI::App* overhead = app.add_subcommand(
      "overhead", "Engine, gRPC and detokenisation around a model that computes nothing");
  overhead->add_option("--tokenizer", o->tokenizer, "Model directory whose tokenizer to use")
      ->capture_default_str();
  overhead->add_option("--streams", o->streams, "Concurrent streams")->capture_default_str();
  overhead->add_option("--tokens", o->tokens, "Of each stream")->capture_default_str();
  overhead->add_option("--step-ms", o->step_ms, "Length of a step while latency is measured")
      ->capture_default_str();
  overhead->callback([o, &json] { run(*o, json); });
}

}  // namespace recurve::bench
