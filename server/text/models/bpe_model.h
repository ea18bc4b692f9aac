#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "server/text/models/bpe_merger.h"
#include "server/text/models/word_model.h"

namespace recurve {

// The BPE model of Hugging Face's `tokenizers`: the symbols of a word (its bytes or its characters)
// become ids, which are merged. A symbol that is not a token becomes the tokens of its bytes, or
// the unknown id, or is dropped.
class BpeModel final : public WordModel {
 public:
  struct Parts {
    bool byte_level = true;
    // [byte]: its token, -1: none. For a model of characters, the byte fallback.
    std::array<int32_t, 256> byte_ids = no_bytes();
    std::unordered_map<char32_t, int32_t> character_ids;  // not if byte_level
    BpeMerger merger;
    std::optional<int32_t> unknown;
    bool fuse_unknown = false;  // adjacent unknown symbols become one id
    // Pairs of characters that are adjacent in a token, left << 32 | right.
    std::unordered_set<uint64_t> neighbours;
    // Words that become one id without merges (ignore_merges).
    std::unordered_map<std::string, int32_t> whole_words;
  };
  static constexpr std::array<int32_t, 256> no_bytes() {
    std::array<int32_t, 256> ids{};
    ids.fill(-1);
    return ids;
  }

  explicit BpeModel(Parts parts);

  std::unique_ptr<WordEncoder> encoder() const override;
  bool joins_symbols() const override;
  bool is_boundary(char32_t before, char32_t here) const override;
  std::string kind() const override;
  std::string details() const override;

 private:
  class Encoder;
  class Symbols;

  int32_t id_of(char32_t c) const;
  int missing_bytes() const;
  bool append_fallback(std::string_view character, std::vector<int32_t>* symbols) const;

  Parts parts_;
  std::vector<int32_t> id_of_;  // [code point or byte], -1: none
  size_t longest_whole_word_ = 0;
};

}  // namespace recurve
