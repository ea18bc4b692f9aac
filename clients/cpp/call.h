#pragma once
#include <grpcpp/client_context.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

namespace recurve {

// Cancels a call from another thread. A call that begins after cancel() is cancelled at once, so
// one Canceller serves one call, or several that shall end together.
class Canceller {
 public:
  void cancel();
  bool cancelled() const;
  // Whether it is cancelled within the time.
  bool wait_for(std::chrono::milliseconds time);

 private:
  friend class Call;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool cancelled_ = false;
  grpc::ClientContext* context_ = nullptr;  // of the call under way, if any
};

// What every call of Client takes. The Canceller must outlive the call.
struct CallOptions {
  std::optional<std::chrono::duration<double>> timeout;  // of the whole call; absent: none
  Canceller* canceller = nullptr;
};

// A call's context, with the deadline and the Canceller of its options, for the time it runs.
class Call {
 public:
  explicit Call(const CallOptions& options);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  grpc::ClientContext* context() { return &context_; }

 private:
  grpc::ClientContext context_;
  Canceller* canceller_;
};

}  // namespace recurve
