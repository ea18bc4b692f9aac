#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace recurve {

// The "precompiled_charsmap" of a SentencePiece model: what is written for which characters.
// Constant after construction.
//
// Its bytes are the size of a double array (32 bits, little-endian), the double array (Aoe 1989, in
// the units of 32 bits of darts-clone) and strings that end in a zero byte. The array is a trie of
// what is replaced; its values are where in the strings the replacements begin.
class CharsMap {
 public:
  // `base64`: as a tokenizer.json has it (RFC 4648, section 4). Throws std::runtime_error if it is
  // not base64, or is not of the form above.
  explicit CharsMap(std::string_view base64);
  // The bytes themselves, as a SentencePiece model has them.
  static CharsMap from_bytes(std::string_view bytes);

  // What the shortest key that `utf8` begins with is replaced by; nothing if there is no such key.
  // The shortest, since that is what Hugging Face's `tokenizers` takes.
  std::optional<std::string_view> find(std::string_view utf8) const;

  // The longest key that `utf8` begins with, which is what SentencePiece takes.
  struct Longest {
    size_t bytes = 0;          // of the key; 0: there is none
    std::string_view written;  // what it is replaced by
    bool may_go_on = false;    // text that follows may make it a longer one
  };
  Longest find_longest(std::string_view utf8) const;

 private:
  CharsMap() = default;
  void read(std::string_view bytes);
  // A node is where its children are: the unit of the one that a byte leads to is at node ^ byte,
  // and the node's own value at node ^ 0. `ends`: whether a key ends at the child.
  std::optional<uint32_t> child(uint32_t node, unsigned char byte, bool* ends) const;
  std::string_view replacement(uint32_t node) const;
  void check_values() const;

  std::vector<uint32_t> units_;
  std::string strings_;
  uint32_t root_ = 0;
};

}  // namespace recurve
