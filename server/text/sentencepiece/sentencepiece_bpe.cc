#include "server/text/sentencepiece/sentencepiece_bpe.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/text/json/json_fields.h"
#include "server/text/models/bpe_model.h"
#include "server/text/models/trie.h"
#include "server/text/tokenizers/token_decoder.h"
#include "server/text/utf8.h"

namespace recurve {
namespace {

using Piece = SentencePieceModel::Piece;

// The pieces by which merge comes first: a higher score; where scores are equal it is the place in
// the text that decides, so they are one rank.
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

// SentencePiece merges any neighbours that are a piece together; merged, they are pieces
// themselves, or single characters, of which those that are none have no id: no model has a piece
// of those.
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

// A BPE between pieces that a user has defined: wherever the longest of those is found, it is
// taken, and nothing is merged with it.
class WithDefinedPieces final : public WordModel {
 public:
  // `defined`: the numbers are ids.
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
        const Found found = model_.find(word.substr(at));
        if (found.bytes == 0) {
          ++at;
          continue;
        }
        merge(word.substr(begin, at - begin), limits, ids);
        ids.push_back(found.id);
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

  struct Found {
    size_t bytes = 0;  // 0: none
    int32_t id = 0;
  };
  // The longest piece that the text begins with. Within a character none begins.
  Found find(std::string_view text) const {
    Found found;
    int32_t node = Trie::kRoot;
    for (size_t i = 0; i < text.size(); ++i) {
      node = defined_.next(node, text[i]);
      if (node == Trie::kNone) break;
      if (defined_.number(node) != Trie::kNone) found = {i + 1, defined_.number(node)};
    }
    return found;
  }

  std::unique_ptr<const BpeModel> merges_;
  Trie defined_;
};

BpeModel::Parts model_parts(const SentencePieceModel& model) {
  BpeModel::Parts parts{.byte_level = false};
  parts.fuse_unknown = true;
  std::unordered_map<std::string_view, int32_t> ids;  // of the pieces that texts are made of
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

// Every character of a normal piece must be a piece, so that all that can be merged has an id.
void check_characters(const SentencePieceModel& model) {
  std::unordered_map<char32_t, bool> single;  // false: seen within a piece only
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
        fmt::format("U+{:04X} is in pieces, but is none", static_cast<uint32_t>(c)));
  }
}

}  // namespace

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

}  // namespace recurve
