// recurve-smoke: what a running server must be able to do, with prompts of token ids, so that any
// model will do. One line a check; the exit status is 0 if all hold. Drains the server at the end.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "clients/cpp/client.h"

namespace recurve {
namespace {

using Clock = std::chrono::steady_clock;
using Ids = std::vector<int32_t>;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void expect(bool holds, const std::string& sentence) {
  if (!holds) throw std::runtime_error(sentence);
}

// Six ids that differ from number to number.
Ids some_prompt(int number, int32_t token_count) {
  Ids ids;
  for (int64_t i = 0; i < 6; ++i) {
    ids.push_back(static_cast<int32_t>((7919 * number + 104729 * i + 11) % token_count));
  }
  return ids;
}

v1::GenerateRequest ask_for(const Ids& prompt, int tokens) {
  v1::GenerateRequest request;
  request.mutable_ids()->mutable_ids()->Assign(prompt.begin(), prompt.end());
  request.mutable_stop()->set_max_tokens(tokens);
  request.mutable_stop()->set_ignore_eos(true);
  request.mutable_sampling()->set_seed(17);
  return request;
}

Ids answer(Client& client, const v1::GenerateRequest& request, const CallOptions& options = {}) {
  Ids ids;
  client.generate(
      request,
      [&](const v1::GenerateResponse& response) {
        for (const int32_t id : response.chunk().ids()) ids.push_back(id);
      },
      options);
  return ids;
}

class Smoke {
 public:
  Smoke(std::string address, int streams, int tokens)
      : address_(std::move(address)), streams_(streams), tokens_(tokens), client_(address_) {}

  void run() {
    check("serving", [this] { serving(); });
    check("generate", [this] { generate(); });
    check("session", [this] { session(); });
    check("cancel", [this] { cancel(); });
    check("streams", [this] { streams(); });
    check("drain", [this] { drain(); });
  }
  int failed() const { return failed_; }

 private:
  // Runs it and prints how it ended, with what it has said.
  void check(const char* name, const std::function<void()>& body) {
    said_.clear();
    const Clock::time_point begin = Clock::now();
    try {
      body();
      fmt::print("ok      {:<9} {:6.2f} s  {}\n", name, seconds_since(begin), said_);
    } catch (const std::exception& error) {
      ++failed_;
      fmt::print("FAILED  {:<9} {:6.2f} s  {}\n", name, seconds_since(begin), error.what());
    }
    std::fflush(stdout);
  }

  void serving() {
    client_.wait_until_serving(std::chrono::system_clock::now() + std::chrono::minutes(5));
    const v1::ModelInfo info = client_.model_info();
    token_count_ = info.token_count();
    said_ =
        fmt::format("{} on {}, {:.2f} GB of weights, {} slots of {:.1f} MB", info.name(),
                    info.backend(), static_cast<double>(info.weight_bytes()) / 1e9,
                    client_.load().slots().total(), static_cast<double>(info.state_bytes()) / 1e6);
  }

  void generate() {
    const auto request = ask_for(some_prompt(1, token_count_), 24);
    const Ids first = answer(client_, request);
    expect(first.size() == 24, fmt::format("wanted 24 tokens, got {}", first.size()));
    expect(answer(client_, request) == first, "the same request gave other tokens");
  }

  Ids turn(const std::string& session, const Ids& prompt) {
    auto request = ask_for(prompt, 12);
    request.set_session(session);
    return answer(client_, request);
  }

  void session() {
    v1::OpenSessionRequest open;
    open.set_name("smoke");
    client_.open_session(open);
    turn("smoke", some_prompt(2, token_count_));
    client_.mark_session("smoke", "here");
    v1::ForkSessionRequest fork;
    fork.set_name("smoke");
    fork.set_new_name("smoke-fork");
    client_.fork_session(fork);
    const Ids next = turn("smoke", some_prompt(3, token_count_));
    expect(turn("smoke-fork", some_prompt(3, token_count_)) == next, "the fork goes another way");
    client_.rewind_session("smoke", "here");
    expect(turn("smoke", some_prompt(3, token_count_)) == next,
           "after the rewind it goes another way");
    for (const char* name : {"smoke", "smoke-fork"}) client_.close_session(name);
  }

  // A slot that a client has left is free within a moment.
  void cancel() {
    Canceller canceller;
    int chunks = 0;
    try {
      client_.generate(ask_for(some_prompt(4, token_count_), 100000),
                       [&](const v1::GenerateResponse& response) {
                         if (response.has_chunk() && ++chunks == 3) canceller.cancel();
                       },
                       {.timeout = {}, .canceller = &canceller});
      throw std::runtime_error("the call ended as if nothing had been cancelled");
    } catch (const ClientError& error) {
      if (error.code() != grpc::StatusCode::CANCELLED) throw;
    }
    expect(all_slots_free(), "its slot is not free after 5 s: " + client_.load().DebugString());
  }

  bool all_slots_free() {
    for (int tries = 0; tries < 500; ++tries) {
      const v1::Load load = client_.load();
      if (load.slots().free() == load.slots().total()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  // All at once, on a few connections. Some of them are compared with what they give alone.
  void streams() {
    constexpr int kConnections = 8;
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < kConnections; ++i) clients.push_back(std::make_unique<Client>(address_));
    std::vector<Ids> answers(static_cast<size_t>(streams_));
    std::vector<std::string> errors(answers.size());
    std::vector<std::thread> threads;
    std::atomic<int> left = streams_;
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < streams_; ++i) {
      threads.emplace_back([&, i] {
        const auto at = static_cast<size_t>(i);
        try {
          answers[at] = answer(*clients[at % kConnections],
                               ask_for(some_prompt(100 + i, token_count_), tokens_));
        } catch (const std::exception& error) {
          errors[at] = error.what();
        }
        --left;
      });
    }
    int64_t most = 0;
    for (; left > 0; std::this_thread::sleep_for(std::chrono::milliseconds(5))) {
      most = std::max<int64_t>(most, client_.load().requests_running());
    }
    for (std::thread& thread : threads) thread.join();
    const double seconds = seconds_since(begin);
    for (size_t i = 0; i < answers.size(); ++i) {
      expect(errors[i].empty(), fmt::format("stream {}: {}", i, errors[i]));
      expect(answers[i].size() == static_cast<size_t>(tokens_),
             fmt::format("stream {} got {} tokens of {}", i, answers[i].size(), tokens_));
    }
    for (const int i : {0, streams_ / 2, streams_ - 1}) {
      expect(answer(client_, ask_for(some_prompt(100 + i, token_count_), tokens_)) ==
                 answers[static_cast<size_t>(i)],
             fmt::format("stream {} gives other tokens alone", i));
    }
    said_ = fmt::format("{} streams of {} tokens, {} running at once, {:.0f} tokens/s", streams_,
                        tokens_, most, streams_ * tokens_ / seconds);
  }

  // A request under way ends as it would have; a new one is refused.
  void drain() {
    bool drained = false;
    const v1::GenerateFinal final = client_.generate(ask_for(some_prompt(5, token_count_), 200),
                                                     [&](const v1::GenerateResponse& response) {
                                                       if (response.has_chunk() && !drained) {
                                                         Client(address_).drain(60);
                                                         drained = true;
                                                       }
                                                     });
    expect(final.usage().generated_tokens() == 200,
           fmt::format("the request under way ended after {} tokens of 200",
                       final.usage().generated_tokens()));
  }

  const std::string address_;
  const int streams_, tokens_;
  Client client_;
  int32_t token_count_ = 0;
  int failed_ = 0;
  std::string said_;
};

}  // namespace
}  // namespace recurve

int main(int argc, char** argv) {
  CLI::App app("Checks a running recurve-server, and drains it.");
  std::string address;
  int streams = 256, tokens = 32;
  app.add_option("--server", address, "HOST:PORT")->required();
  app.add_option("--streams", streams, "Streams at once")->check(CLI::Range(1, 4096));
  app.add_option("--tokens", tokens, "Of each stream")->check(CLI::Range(1, 1 << 20));
  CLI11_PARSE(app, argc, argv);
  recurve::Smoke smoke(address, streams, tokens);
  smoke.run();
  return smoke.failed() == 0 ? 0 : 1;
}
