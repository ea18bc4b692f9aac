#include "server/text/sentencepiece_bpe.h"

#include <algorithm>
#include <bitset>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/text/bpe_model.h"
#include "server/text/pipeline_tokenizer.h"
#include "server/text/token_decoder.h"
#include "server/text/utf8.h"

namespace recurve {
namespace {

using Piece = SentencePieceModel::Piece;

constexpr std::string_view kSpaceMarkUtf8 = "\xE2\x96\x81";

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

BpeModel::Parts model_parts(const SentencePieceModel& model) {
  BpeModel::Parts parts{.byte_level = false};
  std::unordered_map<std::string_view, int32_t> ids;  // of the pieces that texts are made of
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    const auto id = static_cast<int32_t>(i);
    if (piece.type == PieceType::kByte) {
      parts.byte_ids[static_cast<size_t>(byte_of_name(piece.name))] = id;
    }
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

// Every character of a normal piece is a piece, so that all that can be merged has an id.
bool has_all_characters(const SentencePieceModel& model) {
  std::unordered_map<char32_t, bool> single;  // false: seen within a piece only
  for (const Piece& piece : model.pieces) {
    if (piece.type != PieceType::kNormal) continue;
    if (!is_valid_utf8(piece.name) || piece.name.empty()) return false;
    const std::u32string characters = to_utf32(piece.name);
    for (const char32_t c : characters) single[c] |= characters.size() == 1;
  }
  return std::all_of(single.begin(), single.end(), [](const auto& entry) { return entry.second; });
}

}  // namespace

bool merges_alone(const SentencePieceModel& model) {
  if (model.type != ModelType::kBpe || model.rewrites_characters ||
      model.remove_extra_whitespaces || !model.marks_spaces) {
    return false;
  }
  std::bitset<256> bytes;
  for (const Piece& piece : model.pieces) {
    if (piece.type == PieceType::kUserDefined || piece.type == PieceType::kUnused) return false;
    if (piece.type != PieceType::kByte) continue;
    const int byte = byte_of_name(piece.name);
    if (byte < 0) return false;
    bytes.set(static_cast<size_t>(byte));
  }
  return bytes.all() && has_all_characters(model);
}

std::unique_ptr<Tokenizer> sentencepiece_bpe(const SentencePieceModel& model,
                                             const Tokenizer& library) {
  PipelineTokenizer::Parts parts;
  parts.size = library.size();
  for (int32_t id = 0; id < parts.size; ++id) {
    const std::string name(model.pieces[static_cast<size_t>(id)].name);
    parts.vocabulary.emplace(name, id);
    parts.texts.push_back({std::string(library.token_bytes(id)), library.has_space_mark(id)});
    if (!library.is_special(id) || name.size() > AddedTokenFinder::kMaxBytes) continue;
    AddedToken& control = parts.added.emplace_back();
    control.id = id;
    control.content = name;
    control.special = true;
  }
  if (model.add_dummy_prefix)
    parts.normalizer.add(NormalizerChain::Prepend{std::string(kSpaceMarkUtf8)});
  parts.normalizer.add(NormalizerChain::Replace{Regex(" "), std::string(kSpaceMarkUtf8)});
  parts.decoder.kind = TokenDecoder::Kind::kReplace;
  parts.decoder.strips_space = library.leading_space() == LeadingSpace::kStripOnce;
  parts.model = std::make_unique<BpeModel>(model_parts(model));
  parts.bos = library.bos_id();
  parts.eos = library.eos_id();
  parts.description = library.description();
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace recurve
