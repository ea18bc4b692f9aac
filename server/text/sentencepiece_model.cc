#include "server/text/sentencepiece_model.h"

#include <fmt/core.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <unordered_set>

#include "server/text/json_fields.h"

namespace recurve {
namespace {

// Field numbers of google/sentencepiece src/sentencepiece_model.proto.
constexpr uint64_t kPieces = 1;
constexpr uint64_t kTrainerSpec = 2;
constexpr uint64_t kNormalizerSpec = 3;
constexpr uint64_t kSpaceAsSuffix = 24;     // of TrainerSpec
constexpr uint64_t kModelType = 3;          // of TrainerSpec
constexpr uint64_t kPieceName = 1;          // of SentencePiece
constexpr uint64_t kPieceScore = 2;         // likewise
constexpr uint64_t kPieceType = 3;          // likewise
constexpr uint64_t kCharsMap = 2;           // of NormalizerSpec
constexpr uint64_t kAddDummyPrefix = 3;     // of NormalizerSpec
constexpr uint64_t kRemoveExtraSpaces = 4;  // of NormalizerSpec
constexpr uint64_t kEscapeSpaces = 5;       // of NormalizerSpec

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
  std::string_view rest() const { return bytes_; }  // behind the field

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

constexpr char key(uint64_t field, int wire) { return static_cast<char>(field << 3 | wire); }

// A piece as it is, but for its type.
void append_piece(std::string_view piece, PieceType type, std::string& out) {
  const std::string tail = {key(kPieceType, 0), static_cast<char>(type)};
  out += key(kPieces, 2);
  uint64_t size = piece.size() + tail.size();
  for (; size >= 0x80; size >>= 7) out += static_cast<char>(size | 0x80);
  out += static_cast<char>(size);
  out += piece;
  out += tail;
}

void take_as_control(SentencePieceModel& model, const TokenFiles& others) {
  std::unordered_set<std::string_view> names;
  std::unordered_set<int32_t> ids;
  for (const StatedToken& stated : others.control) {
    if (stated.id) ids.insert(*stated.id);
    if (!stated.id && !is_one_character(stated.name)) names.insert(stated.name);
  }
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    SentencePieceModel::Piece& piece = model.pieces[id];
    const bool added = piece.type == PieceType::kUserDefined;
    const bool named = names.contains(piece.name);
    if (piece.type == PieceType::kByte) continue;
    if (!named && !(added && ids.contains(static_cast<int32_t>(id)))) continue;
    piece.control = true;
    // Unknown characters still become the one for these.
    if (piece.type != PieceType::kUnknown) piece.type = PieceType::kControl;
  }
}

void check_exists(const SentencePieceModel& model, const std::optional<StatedToken>& stated) {
  if (!stated) return;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    if (piece.name == stated->name) return;
  }
  throw std::runtime_error(fmt::format("{} names the {} {}, which does not exist", stated->file,
                                       stated->key, quote(stated->name)));
}

}  // namespace

void take_stated(SentencePieceModel& model, const TokenFiles& others) {
  check_exists(model, others.bos);
  check_exists(model, others.eos);
  take_as_control(model, others);
}

std::string without_normalization(std::string_view bytes, const SentencePieceModel& model) {
  const std::string spec = {key(kCharsMap, 2),       0,  // no bytes
                            key(kAddDummyPrefix, 0), 0, key(kRemoveExtraSpaces, 0), 0};
  std::string out;
  size_t index = 0;
  std::string_view before = bytes;
  for (WireReader reader(bytes); reader.next(); before = reader.rest()) {
    if (reader.field() == kPieces) {
      append_piece(reader.payload(), model.pieces[index++].type, out);
    } else {
      out += before.substr(0, before.size() - reader.rest().size());
    }
  }
  out += {key(kNormalizerSpec, 2), static_cast<char>(spec.size())};
  return out + spec;
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
