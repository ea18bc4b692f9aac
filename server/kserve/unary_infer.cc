#include "server/kserve/unary_infer.h"

#include "server/rpc/messages.h"

namespace recurve {

void UnaryInfer::was_read() {
  if (request_.form.stream) {
    refuse(invalid("stream", "stream must be false, or left out, but with ModelStreamInfer"));
  }
  go();
}

void UnaryInfer::respond(inference::ModelInferResponse response) {
  *response_ = serialise(response);
}

void UnaryInfer::flush() {
  if (!finishing_ || finished_ || !may_conclude()) return;
  finished_ = true;
  Finish(context_.status_for(&grpc_call_, refusal_));
}

}  // namespace recurve
