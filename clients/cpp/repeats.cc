#include "clients/cpp/repeats.h"

#include <algorithm>
#include <string>
#include <utility>

namespace recurve {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLongestBusyPause{100};

// An earlier attempt may still run: its session serves a request, or its id is in use.
bool is_busy(grpc::StatusCode code) {
  return code == grpc::StatusCode::FAILED_PRECONDITION || code == grpc::StatusCode::ALREADY_EXISTS;
}

bool is_temporary(const grpc::Status& status) {
  const std::string& message = status.error_message();
  switch (status.error_code()) {
    case grpc::StatusCode::ABORTED:             // another server has continued the session
    case grpc::StatusCode::RESOURCE_EXHAUSTED:  // also: the outcome is unknown
    case grpc::StatusCode::UNAVAILABLE:
      return true;
    case grpc::StatusCode::CANCELLED:  // gRPC's own, of a server that ends; Abort has a sentence
      return message.empty() || message == "CANCELLED";
    default:  // by a proxy that has lost its server
      return message.find("RST_STREAM") != std::string::npos;
  }
}

}  // namespace

std::optional<milliseconds> Repeats::pause_after(const grpc::Status& status,
                                                 std::optional<milliseconds> pushback,
                                                 Clock::time_point now) {
  if (is_busy(status.error_code()) && lost_at_ && now - *lost_at_ < policy_.busy) {
    return std::exchange(busy_pause_, std::min(2 * busy_pause_, kLongestBusyPause));
  }
  if (!is_temporary(status) || ++failed_ >= policy_.attempts) return std::nullopt;
  if (status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED) lost_at_ = now;
  const milliseconds pause = pushback.value_or(backoff());
  if (pause > policy_.max_wait - waited_) return std::nullopt;
  waited_ += pause;
  return pause;
}

milliseconds Repeats::backoff() {
  milliseconds pause = std::min(policy_.backoff, policy_.max_backoff);
  for (int i = 1; i < failed_ && pause < policy_.max_backoff; ++i) {
    pause = std::min(2 * pause, policy_.max_backoff);
  }
  return milliseconds(
      std::uniform_int_distribution<int64_t>(pause.count() / 2, pause.count())(random_));
}

}  // namespace recurve
