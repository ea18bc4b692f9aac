#include "server/serving/embedding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace recurve {
namespace {

// Events that wait for the client, beyond which nothing more is computed.
constexpr size_t kMostUnsent = 4;
// About the bytes that an input takes in addition to its text or ids: its request and its stream.
constexpr int64_t kInputBytes = 2048;

int64_t bytes_of(const EmbedRequest& asked) {
  int64_t bytes = kInputBytes * static_cast<int64_t>(asked.inputs.size());
  for (const auto& input : asked.inputs) {
    const auto* text = std::get_if<std::string>(&input);
    const size_t size = text != nullptr
                            ? text->size()
                            : std::get<std::vector<int32_t>>(input).size() * sizeof(int32_t);
    bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

TextRequest prompt_of(EmbedRequest& asked, const Identity& caller, size_t index) {
  TextRequest one{.id = asked.id,
                  .caller = caller,
                  .model = asked.model,
                  .add_special_tokens = asked.add_special_tokens,
                  .parse_special = asked.parse_special,
                  .seed = 0,
                  .max_tokens = 0,
                  .chosen = {.adapter = asked.adapter},
                  .priority = asked.priority,
                  .prefix = PrefixMode::kOff};
  one.names.prompt = "input";
  std::visit([&](auto& input) { one.prompt = std::move(input); }, asked.inputs[index]);
  return one;
}

}  // namespace

Refused check_dimensions(const EmbedRequest& asked, const ModelText& model, int32_t* dimensions) {
  if (model.width == 0) {
    return invalid("input", "the model gives no embeddings: it has no last hidden state");
  }
  *dimensions = asked.dimensions.value_or(model.width);
  if (*dimensions >= 1 && *dimensions <= model.width) return {};
  return invalid("dimensions", "dimensions must be in [1, {}], got {}", model.width, *dimensions);
}

Refused Embedding::begin() {
  EmbedRequest asked;
  Refused refused = sink_.read(&asked);
  if (!refused) refused = choose(asked.model.model);
  if (!refused) refused = check_dimensions(asked, model_->text, &dimensions_);
  if (!refused) refused = read_inputs(std::move(asked));
  if (refused) return refused;
  results_.resize(count_);
  refused = submit_more();
  if (!refused || under_way_ == 0) return refused;
  fail(std::move(refused));
  return {};
}

Refused Embedding::read_inputs(EmbedRequest asked) {
  count_ = asked.inputs.size();
  if (count_ < 1 || count_ > kMaxEmbedInputs) {
    return invalid("input", "input must be 1 to {} texts or lists of ids, got {}", kMaxEmbedInputs,
                   count_);
  }
  if (Refused refused = reserve(bytes_of(asked))) return refused;
  for (size_t i = 0; i < count_; ++i) {
    ParsedRequest& parsed = inputs_.emplace_back();
    Refused refused = validate(prompt_of(asked, caller_, i), model_->text, limits(), &parsed);
    if (refused) {
      if (count_ > 1) refused->message += fmt::format(" (input {})", i);
      return refused;
    }
    parsed.request.pooling = asked.pooling;
    tokens_ += static_cast<int64_t>(parsed.request.prompt.ids.size());
    if (tokens_ > model_->text.max_prompt_tokens) {
      return invalid("input",
                     "input must have at most {} tokens in all, got more: send it in parts",
                     model_->text.max_prompt_tokens);
    }
  }
  return {};
}

void Embedding::poll(bool) {
  take_ended();
  if (unwanted()) fail(failure_of({.reason = EndReason::kCancelled}));
  if (!refusal_) send_ready();
  if (!refusal_) {
    if (Refused refused = submit_more()) fail(std::move(refused));
  }
  if (under_way_ == 0 && (refusal_ || sent_ == count_)) conclude();
}

// Something is under way or unsent until all has been: its end leads to the next call.
Refused Embedding::submit_more() {
  const auto most = static_cast<size_t>(std::max(model_->info.slots, 1));
  while (!inputs_.empty() && under_way_ < most && sink_.unsent() <= kMostUnsent) {
    const bool full = model_->queue.waiting() >= model_->queue.max_waiting();
    if (full && under_way_ > 0) break;
    ParsedRequest next = std::move(inputs_.front());
    inputs_.pop_front();
    if (!id_.empty()) next.request.id = id_;
    if (Refused refused = submit(next)) return refused;
    ++under_way_;
  }
  return {};
}

void Embedding::take_ended() {
  for (size_t i = sent_; i < streams_.size(); ++i) {
    if (results_[i]) continue;
    TokenStream::Gathered gathered = take(i);
    if (gathered.accepted) accept();
    if (!gathered.ending) continue;
    --under_way_;
    if (Refused refused = failure_of(*gathered.ending)) fail(std::move(refused));
    results_[i] = std::move(gathered.ending);
  }
}

void Embedding::accept() {
  if (std::exchange(accepted_, true)) return;
  sink_.send(RequestAccepted{.request_id = id_, .prompt_tokens = tokens_});
}

void Embedding::send_ready() {
  for (; sent_ < streams_.size() && results_[sent_]; ++sent_) {
    StreamEnd& end = *results_[sent_];
    if (sent_ == 0) usage_.queue_seconds = end.queue_seconds;
    usage_.prompt_tokens += end.prompt_tokens;
    model_->metrics->embedded();
    usage_.prefill_seconds += end.prefill_seconds;
    sink_.send(Embedded{.input = sent_,
                        .values = of_length_1(std::exchange(end.embedding, {})),
                        .prompt_tokens = end.prompt_tokens});
  }
}

// Its first dimensions; a row of zeros stays one.
std::vector<float> Embedding::of_length_1(std::vector<float> values) const {
  values.resize(static_cast<size_t>(dimensions_));
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  const double length = squares > 0 ? std::sqrt(squares) : 1;
  for (float& value : values) value = static_cast<float>(static_cast<double>(value) / length);
  return values;
}

// The first failure ends the others, which are useless without it.
void Embedding::fail(Refused refused) {
  if (refusal_) return;
  refusal_ = std::move(refused);
  for (const auto& stream : streams_) stream->cancel();
  model_->queue.wake();
}

void Embedding::conclude() {
  usage_.reason = refusal_ ? refusal_->reason : EndReason::kLength;
  if (refusal_) return end(refusal_, &usage_);
  sink_.send(EmbedEnd{.usage = usage_});
  end({}, &usage_);
}

}  // namespace recurve
