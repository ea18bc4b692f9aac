#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/tokenizers/token_files.h"
#include "server/text/utf8.h"
#include "server/text/work_limits.h"

namespace recurve {

// What the names of control tokens ("<|endoftext|>", "<s>") in a text become.
enum class SpecialTokens {
  kAsText,  // tokens of text
  kParse,   // the control tokens; only for text of a trusted template
};

// What decoding does at the start of a text with the space that encoding has prepended
// (SentencePiece's dummy prefix). It does not apply to a continued text.
enum class LeadingSpace {
  kKeep,
  kStripOnce,     // removes the leading space of the first piece
  kStripAll,      // removes that of each piece until one has other text
  kFirstDiffers,  // the first token has first_token_bytes()
};

// Whether a text, or its ids, begins a context or continues it.
enum class TextPosition { kStart, kContinued };

// Encodes one text that arrives in parts, in one thread. Together the ids equal those of encode()
// for the whole text, however it is divided into parts.
class TextEncoder {
 public:
  virtual ~TextEncoder() = default;

  // Takes the next part, in whole characters of UTF-8; `last`: it ends the text, and is the last
  // call. Appends the ids that no later part can change.
  virtual void push(std::string_view utf8, bool last, std::vector<int32_t>* ids) = 0;
  // How control tokens are encoded from the next part on. A name is the control token if all of it
  // is in parts with kParse, and text otherwise; untrusted text around it cannot change that.
  // Nothing else depends on it, except that a normalizer does not compose characters across the
  // boundary.
  virtual void set_special(SpecialTokens special, std::vector<int32_t>* ids) = 0;
  // Bytes of the text whose ids are not certain yet: usually a few words, and up to a few thousand
  // bytes that are processed together.
  virtual size_t held() const = 0;
};

// Encodes text to token ids, and decodes ids. Constant after loading: every method may be called
// from any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // False if ids have no text and encode() returns none: callers refuse text from clients.
  virtual bool reads_text() const { return true; }

  // Ids of a text, without BOS or EOS. A tokenizer that prepends a space does not do so for text
  // that is kContinued. Invalid UTF-8 is read as U+FFFD (callers that must refuse it call
  // is_valid_utf8() first). Time is O(n log n) in the bytes of the text. Throws what
  // WorkLimits::check() throws.
  std::vector<int32_t> encode(std::string_view utf8, SpecialTokens special = SpecialTokens::kAsText,
                              TextPosition position = TextPosition::kStart,
                              const WorkLimits& limits = {}) const;
  // The same for a text in UTF-8 whose ranges are kParse, and the rest kAsText.
  std::vector<int32_t> encode(const RangedText& text, TextPosition position = TextPosition::kStart,
                              const WorkLimits& limits = {}) const;
  // The same for a text that arrives in parts. The tokenizer must outlive the encoder. After push()
  // or set_special() has thrown, the encoder can only be destroyed.
  virtual std::unique_ptr<TextEncoder> encoder(SpecialTokens special, TextPosition position,
                                               const WorkLimits& limits = {}) const = 0;
  // Whether encode() depends on the position.
  virtual bool marks_start() const { return false; }

  // One more than the largest id. Later rows of the model's embedding are padding.
  virtual int32_t size() const = 0;

  // The bytes that an id adds to a text, which may be part of a UTF-8 character. Empty for control
  // tokens and for ids outside [0, size()). Valid as long as the tokenizer.
  virtual std::string_view token_bytes(int32_t id) const = 0;

  // The same for the first token of a text that is not a control token.
  virtual std::string_view first_token_bytes(int32_t id) const { return token_bytes(id); }

  // True for control tokens (BOS, EOS, padding, template marks); false for ids out of range.
  virtual bool is_special(int32_t id) const = 0;

  // The id of a token by its name in the tokenizer's file, e.g. "<|endoftext|>".
  virtual std::optional<int32_t> id_of(std::string_view name) const = 0;

  // BOS and EOS according to the tokenizer's files. The rules of the model take precedence, because
  // these files and a checkpoint's config may be wrong.
  virtual std::optional<int32_t> bos_id() const = 0;
  virtual std::optional<int32_t> eos_id() const = 0;

  virtual LeadingSpace leading_space() const { return LeadingSpace::kKeep; }
  // Whether the id's bytes begin with a space to which leading_space() applies.
  virtual bool has_space_mark(int32_t) const { return false; }

  // One line for the start-up table, e.g. "byte-level BPE, 50277 tokens, 50009 merges".
  virtual std::string description() const = 0;
};

// The tokenizer of a Hugging Face model directory: tokenizer.json; if it is missing or not
// supported, tokenizer.model (SentencePiece); else RWKV's rwkv_vocab*.txt. `others`: the control
// tokens that other files name, from read_token_files() and the model's configs. Throws
// std::runtime_error, whose message names the file.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model_dir,
                                          const TokenFiles& others);
// The same with the tokens of read_token_files() only.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model_dir);

// Throws std::runtime_error unless every id has a row in the model's embedding.
void check_fits(const Tokenizer& tokenizer, int64_t vocab_rows,
                const std::filesystem::path& model_dir);

// For a model without a tokenizer: ids from 0 to size - 1, which have no text. Callers refuse text,
// see Tokenizer::reads_text().
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
