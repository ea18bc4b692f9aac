#pragma once

#include <cstdint>
#include <memory>
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

// The tokenizer of a tokenizer.json: added tokens are cut out of a text, what lies between them is
// normalised and cut into words, and a model finds each word's ids.
class PipelineTokenizer final : public Tokenizer {
 public:
  using Vocabulary = std::unordered_map<std::string, int32_t>;

  // What tokenizer_json.cc reads from the file, and has checked: ids are unique and in [0, size).
  struct Parts {
    Vocabulary vocabulary;          // names as the file has them; without added tokens
    std::vector<AddedToken> added;  // ids may also be in `vocabulary`, under the same name
    int32_t size = 0;
    std::unique_ptr<const WordModel> model;
    NormalizerChain normalizer;
    PreTokenizer pre_tokenizer;
    TokenDecoder decoder;
    struct Text {
      std::string bytes;
      bool has_space_mark;
    };
    std::vector<Text> texts;  // [id], where the names do not say them; else empty
    std::string description;  // empty: of the model
    std::optional<int32_t> bos;
    std::optional<int32_t> eos;
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
  std::optional<int32_t> id_of(std::string_view name) const override;
  std::optional<int32_t> bos_id() const override { return parts_.bos; }
  std::optional<int32_t> eos_id() const override { return parts_.eos; }
  LeadingSpace leading_space() const override { return parts_.decoder.leading_space(); }
  bool has_space_mark(int32_t id) const override {
    return valid(id) && space_mark_[static_cast<size_t>(id)];
  }
  std::string description() const override;

 private:
  friend class PipelineEncoder;

  void set_texts();
  void set_text(int32_t id, std::string_view name);
  bool valid(int32_t id) const { return id >= 0 && id < parts_.size; }

  Parts parts_;
  std::vector<std::string> bytes_;        // [id]
  std::vector<std::string> first_bytes_;  // [id]; empty where the first token is as any other
  std::vector<bool> space_mark_;          // [id]
  std::vector<bool> special_;             // [id]
  AddedTokenFinder in_raw_text_;          // the added tokens that are not `normalized`
  AddedTokenFinder in_normal_text_;       // those that are
};

}  // namespace recurve
