#pragma once

#include <string_view>
#include <vector>

#include "server/text/tokenizers/token_files.h"

namespace recurve {

enum class ModelType { kUnigram = 1, kBpe = 2 };  // not supported: WORD = 3, CHAR = 4
enum class PieceType {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// Fields of sentencepiece_model.proto, with the defaults of the proto.
struct SentencePieceModel {
  struct Piece {
    std::string_view name;  // in the bytes of the file
    float score = 0;
    PieceType type = PieceType::kNormal;
    bool control = false;  // of type kControl, or marked by mark_named_tokens()
  };
  std::vector<Piece> pieces;             // ModelProto.pieces
  ModelType type = ModelType::kUnigram;  // TrainerSpec.model_type
  bool has_trainer_spec = false;         // ModelProto.trainer_spec
  bool byte_fallback = false;            // TrainerSpec: byte pieces for unknown characters
  std::string_view bos = "<s>";          // TrainerSpec.bos_piece
  std::string_view eos = "</s>";         // TrainerSpec.eos_piece
  std::string_view unknown_text = " \xE2\x81\x87 ";  // TrainerSpec.unk_surface
  bool space_as_suffix = false;                      // TrainerSpec.treat_whitespace_as_suffix
  bool has_normalizer_spec = false;                  // ModelProto.normalizer_spec
  bool add_dummy_prefix = true;                      // NormalizerSpec
  bool remove_extra_whitespaces = true;              // NormalizerSpec
  bool marks_spaces = true;                          // NormalizerSpec.escape_whitespaces
  std::string_view charsmap;  // NormalizerSpec.precompiled_charsmap, may be empty
};

// Throws std::runtime_error if the model is incomplete, inconsistent or of a type that is not
// supported.
void check(const SentencePieceModel& model);

// Marks the pieces that other files name as control tokens. Throws std::runtime_error if BOS or EOS
// of these files is not a piece.
void mark_named_tokens(SentencePieceModel& model, const TokenFiles& others);

// Throws std::runtime_error if the bytes are not a protobuf message.
SentencePieceModel read_sentencepiece_model(std::string_view bytes);

}  // namespace recurve
