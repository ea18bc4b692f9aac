#pragma once
#include <grpcpp/support/server_callback.h>

#include "recurve/v1/inference.pb.h"
#include "server/rpc/stream_call.h"
#include "server/serving/generation.h"

namespace recurve {

// One Generate call. Deletes itself.
class GenerateCall final
    : public StreamCall<grpc::ServerWriteReactor<grpc::ByteBuffer>, AnswerSink> {
 public:
  GenerateCall(ServiceContext& context, grpc::CallbackServerContext* call,
               const grpc::ByteBuffer* request);

 private:
  Refused read(TextRequest* asked) override;
  void send(AnswerEvent event) override;

  void write(const RequestAccepted& accepted);
  void write(const PromptScored& scored);
  void write(const AnswerDelta& delta);
  void write(const AnswerEnd& end);

  const grpc::ByteBuffer* const message_;  // valid until OnDone()
  v1::Chunk chunk_;                        // reused; empty between two messages
};

}  // namespace recurve
