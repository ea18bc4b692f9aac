#pragma once

#include <memory>

#include "server/text/models/unigram_model.h"
#include "server/text/sentencepiece/sentencepiece_model.h"

namespace recurve {

// The segmentation of normalised text by a SentencePiece model of type unigram, of which `check`
// holds.
std::unique_ptr<const UnigramModel> sentencepiece_unigram(const SentencePieceModel& model);

}  // namespace recurve
