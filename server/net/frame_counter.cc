#include "server/net/frame_counter.h"

#include <utility>

namespace recurve {
namespace {

using Flood = FrameCounter::Flood;

// What a frame counts as; nothing where any number of them is fine.
std::optional<Flood> kind_of(uint8_t kind, uint8_t flags, size_t size) {
  switch (kind) {
    case kDataFrame:
      if (size == 0 && (flags & kEndStreamFlag) == 0) return Flood::kEmpty;
      return {};
    case kResetFrame:
      return Flood::kResets;
    case kSettingsFrame:
      if ((flags & kAckFlag) == 0) return Flood::kSettings;
      return {};
    case kPingFrame:
      if ((flags & kAckFlag) == 0) return Flood::kPings;
      return {};
    case kHeadersFrame:
    case kContinuationFrame:
    case kPushFrame:  // which no client may send: gRPC ends the connection
    case kGoAwayFrame:
    case kWindowFrame:
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
  std::optional<Flood> flood;
  frames_.read(
      bytes,
      [&](const FrameHead& frame) {
        flood = begin_frame(frame, now);
        return !flood;
      },
      [](const FrameHead&, std::string_view) { return true; });
  return flood;
}

std::optional<Flood> FrameCounter::begin_frame(const FrameHead& frame, Time now) {
  const auto& [size, kind, flags, stream] = frame;
  if (kind == kHeadersFrame || kind == kContinuationFrame) return count_block(kind, flags, size);
  const auto counted = kind_of(kind, flags, size);
  return counted && !spend(*counted, now) ? counted : std::nullopt;
}

// The frames of a block follow each other: nothing may come between (section 6.10).
std::optional<Flood> FrameCounter::count_block(uint8_t kind, uint8_t flags, size_t size) {
  if (kind == kHeadersFrame) block_bytes_ = 0, continuations_ = 0;
  block_bytes_ += size;
  continuations_ += kind == kContinuationFrame ? 1 : 0;
  if (block_bytes_ > kMostHeaderBytes || continuations_ > kMostContinuations) {
    return Flood::kHeaders;
  }
  if ((flags & kEndHeadersFlag) != 0) block_bytes_ = 0, continuations_ = 0;
  return {};
}

bool FrameCounter::spend(Flood kind, Time now) {
  if (kind == Flood::kResets) return resets_->spend(network_, now);
  return budgets_[static_cast<size_t>(kind)].spend(kRates[static_cast<size_t>(kind)], now);
}

const char* name_of(Flood flood) {
  static constexpr std::array<const char*, FrameCounter::kFloods> kNames = {
      "resets",         "pings",   "settings",          "empty_data",
      "ignored_frames", "headers", "half_sent_messages"};
  return kNames[static_cast<size_t>(flood)];
}

}  // namespace recurve
