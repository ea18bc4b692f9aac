#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/net/frame_reader.h"
#include "server/request/byte_budget.h"

namespace recurve {

// The messages of gRPC that have come on a connection in part. gRPC holds them until they are
// whole, and has one bound for all connections: who sends halves of messages would have those of
// others refused. So they are counted here against a budget that connections and addresses share,
// see ByteBudget. Once a message is whole, the call that takes it counts it. Thread-safe.
class BodyCounter {
 public:
  // Streams of one connection that have begun and not ended: gRPC's own bound is below.
  static constexpr size_t kMostStreams = 1 << 16;

  // share: of the budget, as Identity has it.
  BodyCounter(std::shared_ptr<ByteBudget> budget, TenantId share);

  // The next bytes that the client has sent. False: it may not hold so much; after that this is not
  // to be asked again.
  bool received(std::string_view bytes);
  // And that the server has: of a stream that it has ended, nothing is held.
  void sent(std::string_view bytes);

 private:
  // Of one stream: the message that is on its way, behind its head of five bytes (its length, and
  // whether it is compressed).
  struct Body {
    std::array<uint8_t, 5> head = {};
    size_t head_bytes = 0;
    int64_t left = 0, held = 0;  // bytes of it that have not come, and that have
    bool ends = false;           // with the frame that is being read
  };

  bool begin(const FrameHead& frame);
  bool add(const FrameHead& frame, std::string_view part);
  void add(Body* body, std::string_view data);
  void end(uint32_t stream);
  bool hold();

  const std::shared_ptr<ByteBudget> budget_;
  const TenantId share_;
  std::mutex mutex_;
  FrameReader in_{FrameReader::kPreface}, out_{0};
  size_t data_left_ = 0;         // of the data frame that is being read, without its padding
  bool awaits_padding_ = false;  // whose length is its first byte
  std::unordered_map<uint32_t, Body> bodies_;  // of streams that have not ended
  int64_t bytes_ = 0, held_ = 0;               // of all, and what of the budget there is for them
  std::vector<ByteBudget::Share> shares_;
};

}  // namespace recurve
