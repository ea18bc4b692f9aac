#pragma once

#include <memory>

#include "server/text/sentencepiece_model.h"
#include "server/text/word_model.h"

namespace recurve {

// True for a SentencePiece model of type BPE (Llama 2's, Mistral's) whose merges can be told from
// its pieces. What else there is, such as pieces that are cut again because they are unused, is the
// library's business.
bool merges_alone(const SentencePieceModel& model);

// The segmentation of such a model's normalised text without the library, which takes some hundred
// bytes of memory for a byte of text that it cannot cut.
std::unique_ptr<const WordModel> sentencepiece_bpe(const SentencePieceModel& model);

}  // namespace recurve
