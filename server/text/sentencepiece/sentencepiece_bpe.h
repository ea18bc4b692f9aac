#pragma once

#include <memory>

#include "server/text/models/word_model.h"
#include "server/text/sentencepiece/sentencepiece_model.h"

namespace recurve {

// The segmentation of normalised text by a SentencePiece model of type BPE (Llama 2's, Mistral's),
// of which `check` holds. Throws std::runtime_error if its merges cannot be told from its pieces:
// one is UNUSED, so that it is cut again, or one has a character that is no piece.
std::unique_ptr<const WordModel> sentencepiece_bpe(const SentencePieceModel& model);

}  // namespace recurve
