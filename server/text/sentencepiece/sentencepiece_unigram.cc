#include "server/text/sentencepiece/sentencepiece_unigram.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "server/text/models/bpe_model.h"
#include "server/text/tokenizers/token_decoder.h"

namespace recurve {
namespace {

using Piece = SentencePieceModel::Piece;

struct Scores {
  float least;
  float greatest;
};

// The scores of the normal pieces, of which there is at least one. The library looks for the
// greatest from the smallest positive number on, which the logarithm of a probability never is.
Scores scores_of(const SentencePieceModel& model) {
  std::vector<float> scores;
  for (const Piece& piece : model.pieces) {
    if (piece.type == PieceType::kNormal) scores.push_back(piece.score);
  }
  const auto [least, greatest] = std::minmax_element(scores.begin(), scores.end());
  return {*least, std::max(*greatest, std::numeric_limits<float>::min())};
}

// In the library's precision. What a user has defined scores so well that it is always taken.
double score_of(const Piece& piece, float greatest) {
  if (piece.type != PieceType::kUserDefined) return piece.score;
  return static_cast<float>(piece.name.size()) * greatest - 0.1;
}

std::array<int32_t, 256> byte_ids_of(const SentencePieceModel& model) {
  std::array<int32_t, 256> ids = BpeModel::no_bytes();
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const int byte = byte_of_name(model.pieces[i].name);
    if (model.pieces[i].type == PieceType::kByte)
      ids[static_cast<size_t>(byte)] = static_cast<int32_t>(i);
  }
  return ids;
}

}  // namespace

std::unique_ptr<const UnigramModel> sentencepiece_unigram(const SentencePieceModel& model) {
  const Scores scores = scores_of(model);
  std::vector<UnigramModel::Piece> pieces;
  UnigramModel::Unknown unknown{};
  for (const Piece& piece : model.pieces) {
    const bool in_texts = piece.type == PieceType::kNormal || piece.type == PieceType::kUserDefined;
    if (piece.type == PieceType::kUnknown) unknown.id = static_cast<int32_t>(pieces.size());
    pieces.push_back({std::string(piece.name), score_of(piece, scores.greatest), !in_texts});
  }
  unknown.score = scores.least - static_cast<float>(UnigramModel::kUnknownPenalty);
  unknown.byte_ids = byte_ids_of(model);
  return std::make_unique<UnigramModel>(pieces, unknown, UnigramModel::Precision::kSingle);
}

}  // namespace recurve
