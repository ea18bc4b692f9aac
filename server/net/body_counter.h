#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/net/frame_reader.h"
#include "server/request/byte_budget.h"

namespace recurve {

// Counts the bytes of incomplete gRPC messages of one connection. gRPC buffers a message until it
// is complete and has one limit for all connections, so one client's incomplete messages could
// cause those of others to be refused. Here they count against a budget with a share per connection
// and per address, see ByteBudget. The call that takes a complete message counts it from then on.
// One thread at a time.
class BodyCounter {
 public:
  // Open streams of one connection. gRPC's limit is lower.
  static constexpr size_t kMostStreams = 1 << 16;

  // share: Identity::share().
  BodyCounter(std::shared_ptr<ByteBudget> budget, TenantId share);

  // A frame from the client begins. False: too many streams.
  bool begin(const FrameHead& frame);
  // The next part of its payload.
  void add(const FrameHead& frame, std::string_view part);
  // A frame from the server: when the server ends a stream, gRPC frees what it buffered.
  void sent(const FrameHead& frame);
  // Adjusts what is taken of the budget to the bytes counted. False: the budget is exhausted.
  bool reserve();

 private:
  // The incomplete message of one stream, after its head of five bytes: the compression flag and
  // the length.
  struct Body {
    std::array<uint8_t, 5> head = {};
    size_t head_bytes = 0;
    int64_t missing = 0, received = 0;  // bytes
    bool ends_stream = false;           // with the current frame
  };

  void add(Body* body, std::string_view data);
  void end(uint32_t stream);

  const std::shared_ptr<ByteBudget> budget_;
  const TenantId share_;
  size_t data_missing_ = 0;      // of the current data frame, without its padding
  bool awaits_padding_ = false;  // the frame's first byte, the length of the padding, comes next
  std::unordered_map<uint32_t, Body> bodies_;  // by open stream
  int64_t bytes_ = 0, reserved_ = 0;           // of all bodies
  std::vector<ByteBudget::Share> shares_;
};

}  // namespace recurve
