#pragma once
#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "server/engine/engine.h"
#include "tests/bench/step_bench.h"

namespace recurve::bench {

// An engine on its thread, and clients that read what they are sent, without end. Where states
// grow, a text that has as many tokens as a state may have is followed by the same one again.
class EngineStreams {
 public:
  // slots: for the streams and for what else is asked of the queue.
  EngineStreams(const Model& model, Backend& backend, const SamplingParams& sampling, int streams,
                int slots,
                const SessionLimits& sessions = {.host_bytes = std::numeric_limits<int64_t>::max()})
      : queue_(slots),
        engine_(
            model, backend,
            {.rows = static_cast<int32_t>(model.info().vocab),
             .usable = static_cast<int32_t>(model.info().vocab),
             .eos_ids = {}},
            queue_, stats_, metrics_,
            {.slots = slots, .pages = pages_for(model, slots, kMostTokens), .sessions = sessions}),
        vocab_(static_cast<int32_t>(model.info().vocab)),
        sampling_(sampling) {
    const bool grows = model.state_layout().grows();
    sampling_.max_tokens = grows ? kMostTokens - 1 : std::numeric_limits<int32_t>::max();
    for (int s = 0; s < streams; ++s) {
      streams_.push_back(std::make_shared<TokenStream>());
      begin(s);
    }
    thread_ = std::thread([this] { engine_.run(); });
  }
  ~EngineStreams() {
    engine_.abandon();
    thread_.join();
  }

  // Reads what has come; the tokens of all streams so far.
  int64_t read() {
    for (size_t s = 0; s < streams_.size(); ++s) {
      const TokenStream::Gathered news = streams_[s]->take();
      tokens_ += std::ssize(news.tokens);
      if (news.ending) begin(static_cast<int>(s));
    }
    return tokens_;
  }
  // Reads for so long; tokens per second meanwhile. meanwhile: called again and again. Counted from
  // one step's tokens to another's, so that it does not matter how many steps there are.
  template <typename Meanwhile>
  double rate(double seconds, const Meanwhile& meanwhile) {
    int64_t first = next_tokens(meanwhile), last = first;
    const auto began = Clock::now();
    auto ended = began;
    while (seconds_between(began, ended) < seconds) {
      last = next_tokens(meanwhile);
      ended = Clock::now();
    }
    return static_cast<double>(last - first) / seconds_between(began, ended);
  }
  double rate(double seconds) {
    return rate(seconds, [] {});
  }

  AdmissionQueue& queue() { return queue_; }

 private:
  static constexpr int32_t kMostTokens = 4096;  // of a state that grows

  void begin(int s) {
    Request request{.prompt = {s % vocab_},
                    .sampling = sampling_,
                    .streams = {streams_[static_cast<size_t>(s)]}};
    request.sampling.seed = static_cast<uint64_t>(s);
    CHECK(queue_.push(std::move(request)) == AdmissionQueue::Admission::kAccepted);
  }
  template <typename Meanwhile>
  int64_t next_tokens(const Meanwhile& meanwhile) {
    const int64_t before = tokens_;
    while (read() == before) {
      meanwhile();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return tokens_;
  }

  AdmissionQueue queue_;
  PublishedStats stats_;
  EngineMetrics metrics_;
  Engine engine_;
  const int32_t vocab_;
  SamplingParams sampling_;
  std::vector<std::shared_ptr<TokenStream>> streams_;
  int64_t tokens_ = 0;
  std::thread thread_;
};

}  // namespace recurve::bench
