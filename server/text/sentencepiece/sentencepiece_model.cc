#include "server/text/sentencepiece/sentencepiece_model.h"

#include <fmt/core.h>

#include <bitset>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>
#include <unordered_set>

#include "server/text/json/json_fields.h"
#include "server/text/tokenizers/token_decoder.h"

namespace recurve {
namespace {

// Field numbers of google/sentencepiece src/sentencepiece_model.proto.
constexpr uint64_t kPieces = 1, kTrainerSpec = 2, kNormalizerSpec = 3;
// Of TrainerSpec.
constexpr uint64_t kSpaceAsSuffix = 24, kModelType = 3, kByteFallback = 35, kUnknownSurface = 44,
                   kBosPiece = 46, kEosPiece = 47;
// Of SentencePiece.
constexpr uint64_t kPieceName = 1, kPieceScore = 2, kPieceType = 3;
// Of NormalizerSpec.
constexpr uint64_t kCharsMap = 2, kAddDummyPrefix = 3, kRemoveExtraSpaces = 4, kEscapeSpaces = 5;

[[noreturn]] void broken() {
  throw std::runtime_error("the file is truncated or not a SentencePiece model");
}

// The protobuf wire format: a key (field number << 3 | wire type), then the value.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : bytes_(bytes) {}

  // Moves to the next field; false at the end.
  bool next() {
    if (bytes_.empty()) return false;
    const uint64_t key = varint();
    field_ = key >> 3;
    number_ = 0;
    payload_ = {};
    switch (key & 7) {
      case 0:
        number_ = varint();
        break;
      case 1:
        payload_ = take(8);
        break;
      case 2:
        payload_ = take(varint());
        break;
      case 5:
        payload_ = take(4);
        break;
      default:
        broken();
    }
    return true;
  }
  uint64_t field() const { return field_; }
  uint64_t number() const { return number_; }
  std::string_view payload() const { return payload_; }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    broken();
  }
  std::string_view take(uint64_t n) {
    if (n > bytes_.size()) broken();
    const std::string_view head = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return head;
  }

  std::string_view bytes_;
  uint64_t field_ = 0;
  uint64_t number_ = 0;
  std::string_view payload_;
};

void read_trainer_spec(std::string_view bytes, SentencePieceModel& model) {
  model.has_trainer_spec = true;
  for (WireReader reader(bytes); reader.next();) {
    if (reader.field() == kSpaceAsSuffix) model.space_as_suffix = reader.number() != 0;
    if (reader.field() == kModelType) model.type = static_cast<ModelType>(reader.number());
    if (reader.field() == kByteFallback) model.byte_fallback = reader.number() != 0;
    if (reader.field() == kUnknownSurface) model.unknown_text = reader.payload();
    if (reader.field() == kBosPiece) model.bos = reader.payload();
    if (reader.field() == kEosPiece) model.eos = reader.payload();
  }
}

void read_normalizer_spec(std::string_view bytes, SentencePieceModel& model) {
  model.has_normalizer_spec = true;
  for (WireReader reader(bytes); reader.next();) {
    if (reader.field() == kCharsMap) model.charsmap = reader.payload();
    if (reader.field() == kEscapeSpaces) model.marks_spaces = reader.number() != 0;
    if (reader.field() == kAddDummyPrefix) model.add_dummy_prefix = reader.number() != 0;
    if (reader.field() == kRemoveExtraSpaces) {
      model.remove_extra_whitespaces = reader.number() != 0;
    }
  }
}

void read_piece(std::string_view bytes, SentencePieceModel& model) {
  SentencePieceModel::Piece& piece = model.pieces.emplace_back();
  for (WireReader reader(bytes); reader.next();) {
    if (reader.field() == kPieceName) piece.name = reader.payload();
    if (reader.field() == kPieceType) piece.type = static_cast<PieceType>(reader.number());
    if (reader.field() == kPieceScore && reader.payload().size() == sizeof piece.score) {
      std::memcpy(&piece.score, reader.payload().data(), sizeof piece.score);
    }
  }
  piece.control = piece.type == PieceType::kControl;
}

void mark_control_pieces(SentencePieceModel& model, const TokenFiles& others) {
  std::unordered_set<std::string_view> names;
  std::unordered_set<int32_t> ids;
  for (const NamedToken& named : others.control) {
    if (named.id) ids.insert(*named.id);
    if (!named.id && !is_one_character(named.name)) names.insert(named.name);
  }
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    SentencePieceModel::Piece& piece = model.pieces[id];
    const bool added = piece.type == PieceType::kUserDefined;
    const bool named = names.contains(piece.name);
    if (piece.type == PieceType::kByte) continue;
    if (!named && !(added && ids.contains(static_cast<int32_t>(id)))) continue;
    piece.control = true;
    // The piece of unknown characters remains one.
    if (piece.type != PieceType::kUnknown) piece.type = PieceType::kControl;
  }
}

void check_exists(const SentencePieceModel& model, const std::optional<NamedToken>& named) {
  if (!named) return;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    if (piece.name == named->name) return;
  }
  throw std::runtime_error(fmt::format("{} names the {} {}, which does not exist", named->file,
                                       named->key, quote(named->name)));
}

// There must be no byte pieces, or one for each byte.
void check_bytes(const SentencePieceModel& model) {
  std::bitset<256> found;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    if (piece.type != PieceType::kByte) continue;
    const int byte = byte_of_name(piece.name);
    if (byte < 0)
      throw std::runtime_error(
          fmt::format("the piece {} of type BYTE must be <0x00> to <0xFF>", quote(piece.name)));
    found.set(static_cast<size_t>(byte));
  }
  if (model.byte_fallback ? found.all() : found.none()) return;
  throw std::runtime_error(fmt::format("byte_fallback is {}, but {} of 256 bytes have a piece",
                                       model.byte_fallback, found.count()));
}

void check_pieces(const SentencePieceModel& model) {
  std::unordered_set<std::string_view> names;
  int unknown = 0;
  bool normal = false;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    if (piece.name.empty())
      throw std::runtime_error(fmt::format("piece {} is empty", names.size()));
    if (!names.insert(piece.name).second) {
      throw std::runtime_error(fmt::format("the piece {} occurs twice", quote(piece.name)));
    }
    unknown += piece.type == PieceType::kUnknown;
    normal |= piece.type == PieceType::kNormal;
  }
  if (unknown != 1) {
    throw std::runtime_error(fmt::format("expected one piece of type UNKNOWN, found {}", unknown));
  }
  if (!normal) throw std::runtime_error("no piece is of type NORMAL");
}

}  // namespace

void check(const SentencePieceModel& model) {
  // A file that is truncated between two fields parses as a model with default settings.
  if (!model.has_trainer_spec || !model.has_normalizer_spec || model.pieces.empty()) broken();
  if (model.pieces.size() > std::numeric_limits<int32_t>::max() / 2) {
    throw std::runtime_error(fmt::format("{} pieces are too many", model.pieces.size()));
  }
  if (model.type != ModelType::kUnigram && model.type != ModelType::kBpe) {
    throw std::runtime_error(
        fmt::format("model_type {} is not supported, only unigram (1) and BPE (2)",
                    static_cast<int>(model.type)));
  }
  if (model.space_as_suffix) {
    throw std::runtime_error("treat_whitespace_as_suffix is not supported");
  }
  check_pieces(model);
  check_bytes(model);
}

void mark_named_tokens(SentencePieceModel& model, const TokenFiles& others) {
  check_exists(model, others.bos);
  check_exists(model, others.eos);
  mark_control_pieces(model, others);
}

SentencePieceModel read_sentencepiece_model(std::string_view bytes) {
  SentencePieceModel model;
  for (WireReader reader(bytes); reader.next();) {
    if (reader.field() == kPieces) read_piece(reader.payload(), model);
    if (reader.field() == kTrainerSpec) read_trainer_spec(reader.payload(), model);
    if (reader.field() == kNormalizerSpec) read_normalizer_spec(reader.payload(), model);
  }
  return model;
}

}  // namespace recurve
