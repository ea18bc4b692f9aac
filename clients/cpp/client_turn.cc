#include <random>

#include "clients/cpp/client.h"
#include "clients/cpp/made_name.h"
#include "clients/cpp/repeats.h"

namespace recurve {
namespace {

// The options of the calls that together are one call with the given options.
class SharedTime {
 public:
  explicit SharedTime(const CallOptions& options) : options_(options) {}

  CallOptions remaining() const {
    CallOptions options = options_;
    if (options.timeout) *options.timeout -= Clock::now() - began_;
    return options;
  }
  // False if the call is cancelled, or its time ends before.
  bool wait(std::chrono::milliseconds pause) const {
    const CallOptions now = remaining();
    if (now.timeout && *now.timeout <= pause) return false;
    Canceller never;
    return !(now.canceller != nullptr ? *now.canceller : never).wait_for(pause);
  }

 private:
  using Clock = std::chrono::steady_clock;

  const CallOptions& options_;
  const Clock::time_point began_ = Clock::now();
};

// With an id by which the server knows it again, and a seed with which the answer is the same
// again.
v1::GenerateRequest repeatable(const v1::GenerateRequest& request) {
  v1::GenerateRequest turn = request;
  if (turn.request_id().empty()) turn.set_request_id(made_name());
  std::random_device random;
  if (!turn.sampling().has_seed()) {
    turn.mutable_sampling()->set_seed(uint64_t{random()} << 32 | random());
  }
  return turn;
}

}  // namespace

bool is_done_once(const v1::GenerateRequest& request, const v1::Session& session) {
  const bool durable =
      session.durability() == v1::DURABILITY_LOCAL || session.durability() == v1::DURABILITY_REMOTE;
  return durable && request.durability() != v1::DURABILITY_NONE;
}

v1::GenerateFinal Client::generate_turn(const v1::GenerateRequest& request,
                                        const OnGenerate& on_response, const OnRestart& on_restart,
                                        const CallOptions& options) {
  const v1::GenerateRequest turn = repeatable(request);
  const SharedTime time(options);
  Repeats repeats;
  bool begun = false;
  const auto on_each = [&](const v1::GenerateResponse& response) {
    begun = begun || response.has_chunk();
    on_response(response);
  };
  for (;;) {
    try {
      return generate(turn, on_each, time.remaining());
    } catch (const ClientError& error) {
      if (begun && !on_restart) throw;
      const auto pause = repeats.pause_after({error.code(), error.message()}, error.retry_after());
      if (!pause || !time.wait(*pause)) throw;
    }
    if (begun) on_restart();
    begun = false;
  }
}

}  // namespace recurve
