#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/token_files.h"

namespace recurve {

enum class ModelType { kUnigram = 1, kBpe = 2 };  // and others
enum class PieceType {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// What the SentencePiece library does not tell about a model: fields of sentencepiece_model.proto,
// read from its bytes. Defaults are those of the proto.
struct SentencePieceModel {
  struct Piece {
    std::string_view name;  // within the bytes that were read
    float score = 0;
    PieceType type = PieceType::kNormal;
    bool control = false;  // of type kControl, or taken for one (take_stated)
  };
  std::vector<Piece> pieces;             // ModelProto.pieces
  ModelType type = ModelType::kUnigram;  // TrainerSpec.model_type
  bool has_trainer_spec = false;         // ModelProto.trainer_spec
  bool space_as_suffix = false;          // TrainerSpec.treat_whitespace_as_suffix
  bool has_normalizer_spec = false;      // ModelProto.normalizer_spec
  bool add_dummy_prefix = true;          // NormalizerSpec
  bool remove_extra_whitespaces = true;  // NormalizerSpec
  bool marks_spaces = true;              // NormalizerSpec.escape_whitespaces
  std::string_view charsmap;             // NormalizerSpec.precompiled_charsmap, may be empty
};

// Makes control pieces of those that other files name. Throws std::runtime_error where BOS or EOS
// of these is no piece.
void take_stated(SentencePieceModel& model, const TokenFiles& others);

// The bytes of the same model for text that is normalised already (protobuf: what comes last
// counts), with the types that `model` has.
std::string without_normalization(std::string_view bytes, const SentencePieceModel& model);

// Throws std::runtime_error if the bytes are not a protobuf message.
SentencePieceModel read_sentencepiece_model(std::string_view bytes);

}  // namespace recurve
