#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/serving/generation.h"
#include "server/serving/scoring.h"

namespace recurve::testing {

// The simplest sink: events go to a list, at once, or not while it is held. The test is the
// client. Base: AnswerSink or ScoreSink; Event: what it sends.
template <typename Base, typename Event>
class FakeSinkOf : public Base {
 public:
  explicit FakeSinkOf(bool held) : held_(held) {}
  std::optional<Clock::time_point> deadline() const override { return deadline_; }
  std::string peer() const override { return "test"; }
  CallOrigin origin() const override { return origin_; }
  bool busy() override {
    std::lock_guard lock(mutex_);
    return writing_;
  }
  size_t unsent() const override { return unsent_.size(); }
  void discard() override { unsent_.clear(); }
  void cut() override { leave(); }
  void finish(const Refused& refusal) override {
    refusal_ = refusal;
    finishing_ = true;
  }
  bool finished() const override { return finished_; }
  void send(Event event) override { unsent_.push_back(std::move(event)); }
  void flush() override {
    {
      std::lock_guard lock(mutex_);
      if (gone_) unsent_.clear();
      while (!unsent_.empty() && !writing_) {
        events_.push_back(std::move(unsent_.front()));
        unsent_.pop_front();
        writing_ = held_;
      }
      if (!unsent_.empty() || writing_ || !finishing_) return changed_.notify_all();
      finished_ = true;
    }
    call_->done();
  }
  void released() override {
    std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

  // The client's side. While it is held, the first event that was written stays on its way.
  void let_go() {
    {
      std::lock_guard lock(mutex_);
      held_ = writing_ = false;
    }
    call_->poke();
  }
  void leave() {
    {
      std::lock_guard lock(mutex_);
      gone_ = true;
      writing_ = false;
    }
    call_->disconnected();
  }
  // Waits until so many events have been written; false if that is not within a minute.
  bool wait_for(size_t events) {
    return wait([&] { return events_.size() >= events; });
  }
  // Waits for the end. What comes of the call is complete then.
  bool wait_for_end() {
    return wait([&] { return released_; });
  }
  const std::vector<Event>& events() const { return events_; }
  const Refused& refusal() const { return refusal_; }
  template <typename T>
  std::vector<T> all() const {
    std::vector<T> found;
    for (const Event& event : events_) {
      if (const T* one = std::get_if<T>(&event)) found.push_back(*one);
    }
    return found;
  }

 protected:
  // The call begins; the sink outlives it.
  void open(ServedCall* call, const Identity& caller, const std::string& id = "") {
    call_ = call;
    call->open(caller, {.bytes = 100}, id);
  }
  ServedCall& call() { return *call_; }

  std::optional<Clock::time_point> deadline_;
  CallOrigin origin_;

 private:
  template <typename Condition>
  bool wait(const Condition& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(1), condition);
  }

  ServedCall* call_ = nullptr;
  // On the strand.
  std::deque<Event> unsent_;
  bool finishing_ = false, finished_ = false;
  Refused refusal_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_, writing_ = false, gone_ = false, released_ = false;
  std::vector<Event> events_;
};

// A client that asks for an answer.
class FakeSink final : public FakeSinkOf<AnswerSink, AnswerEvent> {
 public:
  struct Options {
    std::optional<Clock::duration> timeout = {};
    bool held = false;  // from the beginning
    CallOrigin origin = {};
  };
  FakeSink(ServerCore& core, TextRequest asked) : FakeSink(core, std::move(asked), Options()) {}
  FakeSink(ServerCore& core, TextRequest asked, const Options& options)
      : FakeSinkOf(options.held), asked_(std::move(asked)) {
    origin_ = options.origin;
    if (options.timeout) deadline_ = Clock::now() + *options.timeout;
    if (asked_.model.model == nullptr) asked_.model = core.models().front();
    const Identity caller = asked_.caller;
    const std::string id = asked_.id;
    open(new Generation(core, *this), caller, id);
  }

  Refused read(TextRequest* asked) override {
    *asked = std::move(asked_);
    return {};
  }
  std::string text(int32_t choice = 0) const {
    std::string text;
    for (const AnswerDelta& delta : all<AnswerDelta>()) {
      if (delta.choice == choice) text += delta.text;
    }
    return text;
  }
  std::vector<int32_t> ids(int32_t choice = 0) const {
    std::vector<int32_t> ids;
    for (const AnswerDelta& delta : all<AnswerDelta>()) {
      if (delta.choice != choice) continue;
      for (const SampledToken& token : delta.tokens) ids.push_back(token.id);
    }
    return ids;
  }
  RequestAccepted accepted() const { return std::get<RequestAccepted>(events().front()); }
  AnswerEnd last() const { return std::get<AnswerEnd>(events().back()); }

 private:
  TextRequest asked_;
};

// A client that sends a text to be scored, piece by piece.
class FakeScoreSink final : public FakeSinkOf<ScoreSink, ScoreEvent> {
 public:
  FakeScoreSink(ServerCore& core, std::vector<ScorePiece> pieces)
      : FakeSinkOf(/*held=*/false),
        pieces_(std::make_move_iterator(pieces.begin()), std::make_move_iterator(pieces.end())) {
    if (!pieces_.empty()) {
      if (!pieces_.front().options) pieces_.front().options.emplace();
      pieces_.front().options->model = core.models().front();
    }
    open(new Scoring(core, *this), kAnyone);
  }

  void ask() override {
    arrival_ = pieces_.empty() ? Arrival::kEnd : Arrival::kPiece;
    call().poke();
  }
  Arrival arrived() override { return std::exchange(arrival_, Arrival::kNothing); }
  int64_t piece_bytes() const override { return 100; }
  Refused read(ScorePiece* piece) override {
    *piece = std::move(pieces_.front());
    pieces_.pop_front();
    return {};
  }

 private:
  // On the strand.
  std::deque<ScorePiece> pieces_;
  Arrival arrival_ = Arrival::kNothing;
};

}  // namespace recurve::testing
