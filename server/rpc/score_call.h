#pragma once
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>

#include "recurve/v1/inference.pb.h"
#include "server/rpc/stream_call.h"

namespace recurve {

// One Score: gathers the pieces, then has the engine absorb them and sums up what it says. Deletes
// itself.
class ScoreCall final
    : public ReactorCall<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>> {
 public:
  ScoreCall(ServiceContext& context, grpc::CallbackServerContext* call);

  void OnReadDone(bool ok) override;

 private:
  enum class Read { kNone, kPiece, kEnd };

  grpc::Status begin() override;
  void look(bool busy) override;

  grpc::Status read();
  grpc::Status add_piece(const v1::ScoreRequest& piece);
  grpc::Status submit_gathered();
  void send_prompt_info(const Accepted& accepted);
  void add_scored(const std::vector<SampledToken>& tokens);
  void send_progress(v1::ScoreResponse* response);
  void conclude(const Ending& ending);

  grpc::ByteBuffer incoming_;
  std::atomic<Read> read_{Read::kNone};
  bool first_ = true;  // no message yet
  ScorePrompt prompt_;
  bool with_tokens_ = false;
  int64_t text_bytes_ = 0;
  int64_t scored_tokens_ = 0;
  double sum_logprob_ = 0;
};

}  // namespace recurve
