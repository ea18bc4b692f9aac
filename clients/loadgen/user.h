#pragma once
#include <grpcpp/alarm.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/async_unary_call.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "clients/cpp/call.h"
#include "clients/cpp/repeats.h"
#include "clients/loadgen/load_run.h"
#include "clients/loadgen/worker.h"
#include "clients/loadgen/workload.h"

namespace recurve::loadgen {

// How a conversation ended.
struct ConversationEnd {
  bool failed = false;
  double retry_seconds = 0;  // after a failure: when the server would like to be asked again
};

// What all users of a run share.
struct UserContext {
  // A conversation has ended; the last that a user does of itself. May begin another, or release
  // the user.
  using OnEnd = std::function<void(User*, Worker&, ConversationEnd)>;

  const Workload& workload;
  const Stopwatch& watch;
  Pacer& pacer;
  OnEnd on_end;
  const RunOptions& options;
  // In the names of its sessions, so that no other run has them.
  const uint64_t run_id = uint64_t{std::random_device()()} << 32 | std::random_device()();
  std::atomic<bool> stopping = false;         // what ends now was cut off by the run's end
  std::atomic<int64_t> running = 0;           // requests under way
  std::atomic<int64_t> measured_running = 0;  // those of them that were due in the window
};

// A user in a conversation: opens a session where it has several turns, asks,
// reads the answer, thinks, asks again, closes. All of it happens in the worker's thread, or, where
// a turn begins, in the pacer's; never in both at a time.
class User final : public Event {
 public:
  User(UserContext& context, Worker& worker) : context_(context), worker_(worker) {}

  // Its first request was due at `due`.
  void begin(Conversation conversation, double due);
  // From any thread: the request under way, and any after it, end at once. The opening and closing
  // of a session are awaited, or the server would keep it.
  void cancel() { canceller_.cancel(); }

  void on_event(bool ok) override { (this->*then_)(ok); }

 private:
  struct Answer {
    double first = 0, last = 0;
    int64_t tokens = 0;
    std::vector<int32_t> ids = {};
  };

  void open_session();
  void session_opened(bool ok);
  void begin_turn(double due);
  void send();
  bool durable() const { return context_.options.durability != v1::DURABILITY_NONE; }
  bool repeat(void (User::*step)(bool), const grpc::Status& failure);
  void send_again(bool);
  void open_again(bool);
  v1::GenerateRequest request() const;
  void started(bool ok);
  void got_message(bool ok);
  void got_chunk(const v1::Chunk& chunk, double now);
  void request_ended(bool ok);
  void end_turn(std::string error, const std::string& sentence);
  void fill_times();
  void next_turn();
  void close_session();
  void send_close(bool ok);
  void session_closed(bool ok);

  // A context for the next operation, which cancel() reaches where it is cancellable.
  grpc::ClientContext* new_call(std::optional<double> timeout_seconds, bool cancellable);
  // What to call when the operation that begins now has ended.
  void* then(void (User::*step)(bool));

  UserContext& context_;
  Worker& worker_;
  Canceller canceller_;
  std::optional<Call> call_;
  grpc::ClientContext* grpc_context_ = nullptr;  // of call_
  void (User::*then_)(bool) = nullptr;

  Conversation conversation_;
  size_t turn_ = 0;
  std::string session_;         // empty: none is open
  double give_up_closing_ = 0;  // a session that stays busy
  std::optional<grpc::Alarm> pause_;
  ConversationEnd end_;
  std::unique_ptr<grpc::ClientAsyncReader<v1::GenerateResponse>> reader_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<v1::Session>> opening_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<v1::CloseSessionResponse>> closing_;
  v1::Session opened_;
  v1::CloseSessionResponse closed_;
  v1::GenerateResponse response_;
  grpc::Status status_;

  bool measured_ = false;  // the request under way was due in the window
  bool complete_ = false;  // it has had its last message
  Repeats repeats_;        // of the turn
  RequestRecord record_;
  std::vector<Answer> answers_;  // (forks)
};

}  // namespace recurve::loadgen
