#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/text/models/word_model.h"
#include "server/text/normalizers/normalizer_chain.h"
#include "server/text/pre_tokenizers/pre_tokenizer.h"
#include "server/text/tokenizers/added_tokens.h"
#include "server/text/tokenizers/token_decoder.h"
#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// The tokenizer of a tokenizer.json: it finds added tokens in a text, normalizes the text between
// them and splits it into words, and a model finds the ids of each word.
class PipelineTokenizer final : public Tokenizer {
 public:
  using Vocabulary = std::unordered_map<std::string, int32_t>;

  // The parts of the file, as read and checked by tokenizer_json.cc: ids are unique and in [0,
  // size).
  struct Parts {
    Vocabulary vocabulary;          // without added tokens; names as in the file
    std::vector<AddedToken> added;  // may also be in `vocabulary`, with the same name and id
    int32_t size = 0;
    std::unique_ptr<const WordModel> model;
    NormalizerChain normalizer;
    PreTokenizer pre_tokenizer;
    TokenDecoder decoder;
    std::optional<int32_t> bos;
    std::optional<int32_t> eos;

    std::optional<int32_t> id_of(std::string_view name) const;
  };

  explicit PipelineTokenizer(Parts parts);

  std::unique_ptr<TextEncoder> encoder(SpecialTokens special, TextPosition position,
                                       const WorkLimits& limits) const override;
  bool marks_start() const override {
    return parts_.normalizer.marks_start() || parts_.pre_tokenizer.marks_start();
  }
  int32_t size() const override { return parts_.size; }
  std::string_view token_bytes(int32_t id) const override;
  std::string_view first_token_bytes(int32_t id) const override;
  bool is_special(int32_t id) const override;
  std::optional<int32_t> id_of(std::string_view name) const override { return parts_.id_of(name); }
  std::optional<int32_t> bos_id() const override { return parts_.bos; }
  std::optional<int32_t> eos_id() const override { return parts_.eos; }
  LeadingSpace leading_space() const override { return parts_.decoder.leading_space(); }
  bool has_space_mark(int32_t id) const override { return token_bytes(id).starts_with(' '); }
  std::string description() const override;

 private:
  friend class PipelineEncoder;

  void set_texts();
  void set_text(int32_t id, std::string_view name);
  bool valid(int32_t id) const { return id >= 0 && id < parts_.size; }

  Parts parts_;
  std::vector<std::string> bytes_;        // [id]
  std::vector<std::string> first_bytes_;  // [id]; empty if the first token does not differ
  std::vector<bool> special_;             // [id]
  AddedTokenFinder in_raw_text_;          // added tokens that are not `normalized`
  AddedTokenFinder in_normal_text_;       // added tokens that are
};

// Reads the "model" of a tokenizer.json, BPE, Unigram or WordPiece, to parts.vocabulary and
// parts.model (model_json.cc). Requires parts.added: the model must not find control tokens in
// text. `byte_level`: its symbols are bytes, whose names are in the byte-level alphabet.
void read_model(const nlohmann::json& model, bool byte_level, PipelineTokenizer::Parts& parts);

}  // namespace recurve
