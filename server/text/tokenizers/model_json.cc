#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "server/text/json/json_fields.h"
#include "server/text/models/bpe_model.h"
#include "server/text/models/byte_level.h"
#include "server/text/models/unigram_model.h"
#include "server/text/models/word_piece_model.h"
#include "server/text/tokenizers/pipeline_tokenizer.h"
#include "server/text/utf8.h"

namespace recurve {
namespace {

using Json = nlohmann::json;
using Parts = PipelineTokenizer::Parts;
using Vocabulary = PipelineTokenizer::Vocabulary;

int32_t vocabulary_id(const std::string& name, const Json& value) {
  constexpr uint64_t kMax = std::numeric_limits<int32_t>::max() - 1;
  if (!value.is_number_unsigned() || value.get<uint64_t>() > kMax) {
    throw std::runtime_error(fmt::format("the id of {} in model.vocab must be a token id, found {}",
                                         quote(name), brief(value)));
  }
  return value.get<int32_t>();
}

Vocabulary read_vocabulary(Fields& model) {
  const Json& json = model.require("vocab");
  if (!json.is_object() || json.empty()) model.bad("vocab", "an object of tokens and ids");
  Vocabulary vocabulary;
  vocabulary.reserve(json.size());
  for (const auto& [name, id] : json.items()) vocabulary.emplace(name, vocabulary_id(name, id));
  return vocabulary;
}

// "a b" or ["a", "b"].
std::pair<std::string, std::string> read_merge(const Json& json) {
  if (json.is_string()) {
    const auto& text = json.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != text.npos && text.find(' ', space + 1) == text.npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  } else if (json.is_array() && json.size() == 2 && json[0].is_string() && json[1].is_string()) {
    return {json[0].get<std::string>(), json[1].get<std::string>()};
  }
  throw std::runtime_error(
      fmt::format("an entry of model.merges must be two tokens, found {}", brief(json)));
}

int32_t known_token(const Vocabulary& vocabulary, const std::string& name, const char* where) {
  const auto found = vocabulary.find(name);
  if (found == vocabulary.end()) {
    throw std::runtime_error(
        fmt::format("{} needs the token {}, which is not in model.vocab", where, quote(name)));
  }
  return found->second;
}

std::unordered_set<std::string_view> control_names(const Parts& parts) {
  std::unordered_set<std::string_view> names;
  for (const AddedToken& token : parts.added) {
    if (token.special) names.insert(token.content);
  }
  return names;
}

void read_merges(Fields& model, const Parts& parts, BpeMerger& merger) {
  const Vocabulary& vocabulary = parts.vocabulary;
  const auto control = control_names(parts);
  int32_t rank = 0;
  const auto id = [&](const std::string& name) {
    return known_token(vocabulary, name, "model.merges");
  };
  for (const Json& json : model.get_array("merges")) {
    if (json.is_string() && json.get_ref<const std::string&>().starts_with("#version")) continue;
    const auto [left, right] = read_merge(json);
    const int32_t left_id = id(left), right_id = id(right), both = id(left + right);
    if (!control.contains(left + right)) merger.add_rule(left_id, right_id, rank, both);
    ++rank;
  }
}

// The token of a model's "unk_token".
std::optional<int32_t> read_unknown(Fields& model, const Vocabulary& vocabulary) {
  if (model.find("unk_token") == nullptr) return {};
  return known_token(vocabulary, model.get_string("unk_token"), "model.unk_token");
}

// The tokens of single bytes in the byte-level alphabet; some vocabularies lack a few of them.
std::array<int32_t, 256> alphabet_ids(const Vocabulary& vocabulary) {
  std::array<int32_t, 256> ids = BpeModel::no_bytes();
  for (int byte = 0; byte < 256; ++byte) {
    std::string name;
    const char c = static_cast<char>(byte);
    encode_byte_level({&c, 1}, name);
    const auto found = vocabulary.find(name);
    if (found != vocabulary.end()) ids[static_cast<size_t>(byte)] = found->second;
  }
  if (ids == BpeModel::no_bytes()) {
    throw std::runtime_error("model.vocab has no token of a single byte");
  }
  return ids;
}

// The tokens "<0x00>" to "<0xFF>".
std::array<int32_t, 256> fallback_ids(const Vocabulary& vocabulary) {
  std::array<int32_t, 256> ids = BpeModel::no_bytes();
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = vocabulary.find(fmt::format("<0x{:02X}>", byte));
    if (found != vocabulary.end()) ids[static_cast<size_t>(byte)] = found->second;
  }
  return ids;
}

void add_characters(const Vocabulary& vocabulary, BpeModel::Parts& bpe) {
  for (const auto& [name, id] : vocabulary) {
    if (!is_valid_utf8(name)) continue;  // never in a text
    const std::u32string characters = to_utf32(name);
    if (characters.size() == 1) bpe.character_ids[characters[0]] = id;
    for (size_t i = 1; i < characters.size(); ++i) {
      bpe.neighbours.insert(uint64_t{characters[i - 1]} << 32 | characters[i]);
    }
  }
}

void add_whole_words(const Parts& parts, BpeModel::Parts& bpe) {
  const auto control = control_names(parts);
  for (const auto& [name, id] : parts.vocabulary) {
    if (control.contains(name)) continue;
    const auto text = bpe.byte_level ? decode_byte_level(name) : name;
    if (text) bpe.whole_words.emplace(*text, id);
  }
}

void read_bpe(Fields& model, bool byte_level, Parts& parts) {
  model.must_be_neutral("dropout", 0.0);
  model.must_be_neutral("continuing_subword_prefix", "");
  model.must_be_neutral("end_of_word_suffix", "");
  parts.vocabulary = read_vocabulary(model);
  BpeModel::Parts bpe{.byte_level = byte_level};
  bpe.unknown = read_unknown(model, parts.vocabulary);
  bpe.fuse_unknown = model.get_bool("fuse_unk", false);
  read_merges(model, parts, bpe.merger);
  if (byte_level) {
    model.must_be_neutral("byte_fallback", false);
    bpe.byte_ids = alphabet_ids(parts.vocabulary);
  } else {
    if (model.get_bool("byte_fallback", false)) bpe.byte_ids = fallback_ids(parts.vocabulary);
    add_characters(parts.vocabulary, bpe);
  }
  if (model.get_bool("ignore_merges", false)) add_whole_words(parts, bpe);
  parts.model = std::make_unique<BpeModel>(std::move(bpe));
}

// An entry of a Unigram vocabulary: a piece and its score.
UnigramModel::Piece read_piece(const Json& json) {
  if (!json.is_array() || json.size() != 2 || !json[0].is_string() || !json[1].is_number()) {
    throw std::runtime_error(fmt::format(
        "an entry of model.vocab must be a piece and its score, found {}", brief(json)));
  }
  const auto text = json[0].get<std::string>();
  const auto score = json[1].get<double>();
  if (!std::isfinite(score)) {
    throw std::runtime_error(fmt::format("the score of {} must be finite", quote(text)));
  }
  return {text, score, /*control=*/false};
}

void read_unigram(Fields& model, bool byte_level, Parts& parts) {
  if (byte_level) throw UnsupportedTokenizer("a byte-level model of type Unigram is not supported");
  const auto control = control_names(parts);
  std::vector<UnigramModel::Piece> pieces;
  for (const Json& json : model.get_array("vocab")) {
    pieces.push_back(read_piece(json));
    pieces.back().control = control.contains(pieces.back().text);
    const auto id = static_cast<int32_t>(pieces.size() - 1);
    if (!parts.vocabulary.emplace(pieces.back().text, id).second) {
      throw std::runtime_error(fmt::format("model.vocab has {} twice", quote(pieces.back().text)));
    }
  }
  const int32_t unknown = model.get_id("unk_id");
  if (static_cast<size_t>(unknown) >= pieces.size()) model.bad("unk_id", "an id of model.vocab");
  const bool falls_back = model.get_bool("byte_fallback", false);
  const auto least = std::min_element(
      pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.score < b.score; });
  parts.model = std::make_unique<UnigramModel>(
      pieces,
      UnigramModel::Unknown{unknown, least->score - UnigramModel::kUnknownPenalty,
                            falls_back ? fallback_ids(parts.vocabulary) : BpeModel::no_bytes()},
      UnigramModel::Precision::kDouble);
}

void read_word_piece(Fields& model, bool byte_level, Parts& parts) {
  if (byte_level)
    throw UnsupportedTokenizer("a byte-level model of type WordPiece is not supported");
  parts.vocabulary = read_vocabulary(model);
  WordPieceModel::Parts words;
  const std::optional<int32_t> unknown = read_unknown(model, parts.vocabulary);
  if (!unknown) model.bad("unk_token", "a token");
  words.unknown = *unknown;
  words.continuing_prefix = model.get_string("continuing_subword_prefix");
  words.most_characters = static_cast<size_t>(model.get_id("max_input_chars_per_word"));
  const auto control = control_names(parts);
  for (const auto& [name, id] : parts.vocabulary) {
    if (!control.contains(name)) words.vocabulary.emplace(name, id);
  }
  parts.model = std::make_unique<WordPieceModel>(words);
}

}  // namespace

void read_model(const Json& json, bool byte_level, Parts& parts) {
  Fields model(json, "model");
  const std::string type = model.find("type") == nullptr ? "BPE" : model.get_string("type");
  if (type == "BPE") {
    read_bpe(model, byte_level, parts);
  } else if (type == "Unigram") {
    read_unigram(model, byte_level, parts);
  } else if (type == "WordPiece") {
    read_word_piece(model, byte_level, parts);
  } else {
    throw UnsupportedTokenizer(fmt::format("model.type = {} is not supported", quote(type)));
  }
  model.finish();
}

}  // namespace recurve
