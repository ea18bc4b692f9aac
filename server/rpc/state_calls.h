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

// One Export: a state, chunk by chunk, as fast as the client reads. Deletes itself.
class ExportCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, private Executor::Task {
 public:
  ExportCall(ServiceContext& context, grpc::CallbackServerContext* call,
             const grpc::ByteBuffer& request);

  void OnWriteDone(bool ok) override;
  void OnCancel() override { gone_ = true; }
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
  uint64_t at_ = 0, total_ = 0;
  std::string bytes_;
  grpc::ByteBuffer message_;
  std::atomic<bool> gone_{false};
};

// One Import: the state is gathered, checked on a thread of texts, and becomes a session's.
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
  void run() override;  // all is there, or the engine has answered
  Refused check();
  void hand_over();
  void finish(Refused refusal);

  ServiceContext& context_;
  const std::shared_ptr<ServedModel> model_ = context_.core.model();
  grpc::CallbackServerContext* const call_;
  grpc::ByteBuffer* const response_;
  grpc::ByteBuffer incoming_;
  Identity caller_;
  bool begun_ = false;
  SessionCommand command_;
  std::string written_;
  bool too_long_ = false;    // more has come than any state of this model takes
  ByteBudget::Share share_;  // of what may be gathered, for all of it
  bool answered_ = false;
  SessionResult result_;
};

}  // namespace recurve
