#pragma once

#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// Stands where there is none: ids from 0 to size - 1, which have no text. Callers refuse text: see
// Tokenizer::reads_text().
class IdTokenizer final : public Tokenizer {
 public:
  explicit IdTokenizer(int32_t size) : size_(size) {}

  bool reads_text() const override { return false; }
  std::unique_ptr<TextEncoder> encoder(SpecialTokens, TextPosition,
                                       const WorkLimits&) const override;
  int32_t size() const override { return size_; }
  std::string_view token_bytes(int32_t) const override { return {}; }
  bool is_special(int32_t) const override { return false; }
  std::optional<int32_t> id_of(std::string_view) const override { return {}; }
  std::optional<int32_t> bos_id() const override { return {}; }
  std::optional<int32_t> eos_id() const override { return {}; }
  std::string description() const override { return "none: prompts are token ids"; }

 private:
  const int32_t size_;
};

}  // namespace recurve
