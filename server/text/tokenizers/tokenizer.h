#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/byte_range.h"
#include "server/text/tokenizers/token_files.h"
#include "server/text/work_limits.h"

namespace recurve {

// Whether text that a user wrote may name control tokens ("<|endoftext|>", "<s>").
enum class SpecialTokens {
  kAsText,  // they are plain text
  kParse,   // they become their id; only for text from a trusted template
};

// What decoding does with the space that encoding put before the first word (SentencePiece's
// dummy prefix). It concerns the start of a text only, never a continued one.
enum class LeadingSpace {
  kKeep,
  kStripOnce,     // the first piece loses its leading space
  kStripAll,      // every piece loses it until something has been written
  kFirstDiffers,  // the first token is first_token_bytes()
};

// Whether a text, or the ids of one, is the first of its context or goes on after others.
enum class TextPosition { kStart, kContinued };

// A text that comes in parts, on its way to ids: all of them together are what encode() gives for
// the whole, wherever the parts end. One text, one thread.
class TextEncoder {
 public:
  virtual ~TextEncoder() = default;

  // The next part, in whole characters of UTF-8; `last`: the text ends with it, and nothing may
  // come after. Appends the ids that nothing that follows can change.
  virtual void push(std::string_view utf8, bool last, std::vector<int32_t>* ids) = 0;
  // From the next part on, control tokens are this: one is its id where all of its name has come
  // with kParse. It is text where some has not, and no text in front or behind can undo one.
  // Nothing else depends on this, but that a normaliser does not join characters across the border.
  virtual void set_special(SpecialTokens special, std::vector<int32_t>* ids) = 0;
  // Bytes of the text that wait for what follows them: in a text of words, a few words' and some
  // thousand that are read together.
  virtual size_t held() const = 0;
};

// Text to token ids and back. Constant after loading: every method may be called from any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // False where ids have no text, and encode() gives none: what clients say as text is refused.
  virtual bool reads_text() const { return true; }

  // Ids of a text, without BOS or EOS. Text that is kContinued does not get the space that a
  // tokenizer may put in front of a text. Invalid UTF-8 is read as U+FFFD (callers that must refuse
  // it ask is_valid_utf8() first). Time is O(n log n) in the bytes of the text. Throws what the
  // limits throw.
  std::vector<int32_t> encode(std::string_view utf8, SpecialTokens special = SpecialTokens::kAsText,
                              TextPosition position = TextPosition::kStart,
                              const WorkLimits& limits = {}) const;
  // The same for a text in UTF-8 of which only some ranges are kParse, and all else is kAsText.
  std::vector<int32_t> encode(const RangedText& text, TextPosition position = TextPosition::kStart,
                              const WorkLimits& limits = {}) const;
  // The same for a text that comes in parts. The tokenizer outlives it. After push() or
  // set_special() has thrown what the limits throw, the encoder can only be destroyed.
  virtual std::unique_ptr<TextEncoder> encoder(SpecialTokens special, TextPosition position,
                                               const WorkLimits& limits = {}) const = 0;
  // True if encode() depends on the position.
  virtual bool marks_start() const { return false; }

  // One more than the largest id. Rows of the model's vocabulary from here on are padding.
  virtual int32_t size() const = 0;

  // The bytes an id adds to a text; may be part of a UTF-8 character. Empty for control tokens and
  // for ids outside [0, size()). Valid as long as the tokenizer.
  virtual std::string_view token_bytes(int32_t id) const = 0;

  // The same for the first token of a text that is no control token.
  virtual std::string_view first_token_bytes(int32_t id) const { return token_bytes(id); }

  // True for control tokens (BOS, EOS, padding, template marks); false for ids out of range.
  virtual bool is_special(int32_t id) const = 0;

  // The id of a token by its name as the tokenizer's file spells it, e.g. "<|endoftext|>".
  virtual std::optional<int32_t> id_of(std::string_view name) const = 0;

  // What the tokenizer's own files say. The model's rules come first (a checkpoint's config may be
  // wrong about them, and so may these).
  virtual std::optional<int32_t> bos_id() const = 0;
  virtual std::optional<int32_t> eos_id() const = 0;

  virtual LeadingSpace leading_space() const { return LeadingSpace::kKeep; }
  // True if the id's bytes begin with a space that leading_space() speaks of.
  virtual bool has_space_mark(int32_t) const { return false; }

  // One line for the start-up table, e.g. "byte-level BPE, 50277 tokens, 50009 merges".
  virtual std::string description() const = 0;
};

// The tokenizer of a Hugging Face model directory: tokenizer.json or, where that is missing or of a
// kind that is not supported, tokenizer.model (SentencePiece); else RWKV's rwkv_vocab*.txt.
// others: what the other files say of its tokens, read_token_files() and the model's configs.
// Throws std::runtime_error with one sentence that names the file.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model_dir,
                                          const TokenFiles& others);
// With what read_token_files() says alone.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model_dir);

// Throws std::runtime_error unless every id has a row in the model's embedding.
void check_fits(const Tokenizer& tokenizer, int64_t vocab_rows,
                const std::filesystem::path& model_dir);

}  // namespace recurve
