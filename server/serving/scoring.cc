#include "server/serving/scoring.h"

#include <chrono>
#include <utility>

namespace recurve {
namespace {

// Ids given to the engine or waiting for it, and not seen scored: some chunks ahead, so that it is
// never idle while the text comes fast enough.
constexpr int64_t kAhead = 4096;

}  // namespace

// It is on the text threads throughout: pieces may be long, and nobody waits for single tokens.
Scoring::Scoring(ServerCore& core, ScoreSink& door)
    : ServedCall(core, door, core.text_threads),
      door_(door),
      input_(model_->text, static_cast<size_t>(core.options.max_unbroken_bytes), &unwanted_) {}

void Scoring::look(bool) {
  if (submitted()) take_scored();
  if (concluded_ || refusal_ || unwanted()) return;
  if (const Refused refused = read_on()) refuse(*refused);
}

Refused Scoring::read_on() {
  Refused refused = take_piece();
  const int64_t room = kAhead - (given_tokens_ - scored_tokens_);
  if (refused || room <= 0) return refused;
  refused = input_.read(static_cast<size_t>(room));
  if (refused) return refused;
  if (!submitted()) {
    const bool enough = input_.complete() || static_cast<int64_t>(input_.ids()) >= kAhead;
    if (enough) refused = start_scoring();
  } else {
    give_more();
  }
  if (!refused && input_.hungry() && !std::exchange(asked_, true)) door_.ask();
  return refused;
}

Refused Scoring::take_piece() {
  using Arrival = ScoreSink::Arrival;
  if (arrival_ == Arrival::kNothing) {
    arrival_ = door_.arrived();
    if (arrival_ == Arrival::kNothing) return {};
    if (arrival_ == Arrival::kPiece) {
      if (Refused refused = hold(door_.piece_bytes())) return refused;
    }
  }
  const bool is_piece = arrival_ == Arrival::kPiece;
  if (is_piece && !may_read(static_cast<size_t>(door_.piece_bytes()))) return {};
  arrival_ = Arrival::kNothing;
  asked_ = false;
  if (!is_piece) {
    input_.end();
    return {};
  }
  ScorePiece piece;
  Refused refused = door_.read(&piece);
  return refused ? refused : input_.add(std::move(piece));
}

// Only now, with some text to go on with: a slot is not held for a client that has just begun.
Refused Scoring::start_scoring() {
  ParsedRequest parsed;
  const ScoreOptions& options = input_.options();
  if (Refused refused = validate(options, &parsed)) return refused;
  Request& request = parsed.request;
  std::vector<int32_t>& ids = request.prompt.ids = input_.take_ids();
  if (ids.empty()) return invalid("text", "the text must have at least one token, got none");
  const auto bos = bos_for(ids, options.add_special_tokens, input_.is_text(), model_->text);
  if (bos) ids.insert(ids.begin(), *bos);
  given_tokens_ = static_cast<int64_t>(ids.size());
  if (!input_.complete()) {
    using std::chrono::duration_cast;
    const std::chrono::duration<double> patience(core_.options.stall_seconds);
    feed_ = std::make_shared<PromptFeed>(duration_cast<PromptFeed::Duration>(patience));
    request.more_prompt = feed_;
  }
  return submit(parsed);
}

void Scoring::give_more() {
  if (feed_ == nullptr) return;
  const std::vector<int32_t> ids = input_.take_ids();
  if (ids.empty() && !input_.complete()) return;
  given_tokens_ += static_cast<int64_t>(ids.size());
  feed_->push(ids);
  if (input_.complete()) std::exchange(feed_, nullptr)->close();
  model_->queue.wake();
}

// What the engine has begun it ends first.
void Scoring::refuse(const Refusal& refusal) {
  if (!submitted()) return end(refusal);
  refusal_ = refusal;
  streams_[0]->cancel();
  model_->queue.wake();
}

void Scoring::take_scored() {
  TokenStream::Gathered gathered = take(0);
  if (gathered.accepted) {
    door_.send(
        RequestAccepted{.request_id = id_, .prompt_tokens = gathered.accepted->prompt_tokens});
  }
  if (!gathered.prompt.empty()) add_scored(std::move(gathered.prompt));
  if (gathered.ending) conclude(*gathered.ending);
}

void Scoring::add_scored(std::vector<SampledToken> tokens) {
  const bool with_tokens = input_.options().top.has_value();
  std::vector<SampledToken> told;
  size_t size = 0;
  for (SampledToken& token : tokens) {
    ++scored_tokens_;
    sum_logprob_ += static_cast<double>(token.logprob);
    if (!with_tokens) continue;
    size += size_of(token, true);
    told.push_back(std::move(token));
    if (size < kEventBytes) continue;
    send_progress(std::exchange(told, {}));
    size = 0;
  }
  if (!with_tokens || size > 0) send_progress(std::move(told));
}

void Scoring::send_progress(std::vector<SampledToken> tokens) {
  door_.send(ScoreProgress{
      .scored_tokens = scored_tokens_, .sum_logprob = sum_logprob_, .tokens = std::move(tokens)});
}

void Scoring::conclude(const StreamEnd& ending) {
  concluded_ = true;
  const Refused refused = refusal_ ? refusal_ : failure_of(ending);
  if (!refused) {
    door_.send(ScoreEnd{.scored_tokens = scored_tokens_,
                        .sum_logprob = sum_logprob_,
                        .text_bytes = input_.bytes(),
                        .usage = ending});
  }
  end(refused, &ending);
}

}  // namespace recurve
