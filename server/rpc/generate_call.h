#pragma once
#include <grpcpp/support/server_callback.h>

#include <optional>
#include <vector>

#include "recurve/v1/inference.pb.h"
#include "server/rpc/answer.h"
#include "server/rpc/stream_call.h"

namespace recurve {

// One Generate: from the message to the last word on every choice. Deletes itself.
class GenerateCall final : public ReactorCall<grpc::ServerWriteReactor<grpc::ByteBuffer>> {
 public:
  GenerateCall(ServiceContext& context, grpc::CallbackServerContext* call,
               const grpc::ByteBuffer* request);

 private:
  struct Choice {
    Answer answer;
    // What is still to be sent; gathers while an earlier message is being written.
    v1::Chunk chunk = {};
    size_t token_bytes = 0;  // about what its ids and log-probabilities take in a message
    bool told_to_stop = false;
    std::optional<Ending> ending = {};
    std::optional<Clock::time_point> last_token = {};
  };

  grpc::Status begin() override;
  void look(bool busy) override;

  void look_at(size_t index, bool busy);
  void send_prompt_info(const Accepted& accepted);
  void send_prompt_logprobs(const std::vector<SampledToken>& tokens);
  void add_tokens(size_t index, const TokenStream::Gathered& gathered);
  void send_chunk(size_t index);
  void steer(size_t index, bool new_tokens);
  void time_tokens(Choice& choice, size_t tokens);
  void conclude();
  void send_final(Ending* total);

  const grpc::ByteBuffer* const message_;  // valid until done
  bool acknowledges_ = false;
  bool logprobs_ = false;
  uint64_t seed_ = 0;
  bool accepted_ = false;
  std::vector<Choice> choices_;
  v1::GenerateResponse response_;  // reused; empty between two messages
};

}  // namespace recurve
