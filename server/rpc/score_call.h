#pragma once
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "recurve/v1/inference.pb.h"
#include "server/rpc/score_input.h"
#include "server/rpc/stream_call.h"

namespace recurve {

// One Score: reads the text as it comes, gives its ids to the engine and sums up what that says.
// Deletes itself.
//
// At most kAhead ids are under way: the next message is read when there is room, so what the engine
// has not absorbed, or the client not read, is bounded, and a client that goes on sending waits.
class ScoreCall final
    : public ReactorCall<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>> {
 public:
  ScoreCall(ServiceContext& context, grpc::CallbackServerContext* call);

  void OnReadDone(bool ok) override;

 private:
  enum class Read { kNone, kPiece, kEnd };

  grpc::Status begin() override;
  void look(bool busy) override;

  grpc::Status read_on();
  grpc::Status take_piece();
  grpc::Status start_scoring();
  void give_more();
  void refuse(const grpc::Status& status);

  void take_scored();
  void send_prompt_info(const Accepted& accepted);
  void add_scored(const std::vector<SampledToken>& tokens);
  void send_progress(v1::ScoreResponse* response);
  void conclude(const Ending& ending);

  grpc::ByteBuffer incoming_;
  std::atomic<Read> read_{Read::kNone};
  bool reading_ = false;  // a message is awaited

  ScoreInput input_;
  std::shared_ptr<PromptFeed> feed_;     // while ids are still to be given to the engine
  std::optional<grpc::Status> refusal_;  // awaits the engine's last word
  bool concluded_ = false;
  int64_t given_tokens_ = 0;  // to the engine, BOS included
  int64_t scored_tokens_ = 0;
  double sum_logprob_ = 0;  // in the order of the tokens
};

}  // namespace recurve
