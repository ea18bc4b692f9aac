#pragma once

#include <memory>

#include "server/text/sentencepiece_model.h"
#include "server/text/unigram_model.h"

namespace recurve {

// True for a SentencePiece model of type Unigram of which nothing is unused.
bool segments_alone(const SentencePieceModel& model);

// The segmentation of such a model's normalised text without the library, which takes some hundred
// bytes of memory for a byte of text that it cannot cut.
std::unique_ptr<const UnigramModel> sentencepiece_unigram(const SentencePieceModel& model);

}  // namespace recurve
