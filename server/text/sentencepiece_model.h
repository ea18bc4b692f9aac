#pragma once

#include <cstdint>
#include <string_view>

namespace recurve {

// What the SentencePiece library does not tell about a model: fields of sentencepiece_model.proto,
// read from its bytes. Defaults are those of the proto.
struct SentencePieceModel {
  int64_t pieces = 0;                    // ModelProto.pieces
  bool has_trainer_spec = false;         // ModelProto.trainer_spec
  bool space_as_suffix = false;          // TrainerSpec.treat_whitespace_as_suffix
  bool has_normalizer_spec = false;      // ModelProto.normalizer_spec
  bool add_dummy_prefix = true;          // NormalizerSpec
  bool remove_extra_whitespaces = true;  // NormalizerSpec
};

// Throws std::runtime_error if the bytes are not a protobuf message.
SentencePieceModel read_sentencepiece_model(std::string_view bytes);

}  // namespace recurve
