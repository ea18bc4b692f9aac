#pragma once
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <optional>

namespace recurve {

// The messages that a call has to write. At most one is being written, the others wait, and the
// status goes with the last one. One thread at a time, except where noted.
class Outbox {
 public:
  void push(const google::protobuf::Message& message);
  size_t waiting() const { return messages_.size(); }
  void discard() { messages_.clear(); }
  void finish(const grpc::Status& status) { status_ = status; }

  // Whether a message is being written; if so, written() will return true. Any thread.
  bool writing();
  // The write has ended. True: notify the caller of writing(). Any thread.
  bool written();

  // The next operation, which the caller starts. Not while writing().
  enum class Next { kNothing, kWrite, kWriteLast, kFinish };
  Next next();
  const grpc::ByteBuffer* current() const { return &current_; }  // with kWrite, kWriteLast
  const grpc::Status& status() const { return *status_; }        // with kWriteLast, kFinish
  bool finished() const { return finished_; }                    // next() has returned one of those

 private:
  std::deque<grpc::ByteBuffer> messages_;
  grpc::ByteBuffer current_;
  std::optional<grpc::Status> status_;  // once finish() was called
  bool finished_ = false;
  std::atomic<bool> writing_{false};
  std::atomic<bool> more_{false};  // notify when the write ends
};

}  // namespace recurve
