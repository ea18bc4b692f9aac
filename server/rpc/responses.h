#pragma once
#include <string>

#include "recurve/v1/inference.pb.h"
#include "server/serving/events.h"
#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// Events as messages of the protocol have them.
void fill(const RequestAccepted& accepted, const std::string& model, v1::PromptInfo* to);
void fill(const SampledToken& token, const Tokenizer& tokenizer, v1::TokenLogprob* to);
void fill(const AnswerDelta& delta, const Tokenizer& tokenizer, v1::Chunk* to);
void fill(const AnswerEnd& end, v1::GenerateFinal* to);
void fill(const StreamEnd& ending, v1::Usage* to);
void fill(const CommitInfo& commit, v1::Commit* to);

}  // namespace recurve
