#pragma once
#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "clients/cpp/connection.h"
#include "clients/loadgen/pacer.h"
#include "clients/loadgen/recorder.h"
#include "recurve/v1/inference.grpc.pb.h"
#include "recurve/v1/sessions.grpc.pb.h"

namespace recurve::loadgen {

// Something that waits for an operation of gRPC to end. At most one of its operations is under way.
class Event {
 public:
  virtual ~Event() = default;
  virtual void on_event(bool ok) = 0;  // in the worker's thread
};

class User;

// A connection, a queue of completed operations, and the thread that handles them.
class Worker {
 public:
  Worker(const Endpoint& endpoint, const Stopwatch& watch, Window window, ServiceLevel level);
  ~Worker();  // no operation is under way

  grpc::CompletionQueue* queue() { return &queue_; }
  v1::Inference::Stub& inference() { return *inference_; }
  v1::Sessions::Stub& sessions() { return *sessions_; }
  const ServerConnection& connection() const { return connection_; }
  Recorder& recorder() { return recorder_; }

  User* adopt(std::unique_ptr<User> user);
  void release(User* user);  // destroys it
  void cancel_users();
  size_t user_count() const;

  // Asks how long a completed operation waits here until it is handled; nothing where the last such
  // question has not been answered.
  void probe();
  Histogram handling_delay() const;
  double cpu_seconds() const;  // that its thread has used

 private:
  class Probe;

  void run();

  const Stopwatch& watch_;
  ServerConnection connection_;
  std::unique_ptr<v1::Inference::Stub> inference_;
  std::unique_ptr<v1::Sessions::Stub> sessions_;
  Recorder recorder_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<Probe> probe_;
  mutable std::mutex mutex_;
  std::unordered_map<User*, std::unique_ptr<User>> users_;
  mutable std::thread thread_;  // last: it uses the others; mutable for its native handle
};

}  // namespace recurve::loadgen
