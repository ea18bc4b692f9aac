#pragma once
#include <grpcpp/support/status.h>

#include <chrono>
#include <optional>
#include <random>

namespace recurve {

// How often and how soon a turn of a durable session is sent again.
struct RepeatPolicy {
  int attempts = 5;                        // in all
  std::chrono::milliseconds backoff{100};  // before the second attempt, then twice that
  std::chrono::milliseconds max_backoff{5000};
  std::chrono::milliseconds max_wait{60'000};  // in all
  // How long the session, or the request's id, may be in use after an attempt was lost.
  std::chrono::milliseconds busy{5000};
};

// Which failed attempts at one turn of a durable session are repeated with the same request_id: the
// server does such a turn once, whatever has become of the answers to earlier attempts.
class Repeats {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Repeats(const RepeatPolicy& policy = {}) : policy_(policy) {}

  // How long to wait before the next attempt; none: the failure is final. `pushback`: when to
  // retry, if the server named a time. The caller has not cancelled the attempt.
  std::optional<std::chrono::milliseconds> pause_after(
      const grpc::Status& status, std::optional<std::chrono::milliseconds> pushback,
      Clock::time_point now = Clock::now());
  // Whether the server may have worked on an attempt that failed.
  bool lost() const { return lost_at_.has_value(); }

 private:
  std::chrono::milliseconds backoff();

  RepeatPolicy policy_;
  int failed_ = 0;
  std::chrono::milliseconds waited_{0}, busy_pause_{5};
  std::optional<Clock::time_point> lost_at_;  // the last one
  std::minstd_rand random_{std::random_device()()};
};

}  // namespace recurve
