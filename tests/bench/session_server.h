#pragma once
#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "server/engine/engine.h"
#include "tests/bench/sessions_disk.h"
#include "tests/bench/step_bench.h"

namespace recurve::bench {

// Returns once the engine of this queue has run it.
inline void run_command(AdmissionQueue& queue, SessionCommand command) {
  std::promise<SessionResult> ended;
  command.done = [&](SessionResult result) { ended.set_value(std::move(result)); };
  queue.post(std::move(command));
  CHECK(ended.get_future().get().reason == EndReason::kDone);
}

inline void open_session(AdmissionQueue& queue, const std::string& name, Durability durability) {
  run_command(queue, {.kind = SessionCommand::Kind::kOpen, .name = name, .durability = durability});
}

// A server without frontends.
class SessionServer {
 public:
  static constexpr int kMostTogether = 256;  // requests
  static constexpr int64_t kTurnTokens = 1024;

  // folder: of durable sessions; null: none. pages: of models whose states grow; absent: for some
  // turns in each slot.
  SessionServer(const Model& model, Backend& backend, std::unique_ptr<FileSystem> folder, int slots,
                std::optional<PageLimits> pages = {})
      : vocab_(static_cast<int32_t>(model.info().vocab)),
        store_(folder == nullptr ? nullptr : new StateStore(std::move(folder), {})),
        archive_(store_ == nullptr ? nullptr : new Archive(*store_)),
        queue_(kMostTogether),
        engine_(
            model, backend, {.rows = vocab_, .usable = vocab_, .eos_ids = {}}, queue_, stats_,
            metrics_,
            {.slots = slots,
             .pages = pages.value_or(pages_for(model, slots, kTurnTokens)),
             .sessions = {.host_bytes = kPlenty, .archive = archive_.get(), .disk_bytes = kPlenty},
             .prefix = {.bytes = int64_t{256} << 20}}),
        thread_([this] { engine_.run(); }) {}
  ~SessionServer() {
    queue_.close();
    thread_.join();
  }

  void open(const std::string& name, Durability durability) {
    open_session(queue_, name, durability);
  }
  void run(SessionCommand command) { run_command(queue_, std::move(command)); }

  // Greedy, of so many tokens. session: empty: none.
  struct Turn {
    std::string session;
    int tokens = 1;
    std::vector<int32_t> prompt = {1};
    PrefixMode prefix = PrefixMode::kOff;
  };
  // Seconds to the first token, and to the end.
  struct Times {
    double first = 0, last = 0;
  };
  // Of each, in its order. All are there before the engine looks at the first of them.
  std::vector<Times> ask(std::vector<Turn> turns) {
    std::vector<Times> times(turns.size());
    std::vector<std::shared_ptr<TokenStream>> streams;
    std::promise<void> held, all_there;
    queue_.post({.kind = SessionCommand::Kind::kList, .done = [&](const SessionResult&) {
                   held.set_value();
                   all_there.get_future().wait();
                 }});
    held.get_future().wait();
    const auto began = Clock::now();
    for (Turn& turn : turns) {
      streams.push_back(std::make_shared<TokenStream>());
      streams.back()->on_ready([this] {
        const std::lock_guard lock(mutex_);
        news_ = true;
        changed_.notify_all();
      });
      Request request{.session = turn.session, .streams = {streams.back()}};
      for (const int32_t id : turn.prompt) request.prompt.ids.push_back(id % vocab_);
      request.sampling.temperature = 0;
      request.sampling.max_tokens = turn.tokens;
      request.prefix = turn.prefix;
      CHECK(queue_.push(std::move(request)) == AdmissionQueue::Admission::kAccepted);
    }
    all_there.set_value();
    for (size_t ended = 0; ended < turns.size();) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return news_; });
        news_ = false;
      }
      for (size_t s = 0; s < turns.size(); ++s) {
        const TokenStream::Gathered news = streams[s]->take();
        const double now = seconds_between(began, Clock::now());
        if (!news.tokens.empty() && times[s].first == 0) times[s].first = now;
        if (!news.ending) continue;
        CHECK(news.ending->reason == EndReason::kLength);
        times[s].last = now;
        ++ended;
      }
    }
    return times;
  }
  Times ask(const std::string& session, int tokens) {
    return ask({{.session = session, .tokens = tokens}})[0];
  }
  int64_t syncs() const { return store_->usage().syncs; }
  int64_t records() const { return store_->usage().records; }
  // Bytes written to the folder.
  int64_t written() const { return static_cast<int64_t>(store_->usage().written); }
  int64_t preemptions() const { return stats_.read().preemptions; }

 private:
  const int32_t vocab_;
  const std::unique_ptr<StateStore> store_;
  const std::unique_ptr<Archive> archive_;
  AdmissionQueue queue_;
  PublishedStats stats_;
  EngineMetrics metrics_;
  Engine engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool news_ = false;
  std::thread thread_;
};

}  // namespace recurve::bench
