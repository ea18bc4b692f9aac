#pragma once

#include <memory>

#include "server/text/sentencepiece_model.h"
#include "server/text/unigram_model.h"

namespace recurve {

// The segmentation of normalised text by a SentencePiece model of type unigram, of which `check`
// holds.
std::unique_ptr<const UnigramModel> sentencepiece_unigram(const SentencePieceModel& model);

}  // namespace recurve
