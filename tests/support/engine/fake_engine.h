#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/request/admission_queue.h"

namespace recurve {

// The engine's side of an admission queue without a model: plays given tokens, one a step for each
// choice, and keeps the promises of TokenStream: acceptance first, exactly one ending for each
// stream, signals applied within a step.
class FakeEngine {
 public:
  // What to answer. Tokens of choice c are tokens[c]; those after the last are `eos`.
  struct Play {
    std::vector<std::vector<int32_t>> tokens;
    std::optional<StreamEnd> refusal = {};
    std::optional<EndReason> failure = {};  // instead of `eos`
  };
  using Script = std::function<Play(const Request&)>;
  // Answers with this text, a byte a token: see FakeTokenizer.
  static Script text(std::string text) {
    return [text = std::move(text)](const Request&) {
      Play play{{{}}};
      for (const char byte : text) play.tokens[0].push_back(static_cast<unsigned char>(byte));
      return play;
    };
  }
  struct Options {
    int32_t bos = 256, eos = 257;
    std::chrono::microseconds step{0};  // at least that long
    Script script = {};                 // default: echo the prompt, without BOS
    int32_t next_likely = 0;            // from one of the likeliest ids to the next
    int64_t session_position = 0;       // of each session; they have text if it is not 0
  };

  FakeEngine(AdmissionQueue& queue, Options options)
      : queue_(queue), options_(std::move(options)), thread_([this] { run(); }) {}
  ~FakeEngine() {
    ending_ = true;
    queue_.wake();
    thread_.join();
  }

  // Takes nothing in while held: requests stay in the queue.
  void hold(bool held) {
    held_ = held;
    queue_.wake();
  }
  int running() const { return running_count_; }
  int64_t absorbed() const { return absorbed_; }    // generated tokens, by all requests
  int64_t generated() const { return generated_; }  // by all requests
  int cancelled() const { return cancelled_; }      // streams
  int64_t most_fed() const { return most_fed_; }    // ids of a prompt's rest that came at once
  // The last request that came, without its streams.
  Request last_request() const {
    std::lock_guard lock(mutex_);
    return last_request_;
  }
  std::vector<SessionCommand> commands() const {
    std::lock_guard lock(mutex_);
    return commands_;
  }
  // What the next session commands get.
  void answer_sessions(SessionResult result) {
    std::lock_guard lock(mutex_);
    session_result_ = std::move(result);
  }

 private:
  struct Running {
    std::shared_ptr<TokenStream> stream;
    SamplingParams sampling;
    std::optional<Clock::time_point> deadline;
    bool waits = false;
    std::shared_ptr<PromptFeed> feed = {};  // more of the prompt
    std::vector<int32_t> tokens = {};
    std::optional<EndReason> failure = {};
    StreamEnd ending = {};
    bool ended = false;
  };

  void run() {
    while (!ending_) {
      take();
      step();
      if (options_.step.count() > 0) std::this_thread::sleep_for(options_.step);
      if (running_.empty()) queue_.wait(next_deadline());
    }
    take();
    for (const Request& request : waiting_) refuse(request, {.reason = EndReason::kDraining});
    for (Running& r : running_) end(r, EndReason::kDraining);
  }

  void take() {
    AdmissionQueue::Arrivals arrivals = queue_.take();
    for (SessionCommand& command : arrivals.commands) command.done(run_command(command));
    for (Request& request : arrivals.requests) waiting_.push_back(std::move(request));
    std::vector<Request> still_waiting;
    for (Request& request : waiting_) {
      if (!given_up(request) && held_) {
        still_waiting.push_back(std::move(request));
      } else if (!given_up(request)) {
        start(std::move(request));
      } else {
        refuse(request,
               {.reason = request.streams.front()->signals().cancelled ? EndReason::kCancelled
                                                                       : EndReason::kDeadline});
      }
    }
    waiting_ = std::move(still_waiting);
  }

  static bool given_up(const Request& request) {
    return request.streams.front()->signals().cancelled ||
           (request.deadline && *request.deadline <= Clock::now());
  }

  std::optional<Clock::time_point> next_deadline() const {
    std::optional<Clock::time_point> next;
    for (const Request& request : waiting_) {
      if (request.deadline && (!next || *request.deadline < *next)) next = request.deadline;
    }
    return next;
  }

  void refuse(const Request& request, StreamEnd ending) {
    if (ending.reason == EndReason::kCancelled)
      cancelled_ += static_cast<int>(request.streams.size());
    queue_.count_removed(1);
    for (const auto& stream : request.streams) stream->finish(ending);
  }

  std::vector<int32_t> echo(const Request& request) const {
    const std::vector<int32_t>& ids = request.prompt.ids;
    const bool begins = !ids.empty() && ids.front() == options_.bos;
    return {ids.begin() + (begins ? 1 : 0), ids.end()};
  }

  void start(Request request) {
    Play play = options_.script ? options_.script(request) : Play{{echo(request)}};
    {
      std::lock_guard lock(mutex_);
      last_request_ = request;
      last_request_.streams.clear();
    }
    if (play.refusal) return refuse(request, *play.refusal);
    queue_.count_removed(1);
    const std::vector<int32_t>& input = request.prompt.ids;
    StreamEnd ending{.prompt_tokens = static_cast<int64_t>(input.size()), .queue_seconds = 0.25};
    if (request.pooling) ending.embedding = {static_cast<float>(input.size()), 4, 0, 12};
    const bool all_there = request.more_prompt == nullptr;
    const int64_t known = all_there ? ending.prompt_tokens : 0;
    for (auto& s : request.streams) {
      const int64_t before = request.session.empty() ? 0 : options_.session_position;
      s->accept({.prompt_tokens = known, .session_position = before, .continues_text = before > 0});
    }
    if (request.sampling.prompt_logprobs >= 0) {
      score(*request.streams.front(), std::span(input).subspan(1), request.sampling);
    }
    for (size_t c = 0; c < request.streams.size(); ++c) {
      running_.push_back(
          {.stream = request.streams[c],
           .sampling = request.sampling,
           .deadline = request.deadline,
           .waits = request.wait_for_acknowledgement,
           .feed = request.more_prompt,
           .tokens = c < play.tokens.size() ? play.tokens[c] : std::vector<int32_t>(),
           .failure = play.failure,
           .ending = ending});
      const bool done = request.sampling.max_tokens == 0 && all_there;
      if (done) end(running_.back(), EndReason::kLength);
    }
  }

  // Every token has log-probability -1, and itself as the likeliest.
  SampledToken sampled(int32_t id, int logprobs) const {
    SampledToken token{.id = id, .logprob = -1};
    for (int k = 0; k < logprobs; ++k) {
      token.top.push_back({id + k * options_.next_likely, -1.0f - static_cast<float>(k)});
    }
    return token;
  }

  void score(TokenStream& stream, std::span<const int32_t> ids,
             const SamplingParams& sampling) const {
    std::vector<SampledToken> scored;
    for (const int32_t id : ids) scored.push_back(sampled(id, sampling.prompt_logprobs));
    stream.push_prompt(std::move(scored));
  }

  void absorb_more(Running& r) {
    std::vector<int32_t> ids;
    const bool more = r.feed->take(&ids);
    r.ending.prompt_tokens += static_cast<int64_t>(ids.size());
    most_fed_ = std::max(most_fed_.load(), static_cast<int64_t>(ids.size()));
    if (!ids.empty()) score(*r.stream, ids, r.sampling);
    if (!more) return end(r, EndReason::kLength);
    // By real time: a test may hold the clock, and move it by minutes just now.
    if (ids.empty()) queue_.wait(std::chrono::steady_clock::now() + std::chrono::milliseconds(1));
  }

  void step() {
    for (Running& r : running_) {
      if (!r.ended) step(r);
    }
    std::erase_if(running_, [](const Running& r) { return r.ended; });
    count();
  }

  void step(Running& r) {
    const TokenStream::ClientSignals signals = r.stream->signals();
    if (signals.stop_after && r.ending.generated_tokens >= *signals.stop_after) {
      return end(r, EndReason::kStopString);
    }
    if (signals.cancelled) {
      ++cancelled_;
      return end(r, EndReason::kCancelled);
    }
    if (r.deadline && *r.deadline <= Clock::now()) return end(r, EndReason::kDeadline);
    if (r.feed != nullptr) return absorb_more(r);
    if (r.waits && signals.acknowledged < r.ending.generated_tokens) return;
    if (r.ending.generated_tokens > 0) ++absorbed_;

    const auto index = static_cast<size_t>(r.ending.generated_tokens);
    if (index >= r.tokens.size() && r.failure) return end(r, *r.failure);
    ++r.ending.generated_tokens;
    ++generated_;
    const int32_t id = index < r.tokens.size() ? r.tokens[index] : options_.eos;
    const auto& stops = r.sampling.stop_ids;
    const bool eos = id == options_.eos && !r.sampling.ignore_eos;
    const bool stop = std::find(stops.begin(), stops.end(), id) != stops.end();
    SampledToken token = sampled(id, r.sampling.logprobs);
    if (eos || stop) {
      r.ending.stop_id = id;
      last(r, std::move(token), eos ? EndReason::kEos : EndReason::kStopId);
    } else if (r.ending.generated_tokens >= r.sampling.max_tokens) {
      last(r, std::move(token), EndReason::kLength);
    } else {
      r.stream->push(std::move(token));
    }
  }

  void last(Running& r, SampledToken token, EndReason reason) {
    r.ending.reason = reason;
    r.ended = true;
    count();
    r.stream->push_last(std::move(token), r.ending);
  }

  void end(Running& r, EndReason reason) {
    if (r.ended) return;
    r.ending.reason = reason;
    r.ended = true;
    count();
    r.stream->finish(r.ending);
  }

  // Before an end is told: who has seen it sees nothing of it running.
  void count() {
    const auto running = [](const Running& r) { return !r.ended; };
    running_count_ = static_cast<int>(std::count_if(running_.begin(), running_.end(), running));
  }

  SessionResult run_command(const SessionCommand& command) {
    std::lock_guard lock(mutex_);
    commands_.push_back(command);
    commands_.back().done = nullptr;
    return session_result_;
  }

  AdmissionQueue& queue_;
  const Options options_;
  std::atomic<bool> ending_{false}, held_{false};
  std::atomic<int> running_count_{0}, cancelled_{0};
  std::atomic<int64_t> absorbed_{0}, generated_{0}, most_fed_{0};
  std::vector<Request> waiting_;
  std::vector<Running> running_;
  mutable std::mutex mutex_;
  Request last_request_;
  std::vector<SessionCommand> commands_;
  SessionResult session_result_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace recurve
