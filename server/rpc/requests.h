#pragma once
#include "recurve/v1/inference.pb.h"
#include "server/request/refusal.h"
#include "server/serving/text_request.h"

namespace recurve {

// What messages of the protocol say, as all doors have it. Long texts and ids are moved out of the
// messages.
TextRequest to_request(v1::GenerateRequest&& message);
// A message that says something that this server does not know, and would be left out.
Refused check_known(const v1::GenerateRequest& message);
ScorePiece to_piece(v1::ScoreRequest&& message);
TokenizeText to_text(v1::TokenizeRequest&& message);

}  // namespace recurve
