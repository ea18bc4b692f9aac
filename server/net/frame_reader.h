#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace recurve {

// The header of an HTTP/2 frame (RFC 9113, section 4.1).
struct FrameHead {
  size_t size = 0;  // of the payload
  uint8_t kind = 0, flags = 0;
  uint32_t stream = 0;
};

// RFC 9113, section 6.
enum FrameKind : uint8_t {
  kDataFrame = 0,
  kHeadersFrame = 1,
  kResetFrame = 3,
  kSettingsFrame = 4,
  kPushFrame = 5,
  kPingFrame = 6,
  kGoAwayFrame = 7,
  kWindowFrame = 8,
  kContinuationFrame = 9
};
inline constexpr uint8_t kEndStreamFlag = 1, kAckFlag = 1, kEndHeadersFlag = 4, kPaddedFlag = 8;

// Splits the bytes that one side of a connection sends into frames. One thread at a time.
class FrameReader {
 public:
  static constexpr size_t kPreface = 24;  // bytes that a client sends first

  explicit FrameReader(size_t preface) : missing_(preface) {}

  // The next bytes. Calls begin(head) for each frame that begins, and payload(head, part) for each
  // part of its payload. If begin() returns false, stops and returns false.
  template <typename Begin, typename Payload>
  bool read(std::string_view bytes, const Begin& begin, const Payload& payload) {
    while (!bytes.empty()) {
      const std::string_view part = bytes.substr(0, missing_);
      missing_ -= part.size();
      bytes.remove_prefix(part.size());
      if (begun_ && !part.empty()) payload(frame_, part);
      if (bytes.empty()) return true;
      if (!finish_head(&bytes)) return true;
      if (!begin(frame_)) return false;
    }
    return true;
  }

 private:
  bool finish_head(std::string_view* bytes) {
    const size_t more = std::min(head_.size() - head_bytes_, bytes->size());
    std::copy_n(bytes->begin(), more, head_.begin() + static_cast<std::ptrdiff_t>(head_bytes_));
    head_bytes_ += more;
    bytes->remove_prefix(more);
    if (head_bytes_ < head_.size()) return false;
    head_bytes_ = 0;
    begun_ = true;
    frame_ = {.size = size_t{head_[0]} << 16 | size_t{head_[1]} << 8 | head_[2],
              .kind = head_[3],
              .flags = head_[4],
              .stream = (uint32_t{head_[5]} << 24 | uint32_t{head_[6]} << 16 |
                         uint32_t{head_[7]} << 8 | head_[8]) &
                        0x7fffffff};
    missing_ = frame_.size;
    return true;
  }

  size_t missing_;      // bytes of the preface, or of the current payload
  bool begun_ = false;  // the preface is read
  FrameHead frame_ = {};
  std::array<uint8_t, 9> head_ = {};
  size_t head_bytes_ = 0;
};

}  // namespace recurve
