#include "server/http/http_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "server/http/body_fields.h"
#include "server/http/connection.h"
#include "server/observe/log.h"
#include "server/serving/gathered_answer.h"

namespace recurve {

class HttpAnswer::Part final : public AnswerSink {
 public:
  Part(HttpAnswer& owner, size_t index, TextRequest asked, std::unique_ptr<ParsedRequest> parsed)
      : owner_(owner),
        index_(index),
        asked_(std::move(asked)),
        parsed_(std::move(parsed)),
        call_(new Generation(owner.core_, *this)) {}

  void open(const std::string& id, std::optional<size_t> waited) {
    alive_ = owner_.self_;
    CallMessage message{.reserved = true,
                        .waited = waited,
                        .waited_seconds = owner_.waited_seconds_,
                        .is_named = true};
    if (parsed_ != nullptr) {
      message.waited = 0;
    } else {
      message.bytes = static_cast<int64_t>(bytes_to_read(asked_));
    }
    call_->open(owner_.request_.caller, message, id);
  }
  void disconnected() { call_->disconnected(); }
  void abort(CallRegistry::Reason reason) { call_->abort(reason); }
  void written() {
    if (more_.exchange(false)) call_->poke();
  }
  void done() { call_->done(); }

 private:
  Refused read(TextRequest* asked) override {
    *asked = std::move(asked_);
    return {};
  }
  std::unique_ptr<ParsedRequest> take_parsed() override { return std::move(parsed_); }
  void send(AnswerEvent event) override { owner_.send(index_, event); }
  std::optional<Clock::time_point> deadline() const override { return owner_.deadline_; }
  std::string peer() const override { return owner_.connection_->peer(); }
  CallOrigin origin() const override { return owner_.request_.origin; }
  bool busy() override {
    if (!owner_.writing_) return false;
    more_ = true;
    return owner_.writing_;
  }
  size_t unsent() const override { return owner_.unsent(); }
  void discard() override { owner_.discard(); }
  void cut() override { owner_.connection_->cut(); }
  void finish(const Refused& refusal) override {
    finishing_ = true;
    refusal_ = refusal;
  }
  bool finished() const override { return finished_; }
  void flush() override {
    if (finishing_ && !std::exchange(finished_, true)) owner_.part_finished(refusal_);
    owner_.write_pending();
  }
  void released() override { const auto alive = std::move(alive_); }

  HttpAnswer& owner_;
  std::shared_ptr<HttpAnswer> alive_;  // the owner, from open() on
  const size_t index_;
  TextRequest asked_;
  std::unique_ptr<ParsedRequest> parsed_;  // null: asked_ is to be read
  ServedCall* const call_;
  std::atomic<bool> more_{false};

  // On the strand.
  bool finishing_ = false, finished_ = false;
  Refused refusal_;
};

HttpAnswer::HttpAnswer(std::shared_ptr<Connection> connection, ServerCore& core,
                       HttpRequest request, const MakeDialect& dialect)
    : Exchange(std::move(connection)), core_(core), request_(std::move(request)) {
  take_id();
  dialect_ = dialect(request_);
}

HttpAnswer::~HttpAnswer() { forget_id(); }

// A label does not decide whether a request is answered: one that is in use is replaced.
void HttpAnswer::take_id() {
  while (!core_.registry.name(request_.caller.tenant, request_.request_id, this)) {
    request_.request_id = make_name("r-");
  }
}

void HttpAnswer::forget_id() {
  core_.registry.forget(request_.caller.tenant, request_.request_id, this);
}

void HttpAnswer::begin() {
  self_ = std::static_pointer_cast<HttpAnswer>(shared_from_this());
  core_.registry.enter(this);
  if (const Refused refused = admit()) start(refused);
}

Refused HttpAnswer::admit() {
  if (Refused refused = core_.availability()) return refused;
  if (Refused refused = read_deadline(request_, arrival_, &deadline_)) return refused;
  const size_t bytes = request_.body.size();
  body_share_ = core_.message_bytes.take(static_cast<int64_t>(bytes), request_.caller.share());
  if (!body_share_) return refuse(EndReason::kRequestMemory);
  const auto most = static_cast<size_t>(core_.options.max_tokenising);
  if (core_.text_threads.try_post(this, bytes, most, request_.caller.share())) return {};
  return refuse(EndReason::kManyWaiting);
}

void HttpAnswer::run() {
  const auto alive = self_;
  const size_t bytes = request_.body.size();
  waited_seconds_ = seconds_between(arrival_, Clock::now());
  if (const Refused refused = read()) return start(refused);
  const auto go = [self = self_](const Refused& refused) { self->start(refused); };
  if (dialect_->prepare(&asked_, go)) start({}, bytes);
}

Refused HttpAnswer::read() {
  const Refused refused = guarded("prompt", [&] {
    if (unwanted_) return Refused(refuse(EndReason::kClientGone));
    return dialect_->read(std::move(request_.body), core_.limits(&unwanted_), &asked_);
  });
  request_.body = {};
  return refused;
}

// Reports a refusal that no call reports.
void HttpAnswer::start(Refused refused, std::optional<size_t> waited) {
  const auto alive = self_;
  if (!refused) refused = open_parts(waited);
  if (!refused) return;
  counted_as_ = CountedAs::kRefused;
  core_.registry.refused();
  refused = core_.report(std::move(refused));
  CallTrace trace(core_.options.tracer, request_.origin, arrival_);
  trace.ended(refused, nullptr, request_.request_id, request_.caller.tenant_name);
  trace.delivered();
  log_event(LogLevel::kInfo, "request_finished",
            {{"request_id", request_.request_id},
             {"trace_id", trace.id()},
             {"tenant", request_.caller.tenant_name},
             {"peer", connection_->peer()},
             {"code", code_name(refused)},
             {"reason", "refused"}});
  {
    std::lock_guard lock(mutex_);
    fail(*refused);
    conclude();
  }
  write_pending();
}

Refused HttpAnswer::open_parts(std::optional<size_t> waited) {
  if (const auto form = dialect_->gathers()) {
    const Refused refused = reserve_gathered(core_, asked_.front().model->text, request_.caller,
                                             asked_, *form, &gathered_share_);
    if (refused) return refused;
  }
  size_t parts = 0;
  {
    std::lock_guard lock(mutex_);
    if (gone_) return refuse(EndReason::kClientGone);
    is_read_ = true;
    const Refused refused = make_parts();
    if (parts_.empty()) return refused;
    if (refused) fail(*refused);
    parts = unfinished_ = parts_.size();
    counted_as_ = CountedAs::kParts;
  }
  core_.registry.leave(this);
  core_.registry.gone(/*was_refused=*/false);
  // They live until all have finished, the last of which is opened here.
  first_ = parts_[0].get();
  if (aborted_) parts_[0]->abort(CallRegistry::Reason::kAbort);
  for (size_t p = 0; p < parts; ++p) parts_[p]->open(id_of(p), waited);
  return {};
}

// As many parts as memory allows.
Refused HttpAnswer::make_parts() {
  try {
    parts_.reserve(asked_.size());
    for (TextRequest& asked : asked_) {
      const bool of_client = !asked.session.empty() && !asked.session_is_kept;
      if (of_client && !request_.idempotency_key.empty()) {
        asked.id = request_.idempotency_key;
        if (Refused refused = check_name("Idempotency-Key", asked.id)) return refused;
      }
      changes_session_ |= of_client;
      auto parsed = dialect_->take_parsed(parts_.size());
      parts_.push_back(
          std::make_unique<Part>(*this, parts_.size(), std::move(asked), std::move(parsed)));
    }
    return {};
  } catch (const std::bad_alloc&) {
    return refuse(EndReason::kNoMemory);
  }
}

// For logs.
std::string HttpAnswer::id_of(size_t part) const {
  return part == 0 ? request_.request_id : fmt::format("{}.{}", request_.request_id, part);
}

void HttpAnswer::send(size_t part, const AnswerEvent& event) {
  std::lock_guard lock(mutex_);
  if (refusal_) return;
  accepted_ = true;
  streaming_ = dialect_->streams();
  const std::string events = dialect_->take(part, event);
  if (!events.empty()) pending_ += chunk(events, request_.chunked);
}

void HttpAnswer::part_finished(const Refused& refusal) {
  std::lock_guard lock(mutex_);
  if (refusal) fail(refusal);
  if (--unfinished_ > 0) return;
  const auto go = [self = self_](const Refused& refused) { self->completed(refused); };
  if (refusal_ || gone_ || dialect_->complete(go)) conclude();
}

void HttpAnswer::completed(const Refused& refusal) {
  {
    std::lock_guard lock(mutex_);
    if (refusal) fail(refusal);
    conclude();
  }
  write_pending();
}

// Cancels the other parts, which are useless without this one.
void HttpAnswer::fail(const Refused& refusal) {
  if (refusal_) return;
  refusal_ = refusal;
  for (const auto& part : parts_) part->disconnected();
}

// A refusal is the response if nothing of a stream was sent before.
void HttpAnswer::conclude() {
  ended_ = true;
  forget_id();  // the client may use it again when it has the last byte
  if (!refusal_ && !streaming_) {
    pending_ = json_response(request_, dialect_->whole());
  } else if (!streaming_) {
    pending_ = refusal_response(request_, *refusal_,
                                /*repeatable=*/!changes_session_ || !accepted_);
  } else {
    const std::string last = refusal_ ? dialect_->broken(*refusal_) : dialect_->stream_end();
    if (!last.empty()) pending_ += chunk(last, request_.chunked);
    pending_ += last_chunk(request_.chunked);
  }
  dialect_->ended(!refusal_);
}

// Writes what is pending, unless a write is under way: written() calls this again.
void HttpAnswer::write_pending() {
  std::lock_guard lock(mutex_);
  if (gone_) pending_.clear();
  if (writing_ || last_) return;
  if (gone_ && ended_) {
    last_ = true;
    return connection_->answer_done(self_);
  }
  const bool head = streaming_ && !head_sent_;
  if (gone_ || (pending_.empty() && !ended_ && !head)) return;
  if (head) {
    head_sent_ = true;
    pending_.insert(0, stream_head(request_));
  }
  last_ = ended_;
  writing_ = true;
  connection_->write(self_, std::exchange(pending_, {}), last_);
}

size_t HttpAnswer::unsent() const {
  std::lock_guard lock(mutex_);
  return pending_.empty() ? 0 : 1;
}

void HttpAnswer::discard() {
  std::lock_guard lock(mutex_);
  pending_.clear();
}

void HttpAnswer::written(bool ok) {
  writing_ = false;
  if (!ok) client_left();
  write_pending();  // also if the client had disconnected: the end waited for this write
  std::lock_guard lock(mutex_);
  for (const auto& part : parts_) part->written();
}

// A stream without an event, as its prompt is long or waits, sends a comment.
void HttpAnswer::silent() {
  {
    std::lock_guard lock(mutex_);
    if (ended_ || !is_read_ || !dialect_->streams() || writing_ || !pending_.empty()) return;
    streaming_ = true;
    pending_ = chunk(": waiting\n\n", request_.chunked);
  }
  write_pending();
}

void HttpAnswer::client_left() {
  unwanted_ = true;
  core_.text_threads.hasten(this);
  {
    std::lock_guard lock(mutex_);
    if (gone_.exchange(true)) return;
    for (const auto& part : parts_) part->disconnected();
  }
  write_pending();
}

void HttpAnswer::abort(CallRegistry::Reason reason) {
  if (reason == CallRegistry::Reason::kModelEnds) return;  // the parts know their model
  if (reason == CallRegistry::Reason::kAbort) aborted_ = true;
  unwanted_ = true;
  if (Part* const first = first_) first->abort(reason);
}

void HttpAnswer::done() {
  const auto alive = std::move(self_);
  body_share_ = {};
  gathered_share_ = {};
  std::unique_ptr<AnswerDialect> dialect;  // goes now: other threads may still refer to this
  {
    std::lock_guard lock(mutex_);
    dialect = std::move(dialect_);
  }
  dialect.reset();
  for (const auto& part : parts_) part->done();  // before it, parts may cut the connection
  connection_.reset();
  if (counted_as_ == CountedAs::kParts) return;
  core_.registry.leave(this);
  core_.registry.gone(counted_as_ == CountedAs::kRefused);
}

}  // namespace recurve
