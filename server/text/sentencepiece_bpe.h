#pragma once

#include <memory>

#include "server/text/sentencepiece_model.h"
#include "server/text/tokenizer.h"

namespace recurve {

// True for a SentencePiece model of type BPE that does nothing but merge: spaces become marks, and
// characters that no piece holds become bytes. (Llama 2's, Mistral's.) What else there is, such as
// other normalisation and pieces that a user has defined, is the library's business.
bool merges_alone(const SentencePieceModel& model);

// The tokenizer of such a model without the library, which takes some hundred bytes of memory for a
// byte of text that it cannot cut. `library`: the same by the library; it is asked for what ids
// mean.
std::unique_ptr<Tokenizer> sentencepiece_bpe(const SentencePieceModel& model,
                                             const Tokenizer& library);

}  // namespace recurve
