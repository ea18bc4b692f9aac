#include "server/net/frame_counter.h"

#include <utility>

#include "server/observe/metrics.h"

namespace recurve {
namespace {

using Flood = FrameCounter::Flood;

// The flood that a frame may be part of; nothing for frames without a rate.
std::optional<Flood> flood_of(const FrameHead& frame) {
  const bool ack = (frame.flags & kAckFlag) != 0;
  switch (frame.kind) {
    case kDataFrame:
      if (frame.size == 0 && (frame.flags & kEndStreamFlag) == 0) return Flood::kEmpty;
      return {};
    case kResetFrame:
      return Flood::kResets;
    case kSettingsFrame:
      if (!ack) return Flood::kSettings;
      return {};
    case kPingFrame:
      if (!ack) return Flood::kPings;
      return {};
    case kHeadersFrame:
    case kContinuationFrame:
    case kPushFrame:  // not allowed for clients: gRPC ends the connection
    case kGoAwayFrame:
    case kWindowFrame:
      return {};
    default:
      return Flood::kIgnored;
  }
}

}  // namespace

FrameCounter::FrameCounter(const Shared& shared, std::string network, TenantId share)
    : resets_(shared.resets), network_(std::move(network)), bodies_(shared.bodies, share) {}

std::optional<Flood> FrameCounter::received(std::string_view bytes, Time now) {
  std::lock_guard lock(bodies_mutex_);
  std::optional<Flood> flood;
  const bool read = in_.read(
      bytes,
      [&](const FrameHead& frame) {
        flood = begin_frame(frame, now);
        return !flood && bodies_.begin(frame);
      },
      [&](const FrameHead& frame, std::string_view part) { bodies_.add(frame, part); });
  if (!flood && (!read || !bodies_.reserve())) flood = Flood::kBodies;
  return flood;
}

void FrameCounter::sent(std::string_view bytes) {
  std::lock_guard lock(bodies_mutex_);
  const auto begin = [this](const FrameHead& frame) {
    bodies_.sent(frame);
    return true;
  };
  out_.read(bytes, begin, [](const FrameHead&, std::string_view) {});
  bodies_.reserve();
}

std::optional<Flood> FrameCounter::begin_frame(const FrameHead& frame, Time now) {
  if (frame.kind == kHeadersFrame || frame.kind == kContinuationFrame) return count_block(frame);
  const auto counted = flood_of(frame);
  return counted && !spend(*counted, now) ? counted : std::nullopt;
}

// No other frame may come between the frames of a block (RFC 9113, section 6.10).
std::optional<Flood> FrameCounter::count_block(const FrameHead& frame) {
  if (frame.kind == kHeadersFrame) block_bytes_ = 0, continuations_ = 0;
  block_bytes_ += frame.size;
  continuations_ += frame.kind == kContinuationFrame ? 1 : 0;
  if (block_bytes_ > kMostHeaderBytes || continuations_ > kMostContinuations) {
    return Flood::kHeaders;
  }
  if ((frame.flags & kEndHeadersFlag) != 0) block_bytes_ = 0, continuations_ = 0;
  return {};
}

bool FrameCounter::spend(Flood kind, Time now) {
  if (kind == Flood::kResets) return resets_->spend(network_, now);
  return budgets_[static_cast<size_t>(kind)].spend(kRates[static_cast<size_t>(kind)], now);
}

const char* name_of(Flood flood) { return Metrics::kFloods[static_cast<size_t>(flood)]; }

}  // namespace recurve
