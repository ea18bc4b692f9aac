#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/text/added_tokens.h"
#include "server/text/bpe_merger.h"
#include "server/text/normalizer.h"
#include "server/text/pre_tokenizer.h"
#include "server/text/tokenizer.h"

namespace recurve {

// Byte-level BPE. Added tokens are cut out of a text, what lies between them is normalised, cut
// into words, written in the byte-level alphabet, and each word's bytes are merged. Or BPE of
// characters: the same without words and alphabet, and it is the characters that are merged, if
// anything is; those that are no token are left out.
class BpeTokenizer final : public Tokenizer {
 public:
  using Vocabulary = std::unordered_map<std::string, int32_t>;

  // What tokenizer_json.cc reads from the file, and has checked: ids are unique and in [0, size).
  struct Parts {
    bool byte_level = true;         // false: of characters
    Vocabulary vocabulary;          // names in the byte-level alphabet; without added tokens
    std::vector<AddedToken> added;  // ids may also be in `vocabulary`, under the same name
    int32_t size = 0;
    std::array<int32_t, 256> byte_ids{};  // [byte], -1: cannot occur in UTF-8
    BpeMerger merger;
    bool ignore_merges = false;            // a word that is a token is not put together by merges
    std::vector<NormalForm> normal_forms;  // applied in order
    PreTokenizer pre_tokenizer;            // holds exactly one ByteLevel; of characters: nothing
    std::optional<int32_t> bos;
    std::optional<int32_t> eos;
  };

  explicit BpeTokenizer(Parts parts);

  std::unique_ptr<TextEncoder> encoder(SpecialTokens special, TextPosition position,
                                       const WorkLimits& limits) const override;
  bool marks_start() const override { return parts_.pre_tokenizer.marks_start(); }
  int32_t size() const override { return parts_.size; }
  std::string_view token_bytes(int32_t id) const override;
  bool is_special(int32_t id) const override;
  std::optional<int32_t> id_of(std::string_view name) const override;
  std::optional<int32_t> bos_id() const override { return parts_.bos; }
  std::optional<int32_t> eos_id() const override { return parts_.eos; }
  std::string description() const override;

 private:
  friend class BpeEncoder;
  struct Workspace {
    BpeMerger::Workspace merge;
    std::vector<int32_t> word;
  };

  void encode_word(std::string_view mapped, Workspace& work, std::vector<int32_t>& out) const;
  void append_bytes(std::string_view mapped, std::vector<int32_t>& ids) const;
  void append_characters(std::string_view text, std::vector<int32_t>& ids) const;
  std::string normalize_text(std::string_view text) const;
  bool valid(int32_t id) const { return id >= 0 && id < parts_.size; }

  Parts parts_;
  std::vector<std::string> bytes_;   // [id]
  std::vector<bool> special_;        // [id]
  AddedTokenFinder in_raw_text_;     // the added tokens that are not `normalized`
  AddedTokenFinder in_normal_text_;  // those that are
};

}  // namespace recurve
