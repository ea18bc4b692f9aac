#include "server/net/frame_counter.h"

#include <algorithm>
#include <utility>

namespace recurve {
namespace {

// RFC 9113, section 6.
enum Kind : uint8_t {
  kData = 0,
  kHeadersFrame = 1,
  kResetStream = 3,
  kSettingsFrame = 4,
  kPushPromise = 5,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9
};
constexpr uint8_t kEndStream = 1, kAck = 1, kEndHeaders = 4;

using Flood = FrameCounter::Flood;

// What a frame counts as; nothing where any number of them is fine.
std::optional<Flood> kind_of(uint8_t kind, uint8_t flags, size_t size) {
  switch (kind) {
    case kData:
      if (size == 0 && (flags & kEndStream) == 0) return Flood::kEmpty;
      return {};
    case kResetStream:
      return Flood::kResets;
    case kSettingsFrame:
      if ((flags & kAck) == 0) return Flood::kSettings;
      return {};
    case kPing:
      if ((flags & kAck) == 0) return Flood::kPings;
      return {};
    case kHeadersFrame:
    case kContinuation:
    case kPushPromise:  // which no client may send: gRPC ends the connection
    case kGoAway:
    case kWindowUpdate:
      return {};
    default:
      return Flood::kIgnored;
  }
}

}  // namespace

std::shared_ptr<FrameCounter::Resets> FrameCounter::make_resets() {
  return std::make_shared<Resets>(kRates[static_cast<size_t>(Flood::kResets)]);
}

FrameCounter::FrameCounter(std::shared_ptr<Resets> resets, std::string network)
    : resets_(std::move(resets)), network_(std::move(network)) {}

std::optional<Flood> FrameCounter::count(std::string_view bytes, Time now) {
  while (!bytes.empty()) {
    const size_t skipped = std::min(to_skip_, bytes.size());
    to_skip_ -= skipped;
    bytes.remove_prefix(skipped);
    if (bytes.empty()) break;
    bytes.remove_prefix(finish_head(bytes));
    if (head_bytes_ < kHead) break;
    head_bytes_ = 0;
    if (const auto flood = begin_frame(now)) return flood;
  }
  return {};
}

size_t FrameCounter::finish_head(std::string_view bytes) {
  const size_t more = std::min(kHead - head_bytes_, bytes.size());
  std::copy_n(bytes.begin(), more, head_.begin() + static_cast<std::ptrdiff_t>(head_bytes_));
  head_bytes_ += more;
  return more;
}

std::optional<Flood> FrameCounter::begin_frame(Time now) {
  const size_t size = size_t{head_[0]} << 16 | size_t{head_[1]} << 8 | head_[2];
  const uint8_t kind = head_[3], flags = head_[4];
  to_skip_ = size;
  if (kind == kHeadersFrame || kind == kContinuation) return count_block(kind, flags, size);
  const auto counted = kind_of(kind, flags, size);
  return counted && !spend(*counted, now) ? counted : std::nullopt;
}

// The frames of a block follow each other: nothing may come between (section 6.10).
std::optional<Flood> FrameCounter::count_block(uint8_t kind, uint8_t flags, size_t size) {
  if (kind == kHeadersFrame) block_bytes_ = 0, continuations_ = 0;
  block_bytes_ += size;
  continuations_ += kind == kContinuation ? 1 : 0;
  if (block_bytes_ > kMostHeaderBytes || continuations_ > kMostContinuations) {
    return Flood::kHeaders;
  }
  if ((flags & kEndHeaders) != 0) block_bytes_ = 0, continuations_ = 0;
  return {};
}

bool FrameCounter::spend(Flood kind, Time now) {
  if (kind == Flood::kResets) return resets_->spend(network_, now);
  return budgets_[static_cast<size_t>(kind)].spend(kRates[static_cast<size_t>(kind)], now);
}

const char* name_of(Flood flood) {
  static constexpr std::array<const char*, FrameCounter::kFloods> kNames = {
      "resets", "pings", "settings", "empty_data", "ignored_frames", "headers"};
  return kNames[static_cast<size_t>(flood)];
}

}  // namespace recurve
