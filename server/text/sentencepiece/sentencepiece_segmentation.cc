#include "server/text/sentencepiece/sentencepiece_segmentation.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/text/characters.h"
#include "server/text/json/json_fields.h"
#include "server/text/models/bpe_model.h"
#include "server/text/models/trie.h"
#include "server/text/tokenizers/token_decoder.h"
#include "server/text/utf8.h"

namespace recurve {
namespace {

uint64_t pair_of(char32_t left, char32_t right) { return uint64_t{left} << 32 | right; }

using Piece = SentencePieceModel::Piece;

// The rank of the merge of each piece: lower for a higher score. Equal scores have one rank,
// because the position in the text decides then.
std::vector<int32_t> ranks_of(const std::vector<Piece>& pieces) {
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return pieces[a].score > pieces[b].score; });
  std::vector<int32_t> ranks(pieces.size());
  int32_t rank = 0;
  for (size_t i = 1; i < order.size(); ++i) {
    rank += pieces[order[i]].score != pieces[order[i - 1]].score;
    ranks[order[i]] = rank;
  }
  return ranks;
}

// Adds a rule for each two pieces whose concatenation is a piece: these are the merges of
// SentencePiece, since check_characters() excludes characters that are not pieces.
void add_rules(const std::vector<Piece>& pieces,
               const std::unordered_map<std::string_view, int32_t>& ids, BpeMerger& merger) {
  const std::vector<int32_t> ranks = ranks_of(pieces);
  for (const auto& [name, id] : ids) {
    for (size_t at = 1; at < name.size(); ++at) {
      const auto left = ids.find(name.substr(0, at)), right = ids.find(name.substr(at));
      if (left == ids.end() || right == ids.end()) continue;
      merger.add_rule(left->second, right->second, ranks[static_cast<size_t>(id)], id);
    }
  }
}

// A BPE with user-defined pieces: the longest at a position is always a token, and is not merged
// with anything.
class WithDefinedPieces final : public WordModel {
 public:
  // The numbers of `defined` are ids.
  WithDefinedPieces(std::unique_ptr<const BpeModel> merges, Trie defined)
      : merges_(std::move(merges)), defined_(std::move(defined)) {}

  std::unique_ptr<WordEncoder> encoder() const override { return std::make_unique<Encoder>(*this); }
  std::string kind() const override { return merges_->kind(); }
  std::string details() const override { return merges_->details(); }

 private:
  class Encoder final : public WordEncoder {
   public:
    explicit Encoder(const WithDefinedPieces& model)
        : model_(model), merges_(model.merges_->encoder()) {}

    void encode(std::string_view word, const WorkLimits& limits,
                std::vector<int32_t>& ids) override {
      size_t begin = 0;
      for (size_t at = 0; at < word.size();) {
        const Trie::Match found = model_.defined_.longest(word.substr(at));
        if (found.bytes == 0) {
          ++at;
          continue;
        }
        merge(word.substr(begin, at - begin), limits, ids);
        ids.push_back(found.number);
        limits.check(ids.size());
        begin = at += found.bytes;
      }
      merge(word.substr(begin), limits, ids);
    }

   private:
    void merge(std::string_view part, const WorkLimits& limits, std::vector<int32_t>& ids) {
      if (!part.empty()) merges_->encode(part, limits, ids);
    }

    const WithDefinedPieces& model_;
    std::unique_ptr<WordEncoder> merges_;
  };

  std::unique_ptr<const BpeModel> merges_;
  Trie defined_;
};

BpeModel::Parts model_parts(const SentencePieceModel& model) {
  BpeModel::Parts parts{.byte_level = false};
  parts.fuse_unknown = true;
  std::unordered_map<std::string_view, int32_t> ids;  // of the pieces that are found in text
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    const auto id = static_cast<int32_t>(i);
    if (piece.type == PieceType::kByte) {
      parts.byte_ids[static_cast<size_t>(byte_of_name(piece.name))] = id;
    }
    if (piece.type == PieceType::kUnknown) parts.unknown = id;
    if (piece.type != PieceType::kNormal) continue;
    ids.emplace(piece.name, id);
    const std::u32string characters = to_utf32(piece.name);
    if (characters.size() == 1) parts.character_ids.emplace(characters[0], id);
    for (size_t c = 1; c < characters.size(); ++c) {
      parts.neighbours.insert(uint64_t{characters[c - 1]} << 32 | characters[c]);
    }
  }
  add_rules(model.pieces, ids, parts.merger);
  return parts;
}

// Every character of a normal piece must be a piece, so that all symbols of a merge have ids.
void check_characters(const SentencePieceModel& model) {
  std::unordered_map<char32_t, bool> single;  // false: only found in longer pieces
  for (const Piece& piece : model.pieces) {
    if (piece.type == PieceType::kUnused) {
      throw std::runtime_error(
          fmt::format("{} is of type UNUSED, which is not supported in BPE", quote(piece.name)));
    }
    if (piece.type != PieceType::kNormal) continue;
    if (!is_valid_utf8(piece.name)) {
      throw std::runtime_error(fmt::format("{} is not UTF-8", quote(piece.name)));
    }
    const std::u32string characters = to_utf32(piece.name);
    for (const char32_t c : characters) single[c] |= characters.size() == 1;
  }
  for (const auto& [c, is_piece] : single) {
    if (is_piece) continue;
    throw std::runtime_error(
        fmt::format("U+{:04X} is in a piece, but is not a piece", static_cast<uint32_t>(c)));
  }
}

struct Scores {
  float least;
  float greatest;
};

// The scores of the normal pieces, of which there is at least one. As in the library, the greatest
// is at least the smallest positive number, although a logarithm of a probability is never
// positive.
Scores scores_of(const SentencePieceModel& model) {
  std::vector<float> scores;
  for (const Piece& piece : model.pieces) {
    if (piece.type == PieceType::kNormal) scores.push_back(piece.score);
  }
  const auto [least, greatest] = std::minmax_element(scores.begin(), scores.end());
  return {*least, std::max(*greatest, std::numeric_limits<float>::min())};
}

// In the library's precision. The score of a user-defined piece is so high that it is always
// chosen.
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

SentencePieceBoundaries::SentencePieceBoundaries(const SentencePieceModel& model, bool has_bytes)
    : has_bytes_(has_bytes) {
  for (const SentencePieceModel::Piece& entry : model.pieces) {
    if (!is_valid_utf8(entry.name)) continue;  // never in a text
    const std::u32string piece = to_utf32(entry.name);
    if (piece.size() == 1) singles_.insert(piece[0]);
    for (size_t i = 1; i < piece.size(); ++i) {
      adjacent_.insert(pair_of(piece[i - 1], piece[i]));
    }
  }
}

size_t SentencePieceBoundaries::find(std::string_view utf8, size_t from) const {
  size_t at = from;
  while (at < utf8.size() && is_continuation(utf8[at])) ++at;
  if (at >= utf8.size()) return utf8.npos;
  char32_t before = first_code_point(utf8.substr(characters_before(utf8, at, 1))).code_point;
  while (at < utf8.size()) {
    const Character here = first_code_point(utf8.substr(at));
    if (is_boundary(before, here.code_point)) return at;
    before = here.code_point;
    at += here.bytes;
  }
  return utf8.npos;
}

bool SentencePieceBoundaries::is_boundary(char32_t before, char32_t here) const {
  return (known(before) || known(here)) && !adjacent_.contains(pair_of(before, here));
}

std::unique_ptr<const WordModel> sentencepiece_bpe(const SentencePieceModel& model) {
  check_characters(model);
  Trie defined;
  bool defines = false;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    if (model.pieces[i].type != PieceType::kUserDefined) continue;
    defined.add(model.pieces[i].name, static_cast<int32_t>(i));
    defines = true;
  }
  auto merges = std::make_unique<BpeModel>(model_parts(model));
  if (!defines) return merges;
  return std::make_unique<WithDefinedPieces>(std::move(merges), std::move(defined));
}

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
