#pragma once

#include <memory>

#include "server/text/sentencepiece_model.h"
#include "server/text/unigram_model.h"

namespace recurve {

// True for a SentencePiece model of type Unigram that does nothing but segment: spaces become
// marks, and characters that no piece holds become bytes. What else there is, such as other
// normalisation, is the library's business.
bool segments_alone(const SentencePieceModel& model);

// The segmentation of such a model without the library, which takes some hundred bytes of memory
// for a byte of text that it cannot cut.
std::unique_ptr<const UnigramModel> sentencepiece_unigram(const SentencePieceModel& model);

}  // namespace recurve
