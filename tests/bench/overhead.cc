// recurve-bench overhead: what engine, frontends and detokenisation cost by themselves. A model
// that computes nothing is served to clients in this process, over real sockets.
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <thread>

#include "recurve/v1/inference.grpc.pb.h"
#include "server/net/connections.h"
#include "server/observe/log.h"
#include "tests/bench/commands.h"
#include "tests/bench/http_streams.h"
#include "tests/bench/report.h"
#include "tests/support/null_server.h"

namespace recurve::bench {
namespace {

// "grpc", and the dialects of HTTP.
std::vector<std::string> all_frontends() {
  std::vector<std::string> names = {"grpc"};
  for (const HttpDialect& dialect : kHttpDialects) names.emplace_back(dialect.name);
  return names;
}

struct OverheadOptions {
  std::string tokenizer = "weights_tools/demo/xlstm-books";
  int streams = 64;
  int tokens = 4000;       // of each stream, at full speed
  int paced_tokens = 300;  // of each stream, for the latency
  double step_ms = 5;      // of a paced step
  int open_streams = 3000;
  std::vector<std::string> frontends = all_frontends();
  // Of the server; empty: no TLS, no keys. Of the client: the key, and it trusts the certificate.
  std::string tls_cert, tls_key, keys, key_file;
  int rounds = 0;  // by turns without these and with them; 0: only as they are given
  bool secured() const { return !tls_cert.empty() || !keys.empty(); }
  OverheadOptions unsecured() const {
    OverheadOptions plain = *this;
    plain.tls_cert = plain.tls_key = plain.keys = plain.key_file = "";
    return plain;
  }
};

// null: not over HTTP.
const HttpDialect* dialect_of(const std::string& frontend) {
  const auto* found = std::ranges::find(kHttpDialects, frontend, &HttpDialect::name);
  return found == std::end(kHttpDialects) ? nullptr : found;
}

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// One stream's client: counts tokens, and notes how late they come.
class Reader final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Reader(v1::Inference::Stub& stub, int tokens, const testing::PacedModel& model,
         const std::string& key)
      : model_(model) {
    if (!key.empty()) context_.AddMetadata("authorization", "Bearer " + key);
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
  const testing::PacedModel& model_;
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
  int64_t tokens = 0;
  double seconds = 0, cpu_seconds = 0;
  std::vector<double> delays = {};  // seconds, each message of each stream
  double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
};

// A server, and its clients.
class Served {
 public:
  Served(const OverheadOptions& o, int streams, Clock::duration step)
      : options_(o),
        server_({.tokenizer = o.tokenizer,
                 .slots = streams,
                 .step = step,
                 .tls = make_tls(o),
                 .keys = o.keys}) {}

  Outcome over_grpc(int streams, int tokens) {
    if (stub_ == nullptr) {
      stub_ = v1::Inference::NewStub(channel());
    }
    Outcome outcome;
    std::vector<std::unique_ptr<Reader>> readers;
    const Clock::time_point began = Clock::now();
    for (int s = 0; s < streams; ++s) {
      readers.push_back(std::make_unique<Reader>(*stub_, tokens, server_.model(), key_));
    }
    for (auto& reader : readers) {
      reader->wait();
      outcome.tokens += reader->tokens();
      outcome.delays.insert(outcome.delays.end(), reader->delays().begin(), reader->delays().end());
    }
    outcome.seconds = seconds_between(began, Clock::now());
    return outcome;
  }

  Outcome over_http(const HttpDialect& dialect, int streams, int tokens) {
    Outcome outcome;
    const Clock::time_point began = Clock::now();
    std::vector<HttpStream> opened;
    for (int s = 0; s < streams; ++s) opened.emplace_back(server_.http_port(), tokens, dialect);
    read_until(opened, std::mem_fn(&HttpStream::done), [&](int events) {
      const double delay = seconds_between(server_.model().ended(), Clock::now());
      outcome.delays.insert(outcome.delays.end(), static_cast<size_t>(events), delay);
    });
    outcome.seconds = seconds_between(began, Clock::now());
    for (const HttpStream& stream : opened) outcome.tokens += stream.tokens();
    return outcome;
  }

  // Resident bytes that each stream takes that is open and has begun, its client's end included.
  // As many have been there before, so that what the engine has for them is not counted.
  double bytes_of_open_stream(int streams) {
    over_http(kHttpDialects[0], streams, 5);
    while (server_.rpc().connections().sweep() > 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    malloc_trim(0);
    const int64_t before = resident_bytes();
    std::vector<HttpStream> opened;
    opened.reserve(static_cast<size_t>(streams));
    for (int s = 0; s < streams; ++s) opened.emplace_back(server_.http_port(), kEndless);
    read_until(opened, std::mem_fn(&HttpStream::begun), [](int) {});
    return static_cast<double>(resident_bytes() - before) / streams;
  }

  Outcome over(const std::string& frontend, int streams, int tokens) {
    const HttpDialect* dialect = dialect_of(frontend);
    return dialect != nullptr ? over_http(*dialect, streams, tokens) : over_grpc(streams, tokens);
  }

 private:
  static constexpr int kEndless = 1'000'000;  // tokens

  static std::shared_ptr<TlsHandshaker> make_tls(const OverheadOptions& o) {
    if (o.tls_cert.empty()) return nullptr;
    return std::make_shared<TlsHandshaker>(TlsFiles{o.tls_cert, o.tls_key});
  }
  std::shared_ptr<grpc::Channel> channel() const {
    const std::string address = fmt::format("127.0.0.1:{}", server_.rpc().port());
    if (options_.tls_cert.empty()) {
      return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    }
    grpc::ChannelArguments arguments;
    arguments.SetSslTargetNameOverride("localhost");
    return grpc::CreateCustomChannel(
        address, grpc::SslCredentials({.pem_root_certs = text_of(options_.tls_cert)}), arguments);
  }
  static std::string key_of(const OverheadOptions& o) {
    const std::string text = o.key_file.empty() ? "" : text_of(o.key_file);
    return text.substr(0, text.find('\n'));
  }

  const OverheadOptions options_;
  const std::string key_ = key_of(options_);
  testing::NullServer server_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

Outcome serve_streams(const OverheadOptions& o, const std::string& frontend, int streams,
                      int tokens, Clock::duration step) {
  Served served(o, streams, step);
  served.over(frontend, streams, std::min(tokens, 20));  // warm-up
  const double cpu = cpu_seconds();
  Outcome outcome = served.over(frontend, streams, tokens);
  outcome.cpu_seconds = cpu_seconds() - cpu;
  const int64_t wanted = int64_t{streams} * tokens;
  if (outcome.tokens == wanted) return outcome;
  throw std::runtime_error(
      fmt::format("overhead: {} tokens came of {} over {}", outcome.tokens, wanted, frontend));
}

Clock::duration paced_step(const OverheadOptions& o) {
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double, std::milli>(o.step_ms));
}

struct Target {
  int tokens_per_second, median_us;
};
Target target_of(const std::string& frontend) {
  return dialect_of(frontend) != nullptr ? Target{100'000, 150} : Target{60'000, 100};
}

void run_frontend(const OverheadOptions& o, const std::string& frontend, Report& report) {
  const Target target = target_of(frontend);
  const Outcome full = serve_streams(o, frontend, o.streams, o.tokens, Clock::duration(0));
  report.add({{"bench", "overhead"},
              {"door", frontend},
              {"what", o.secured() ? "throughput, secured" : "throughput"},
              {"streams", o.streams},
              {"tok_per_s", full.tokens_per_second()},
              {"cpu_us_per_token", full.cpu_seconds / static_cast<double>(full.tokens) * 1e6},
              {"target", fmt::format(">= {}", target.tokens_per_second)}});
  for (const int streams : {1, o.streams}) {
    const Outcome paced = serve_streams(o, frontend, streams, o.paced_tokens, paced_step(o));
    report.add({{"bench", "overhead"},
                {"door", frontend},
                {"what", o.secured() ? "latency added, secured" : "latency added to a token"},
                {"streams", streams},
                {"tok_per_s", paced.tokens_per_second()},
                {"median_us", median(paced.delays) * 1e6},
                {"p99_us", quantile(paced.delays, 0.99) * 1e6},
                {"target", fmt::format("median < {}", target.median_us)}});
  }
}

// Medians of rounds, as a machine that is shared has better and worse seconds.
struct Rounds {
  std::vector<double> tokens_per_second, cpu_us, one_stream_us;
  void run(const OverheadOptions& o, const std::string& frontend) {
    const Outcome full = serve_streams(o, frontend, o.streams, o.tokens, Clock::duration(0));
    tokens_per_second.push_back(full.tokens_per_second());
    cpu_us.push_back(full.cpu_seconds / static_cast<double>(full.tokens) * 1e6);
    const Outcome paced = serve_streams(o, frontend, 1, o.paced_tokens, paced_step(o));
    one_stream_us.push_back(median(paced.delays) * 1e6);
  }
  void add_to(Report& report, const std::string& frontend, const std::string& what) const {
    report.add({{"bench", "overhead"},
                {"door", frontend},
                {"what", what},
                {"tok_per_s", median(tokens_per_second)},
                {"cpu_us_per_token", median(cpu_us)},
                {"median_us", median(one_stream_us)}});
  }
};

void run_by_turns(const OverheadOptions& o, const std::string& frontend, Report& report) {
  Rounds plain, secured;
  for (int i = 0; i < o.rounds; ++i) {
    plain.run(o.unsecured(), frontend);
    secured.run(o, frontend);
  }
  plain.add_to(report, frontend, "without keys and TLS");
  secured.add_to(report, frontend, "with them");
  const double least = median(secured.tokens_per_second) / median(plain.tokens_per_second);
  report.add({{"bench", "overhead"},
              {"door", frontend},
              {"what", "what they cost"},
              {"percent", 100 * (1 - least)},
              {"cpu_us_per_token", median(secured.cpu_us) - median(plain.cpu_us)},
              {"median_us", median(secured.one_stream_us) - median(plain.one_stream_us)},
              {"target", "<= 5 %, 30 us"}});
}

void run_open_streams(const OverheadOptions& o, Report& report) {
  Served served(o, o.open_streams, std::chrono::milliseconds(50));
  report.add({{"bench", "overhead"},
              {"door", "http"},
              {"what", "memory of an open stream"},
              {"streams", o.open_streams},
              {"KiB_each", served.bytes_of_open_stream(o.open_streams) / 1024},
              {"target", "< 40"}});
}

void run(const OverheadOptions& o, bool json) {
  init_logging(LogLevel::kWarning, LogFormat::kText);
  recurve::allow_many_files();
  Report report(json);
  for (const std::string& frontend : o.frontends) {
    if (o.rounds > 0) {
      run_by_turns(o, frontend, report);
      continue;
    }
    run_frontend(o, frontend, report);
    if (frontend == "http" && o.open_streams > 0) run_open_streams(o, report);
  }
}

}  // namespace

void add_overhead(CLI::App& app, const bool& json) {
  auto o = std::make_shared<OverheadOptions>();
  CLI::App* overhead = app.add_subcommand(
      "overhead",
      "Measure engine, frontends and detokenization around a model that computes "
      "nothing");
  overhead->add_option("--tokenizer", o->tokenizer, "Use the tokenizer of this model directory")
      ->capture_default_str();
  overhead->add_option("--streams", o->streams, "Concurrent streams")->capture_default_str();
  overhead->add_option("--tokens", o->tokens, "Tokens of each stream")->capture_default_str();
  overhead
      ->add_option("--step-ms", o->step_ms,
                   "Length of a step while latency is measured; milliseconds")
      ->capture_default_str();
  overhead
      ->add_option("--open-streams", o->open_streams,
                   "Open streams whose memory is measured; 0: none")
      ->capture_default_str();
  overhead
      ->add_option(
          "--door", o->frontends,
          "Frontend to measure: grpc, http (/v1/completions), chat, responses or messages; "
          "default: all")
      ->check(CLI::IsMember(all_frontends()));
  overhead->add_option("--tls-cert", o->tls_cert,
                       "Self-signed certificate for \"localhost\"; grpc only");
  overhead->add_option("--tls-key", o->tls_key, "Key of --tls-cert");
  overhead->add_option("--keys", o->keys, "File of keys; grpc only");
  overhead->add_option("--key-file", o->key_file, "File with the client's key");
  overhead
      ->add_option("--rounds", o->rounds,
                   "Rounds in turns without keys and TLS and with them; prints medians")
      ->capture_default_str();
  overhead->callback([o, &json] { run(*o, json); });
}

}  // namespace recurve::bench
