#pragma once
#include <grpcpp/support/status.h>

#include <cstdint>
#include <vector>

#include "recurve/v1/inference.pb.h"
#include "server/rpc/validate.h"

namespace recurve {

// Messages as the ids of a conversation that begins with them or, with `continued`, of one that
// goes on with them behind an answer. Refuses with INVALID_ARGUMENT and a sentence; throws
// WorkUnwanted where the limits do.
grpc::Status read_messages(const v1::Messages& messages, bool continued, const RequestRules& rules,
                           const WorkLimits& limits, std::vector<int32_t>* ids);

// Fills the prompt of a request from messages: with a session, for a fresh one and for one that
// goes on, of which at least one must be possible.
grpc::Status read_messages(const v1::GenerateRequest& message, const RequestRules& rules,
                           const WorkLimits& limits, Request* request);

// The control token that the model's chat template writes behind an answer, where it writes one.
std::optional<int32_t> find_answer_end(const Chat& chat, const Tokenizer& tokenizer);

}  // namespace recurve
