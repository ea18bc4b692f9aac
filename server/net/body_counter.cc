#include "server/net/body_counter.h"

#include <algorithm>
#include <utility>

namespace recurve {
namespace {

// What is taken of the budget at once, after the first ByteBudget::kSmall bytes.
constexpr int64_t kPiece = 256 << 10;

bool ends_stream(const FrameHead& frame) {
  const bool may_end = frame.kind == kDataFrame || frame.kind == kHeadersFrame;
  return frame.kind == kResetFrame || (may_end && (frame.flags & kEndStreamFlag) != 0);
}

}  // namespace

BodyCounter::BodyCounter(std::shared_ptr<ByteBudget> budget, TenantId share)
    : budget_(std::move(budget)), share_(share) {}

bool BodyCounter::begin(const FrameHead& frame) {
  if (ends_stream(frame) && (frame.kind != kDataFrame || frame.size == 0)) {
    end(frame.stream);
  } else if (frame.kind == kHeadersFrame) {
    bodies_.try_emplace(frame.stream);
  } else if (frame.kind == kDataFrame) {
    awaits_padding_ = (frame.flags & kPaddedFlag) != 0;
    data_missing_ = frame.size;
    const auto body = bodies_.find(frame.stream);
    if (body != bodies_.end()) body->second.ends_stream = ends_stream(frame);
  }
  return bodies_.size() <= kMostStreams;
}

void BodyCounter::add(const FrameHead& frame, std::string_view part) {
  if (frame.kind != kDataFrame) return;
  if (std::exchange(awaits_padding_, false)) {
    const size_t padding = 1 + size_t{static_cast<uint8_t>(part.front())};
    data_missing_ -= std::min(padding, data_missing_);
    part.remove_prefix(1);
  }
  const auto body = bodies_.find(frame.stream);
  if (body == bodies_.end()) return;
  const std::string_view data = part.substr(0, data_missing_);
  data_missing_ -= data.size();
  add(&body->second, data);
  if (data_missing_ == 0 && body->second.ends_stream) end(frame.stream);
}

void BodyCounter::add(Body* body, std::string_view data) {
  while (!data.empty()) {
    if (body->head_bytes < body->head.size()) {
      body->head[body->head_bytes++] = static_cast<uint8_t>(data.front());
      data.remove_prefix(1);
      if (body->head_bytes < body->head.size()) continue;
      for (size_t i = 1; i < body->head.size(); ++i) {
        body->missing = body->missing << 8 | body->head[i];
      }
    }
    const auto more = std::min(body->missing, static_cast<int64_t>(data.size()));
    body->missing -= more;
    body->received += more;
    bytes_ += more;
    data.remove_prefix(static_cast<size_t>(more));
    if (body->missing > 0) continue;
    bytes_ -= body->received;
    *body = {.ends_stream = body->ends_stream};
  }
}

void BodyCounter::sent(const FrameHead& frame) {
  if (ends_stream(frame)) end(frame.stream);
}

void BodyCounter::end(uint32_t stream) {
  const auto body = bodies_.find(stream);
  if (body == bodies_.end()) return;
  bytes_ -= body->second.received;
  bodies_.erase(body);
}

bool BodyCounter::reserve() {
  if (bytes_ == 0 && !shares_.empty()) {
    shares_.clear();
    reserved_ = 0;
  }
  if (bytes_ <= reserved_) return true;
  const int64_t more =
      bytes_ <= ByteBudget::kSmall ? ByteBudget::kSmall : std::max(kPiece, bytes_ - reserved_);
  ByteBudget::Share share = budget_->take(more, share_);
  if (!share) return false;
  shares_.push_back(std::move(share));
  reserved_ += more;
  return true;
}

}  // namespace recurve
