// recurve-bench service: what a user of the real server sees. Starts recurve-server as a process of
// its own and asks it over the socket.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "clients/cpp/client.h"
#include "tests/bench/commands.h"
#include "tests/bench/report.h"
#include "tests/support/server_process.h"

namespace recurve::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

struct ServiceOptions {
  std::string model = "weights_tools/demo/xlstm-books";
  std::string device = "cpu";
  int slots = 16;
  int prompt = 100;
  int tokens = 200;
  int rounds = 3;
};

// Of so many tokens with BOS.
void fill_ids(int tokens, int seed, int vocab, v1::TokenIds* ids) {
  for (int t = 0; t < tokens - 1; ++t) ids->add_ids(300 + (t * 7919 + seed) % (vocab - 300));
}

v1::GenerateRequest request_of(const ServiceOptions& o, int seed, int vocab) {
  v1::GenerateRequest request;
  fill_ids(o.prompt, seed, vocab, request.mutable_ids());
  request.mutable_stop()->set_max_tokens(o.tokens);
  request.mutable_stop()->set_ignore_eos(true);
  request.mutable_sampling()->set_seed(static_cast<uint64_t>(seed));
  return request;
}

struct Answer {
  double first_token = 0, total = 0;
};

Answer ask(Client& client, const v1::GenerateRequest& request) {
  Answer answer;
  const Clock::time_point began = Clock::now();
  client.generate(request, [&](const v1::GenerateResponse& response) {
    if (response.has_chunk() && answer.first_token == 0) answer.first_token = seconds_since(began);
  });
  answer.total = seconds_since(began);
  return answer;
}

// All slots busy at once: tokens a second, and by then every slot's memory is in use.
double full_load(Client& client, const ServiceOptions& o, int vocab) {
  const Clock::time_point began = Clock::now();
  std::vector<std::thread> threads;
  for (int s = 0; s < o.slots; ++s) {
    threads.emplace_back([&, s] { ask(client, request_of(o, 100 + s, vocab)); });
  }
  for (std::thread& thread : threads) thread.join();
  return o.slots * o.tokens / seconds_since(began);
}

constexpr int kTexts = 1000, kTextTokens = 128;

// Absorbs prompts, by requests for one token that never leave a slot without work.
void absorb_prompts(Client& client, const ServiceOptions& o, int vocab) {
  std::atomic<int> next = 0;
  std::vector<std::thread> threads;
  for (int s = 0; s < 2 * o.slots; ++s) {
    threads.emplace_back([&] {
      for (int i; (i = next++) < kTexts;) {
        v1::GenerateRequest request;
        fill_ids(kTextTokens, i, vocab, request.mutable_ids());
        request.mutable_stop()->set_max_tokens(1);
        request.set_prefix(v1::PREFIX_MODE_OFF);
        ask(client, request);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The same tokens, as the inputs of one request for embeddings.
void embed_texts(Client& client, int vocab) {
  v1::EmbedRequest request;
  for (int i = 0; i < kTexts; ++i) {
    fill_ids(kTextTokens, i, vocab, request.add_inputs()->mutable_ids());
  }
  client.embed(request, [](const v1::EmbedResponse&) {});
}

// Rates of kTexts texts, of each round: tokens a second, and a second of the server's processors.
struct TextRates {
  std::vector<double> by_time = {}, by_processor = {};

  template <typename Work>
  void add(const testing::ServerProcess& server, Work work) {
    const double processor = server.processor_seconds();
    const Clock::time_point began = Clock::now();
    work();
    by_time.push_back(kTexts * kTextTokens / seconds_since(began));
    by_processor.push_back(kTexts * kTextTokens / (server.processor_seconds() - processor));
  }
};

void run(const ServiceOptions& o, bool json) {
  Report report(json);
  const auto row = [&](const char* what, double value, const char* unit,
                       const std::string& target) {
    report.add({{"bench", "service"},
                {"what", what},
                {"value", value},
                {"unit", unit},
                {"target", target}});
  };
  const Clock::time_point began = Clock::now();
  testing::ServerProcess server({"--model", o.model, "--device", o.device, "--slots",
                                 std::to_string(o.slots), "--ttft-ms", "0"});
  Client client(server.address());
  client.wait_until_serving(std::chrono::system_clock::now() + std::chrono::seconds(10));
  row("start to serving", seconds_since(began), "s", "< 2");

  const v1::ModelInfo info = client.model_info();
  std::vector<double> first, rate;
  for (int i = 0; i < 9; ++i) {
    const Answer answer = ask(client, request_of(o, i, info.token_count()));
    first.push_back(answer.first_token);
    rate.push_back((o.tokens - 1) / (answer.total - answer.first_token));
  }
  row(fmt::format("first token of a {}-token prompt", o.prompt).c_str(), median(first) * 1e3, "ms",
      "< 100");
  row("decode, one stream", median(rate), "tok/s", "");
  row(fmt::format("prompt {} + decode {}, {} streams", o.prompt, o.tokens, o.slots).c_str(),
      full_load(client, o, info.token_count()), "tok/s", "");

  TextRates prompts, embeddings;
  for (int i = 0; i < o.rounds; ++i) {
    prompts.add(server, [&] { absorb_prompts(client, o, info.token_count()); });
    embeddings.add(server, [&] { embed_texts(client, info.token_count()); });
  }
  const std::string prompts_of = fmt::format("{} prompts of {}", kTexts, kTextTokens),
                    embeddings_of =
                        fmt::format("embeddings of {} texts of {}", kTexts, kTextTokens);
  const auto both = [&](const std::string& by, const std::vector<double>& of_prompts,
                        const std::vector<double>& of_embeddings) {
    const double base = median(of_prompts);
    row((prompts_of + by).c_str(), base, "tok/s", "");
    row((embeddings_of + by).c_str(), median(of_embeddings), "tok/s",
        fmt::format(">= {:.0f}: 95 % of the prompts", 0.95 * base));
  };
  both("", prompts.by_time, embeddings.by_time);
  both(", a second of its processors", prompts.by_processor, embeddings.by_processor);

  const double bound = 1.15 * (static_cast<double>(info.weight_bytes()) +
                               o.slots * static_cast<double>(info.state_bytes())) +
                       64 * 1024 * 1024;
  row("resident memory, every slot used", server.resident_bytes() / (1 << 20), "MiB",
      fmt::format("<= {:.1f}: 1.15 x (weights + slots) + 64", bound / (1 << 20)));
}

}  // namespace

void add_service(CLI::App& app, const bool& json) {
  auto o = std::make_shared<ServiceOptions>();
  CLI::App* service =
      app.add_subcommand("service", "Measure the real server: start, first token, rates, memory");
  service->add_option("--model", o->model, "Checkpoint directory")->capture_default_str();
  service->add_option("--device", o->device, "cpu, reference or cuda:N")->capture_default_str();
  service->add_option("--slots", o->slots, "Slots, and streams at once")->capture_default_str();
  service->add_option("--prompt", o->prompt, "Tokens of the prompt")->capture_default_str();
  service->add_option("--tokens", o->tokens, "Tokens to generate")->capture_default_str();
  service->add_option("--rounds", o->rounds, "Rounds of prompts and embeddings, in turn")
      ->capture_default_str();
  service->callback([o, &json] { run(*o, json); });
}

}  // namespace recurve::bench
