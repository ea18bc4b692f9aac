#pragma once
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "recurve/v1/sessions.pb.h"
#include "server/request/executor.h"
#include "server/request/session_command.h"
#include "server/rpc/service_context.h"

namespace recurve {

// One Export call: sends a state in chunks, as fast as the client reads. Deletes itself.
class ExportCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, private Executor::Task {
 public:
  ExportCall(ServiceContext& context, grpc::CallbackServerContext* call,
             const grpc::ByteBuffer& request);

  void OnWriteDone(bool ok) override;
  void OnCancel() override { cancelled_ = true; }
  void OnDone() override { delete this; }

 private:
  void run() override;  // the engine has answered
  void begin();
  void write_next();
  void finish(Refused refusal);

  ServiceContext& context_;
  const std::shared_ptr<ServedModel> model_ = context_.core.model();
  grpc::CallbackServerContext* const call_;
  SessionResult result_;
  uint64_t offset_ = 0, total_ = 0;
  grpc::ByteBuffer message_;
  std::atomic<bool> cancelled_{false};
};

// One Import call: receives a state, checks it on a text thread and passes it to the engine.
// Deletes itself.
class ImportCall final : public grpc::ServerReadReactor<grpc::ByteBuffer>, private Executor::Task {
 public:
  ImportCall(ServiceContext& context, grpc::CallbackServerContext* call,
             grpc::ByteBuffer* response);

  void OnReadDone(bool ok) override;
  void OnCancel() override {}  // reads fail then
  void OnDone() override { delete this; }

 private:
  Refused take(const v1::ImportRequest& message);
  void run() override;  // the state is complete, or the engine has answered
  Refused check();
  void hand_over();
  void finish(Refused refusal);

  ServiceContext& context_;
  const std::shared_ptr<ServedModel> model_ = context_.core.model();
  grpc::CallbackServerContext* const call_;
  grpc::ByteBuffer* const response_;
  grpc::ByteBuffer incoming_;
  Identity caller_;
  bool started_ = false;
  SessionCommand command_;
  std::string state_;
  bool too_long_ = false;    // more than any state of this model
  ByteBudget::Share share_;  // for the largest state
  bool answered_ = false;
  SessionResult result_;
};

}  // namespace recurve
