#pragma once
#include <grpcpp/support/byte_buffer.h>

#include <optional>
#include <string>

#include "recurve/v1/inference.pb.h"
#include "recurve/v1/sessions.pb.h"
#include "server/request/refusal.h"
#include "server/request/session_command.h"
#include "server/serving/events.h"
#include "server/serving/text_request.h"
#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// From the protocol's messages. Long texts and ids are moved out of them.
TextRequest to_request(v1::GenerateRequest&& message);
ScorePiece to_piece(v1::ScoreRequest&& message);
EmbedRequest to_embed(v1::EmbedRequest&& message);
TokenizeText to_text(v1::TokenizeRequest&& message);
// Refuses a constraint or a pooling that is unknown, which the others would ignore.
Refused check_known(const v1::GenerateRequest& message);
Refused check_known(const v1::EmbedRequest& message);

template <typename Request>
BindingNames chosen_of(const Request& request) {
  return {.initial_state = request.initial_state(), .adapter = request.adapter()};
}

template <typename Request>
std::optional<double> ttl_of(const Request& request) {
  return request.has_ttl_seconds() ? std::optional(request.ttl_seconds()) : std::nullopt;
}

template <typename Request>
std::optional<Durability> durability_of(const Request& request) {
  switch (request.durability()) {
    case v1::DURABILITY_NONE:
      return Durability::kNone;
    case v1::DURABILITY_LOCAL:
      return Durability::kLocal;
    case v1::DURABILITY_REMOTE:
      return Durability::kRemote;
    default:
      return std::nullopt;
  }
}

template <typename Request>
std::optional<uint64_t> epoch_of(const Request& request) {
  return request.has_expected_epoch() ? std::optional(request.expected_epoch()) : std::nullopt;
}

// To the protocol's messages.
void fill(const RequestAccepted& accepted, const std::string& model, v1::PromptInfo* to);
void fill(const SampledToken& token, const Tokenizer& tokenizer, v1::TokenLogprob* to);
void fill(const AnswerDelta& delta, const Tokenizer& tokenizer, v1::Chunk* to);
void fill(const AnswerEnd& end, v1::GenerateFinal* to);
void fill(const StreamEnd& ending, v1::Usage* to);
void fill(const CommitInfo& commit, v1::Commit* to);
void fill(const SessionInfo& info, v1::Session* to);
// The only session of a result, as a v1::Session.
grpc::ByteBuffer one_session(const SessionResult& result);

}  // namespace recurve
