#pragma once
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <optional>

namespace recurve {

// What a call has to write: at most one message is being written, the others wait, and the status
// goes with the last. One thread at a time, but for what says otherwise.
class Outbox {
 public:
  void push(const google::protobuf::Message& message);
  size_t waiting() const { return messages_.size(); }
  void discard() { messages_.clear(); }
  void finish(const grpc::Status& status) { status_ = status; }

  // Whether a message is being written; if so, written() will say that somebody waits for it. Any
  // thread.
  bool writing();
  // What was being written is through, or cannot be. True if somebody is to be told. Any thread.
  bool written();

  // What is to be done next, and is taken to be under way; not while writing().
  enum class Next { kNothing, kWrite, kWriteLast, kFinish };
  Next next();
  const grpc::ByteBuffer* current() const { return &current_; }  // with kWrite, kWriteLast
  const grpc::Status& status() const { return *status_; }        // with kWriteLast, kFinish
  bool finished() const { return finished_; }                    // one of those was said

 private:
  std::deque<grpc::ByteBuffer> messages_;
  grpc::ByteBuffer current_;
  std::optional<grpc::Status> status_;  // once finish() was called
  bool finished_ = false;
  std::atomic<bool> writing_{false};
  std::atomic<bool> more_{false};  // somebody waits for the write
};

}  // namespace recurve
