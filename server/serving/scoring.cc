#include "server/serving/scoring.h"

#include <chrono>
#include <utility>

namespace recurve {
namespace {

// Ids that are passed to the engine or wait for it, and are not scored yet: some chunks, so that
// the engine is never idle if the text arrives fast enough.
constexpr int64_t kAhead = 4096;

Refused no_tokens() { return invalid("text", "the text must have at least one token, got none"); }

}  // namespace

// Runs on the text threads only: pieces may be long, and no client waits for single tokens.
Scoring::Scoring(ServerCore& core, ScoreSink& sink)
    : ServedCall(core, sink, core.text_threads), sink_(sink) {}

void Scoring::poll(bool) {
  if (submitted()) take_scored();
  if (concluded_ || refusal_ || unwanted()) return;
  if (const Refused refused = read_on()) refuse(*refused);
}

Refused Scoring::read_on() {
  Refused refused = take_piece();
  const int64_t capacity = kAhead - (fed_tokens_ - scored_tokens_);
  if (refused || capacity <= 0) return refused;
  if (input_) refused = input_->read(static_cast<size_t>(capacity));
  if (refused) return refused;
  if (input_ && !submitted()) {
    const bool enough = input_->complete() || static_cast<int64_t>(input_->ids()) >= kAhead;
    if (enough) refused = start_scoring();
  } else if (input_) {
    feed_ids();
  }
  if (!refused && (!input_ || input_->hungry()) && !std::exchange(asked_, true)) sink_.ask();
  return refused;
}

Refused Scoring::take_piece() {
  using Arrival = ScoreSink::Arrival;
  if (arrival_ == Arrival::kNothing) {
    arrival_ = sink_.arrived();
    if (arrival_ == Arrival::kNothing) return {};
    if (arrival_ == Arrival::kPiece) {
      if (Refused refused = reserve(sink_.piece_bytes())) return refused;
    }
  }
  const bool is_piece = arrival_ == Arrival::kPiece;
  if (is_piece && !may_read(static_cast<size_t>(sink_.piece_bytes()))) return {};
  arrival_ = Arrival::kNothing;
  asked_ = false;
  if (!is_piece) {
    if (!input_) return no_tokens();
    input_->end();
    return {};
  }
  ScorePiece piece;
  Refused refused = sink_.read(&piece);
  if (!refused && !input_) {
    piece.options->caller = caller_;
    refused = begin_input(*piece.options);
  }
  return refused ? refused : input_->add(std::move(piece));
}

Refused Scoring::begin_input(const ScoreOptions& options) {
  Refused refused = choose(options.model.model);
  if (!refused) {
    const auto most = static_cast<size_t>(core_.options.max_unbroken_bytes);
    input_.emplace(model_->text, most, &unwanted_);
  }
  return refused;
}

// Starts with some text at hand: a slot is not held for a client that has only begun to send.
Refused Scoring::start_scoring() {
  ParsedRequest parsed;
  const ScoreOptions& options = input_->options();
  if (Refused refused = validate(options, model_->text, &parsed)) return refused;
  Request& request = parsed.request;
  std::vector<int32_t>& ids = request.prompt.ids = input_->take_ids();
  if (ids.empty()) return no_tokens();
  const auto bos = bos_for(ids, options.add_special_tokens, input_->is_text(), model_->text);
  if (bos) ids.insert(ids.begin(), *bos);
  fed_tokens_ = static_cast<int64_t>(ids.size());
  if (!input_->complete()) {
    using std::chrono::duration_cast;
    const std::chrono::duration<double> patience(core_.options.stall_seconds);
    feed_ = std::make_shared<PromptFeed>(duration_cast<PromptFeed::Duration>(patience));
    request.more_prompt = feed_;
  }
  return submit(parsed);
}

void Scoring::feed_ids() {
  if (feed_ == nullptr) return;
  const std::vector<int32_t> ids = input_->take_ids();
  if (ids.empty() && !input_->complete()) return;
  fed_tokens_ += static_cast<int64_t>(ids.size());
  feed_->push(ids);
  if (input_->complete()) std::exchange(feed_, nullptr)->close();
  model_->queue.wake();
}

// A request that the engine has is ended there first.
void Scoring::refuse(const Refusal& refusal) {
  if (!submitted()) return end(refusal);
  refusal_ = refusal;
  streams_[0]->cancel();
  model_->queue.wake();
}

void Scoring::take_scored() {
  TokenStream::Gathered gathered = take(0);
  if (gathered.accepted) {
    sink_.send(
        RequestAccepted{.request_id = id_, .prompt_tokens = gathered.accepted->prompt_tokens});
  }
  if (!gathered.prompt.empty()) add_scored(std::move(gathered.prompt));
  if (gathered.ending) conclude(*gathered.ending);
}

void Scoring::add_scored(std::vector<SampledToken> tokens) {
  const bool with_tokens = input_->options().top.has_value();
  std::vector<SampledToken> sent;
  size_t size = 0;
  for (SampledToken& token : tokens) {
    ++scored_tokens_;
    sum_logprob_ += static_cast<double>(token.logprob);
    if (!with_tokens) continue;
    size += size_of(token, true);
    sent.push_back(std::move(token));
    if (size < kEventBytes) continue;
    send_progress(std::exchange(sent, {}));
    size = 0;
  }
  if (!with_tokens || size > 0) send_progress(std::move(sent));
}

void Scoring::send_progress(std::vector<SampledToken> tokens) {
  sink_.send(ScoreProgress{
      .scored_tokens = scored_tokens_, .sum_logprob = sum_logprob_, .tokens = std::move(tokens)});
}

void Scoring::conclude(const StreamEnd& ending) {
  concluded_ = true;
  const Refused refused = refusal_ ? refusal_ : failure_of(ending);
  if (!refused) {
    sink_.send(ScoreEnd{.scored_tokens = scored_tokens_,
                        .sum_logprob = sum_logprob_,
                        .text_bytes = input_->bytes(),
                        .usage = ending});
  }
  end(refused, &ending);
}

}  // namespace recurve
