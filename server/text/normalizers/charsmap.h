#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace recurve {

// The "precompiled_charsmap" of a SentencePiece model: replacements of characters. Constant after
// construction.
//
// Its bytes are the size of a double array (32 bits, little-endian), the double array (Aoe 1989, in
// units of 32 bits as darts-clone has them) and strings that end in a zero byte. The array is a
// trie of keys; its values are the positions of the replacements in the strings.
class CharsMap {
 public:
  // `base64` is the field of a tokenizer.json (RFC 4648, section 4). Throws std::runtime_error if
  // it is not base64 or not in this format.
  explicit CharsMap(std::string_view base64);
  // The bytes themselves, as a SentencePiece model has them.
  static CharsMap from_bytes(std::string_view bytes);

  // The replacement of the shortest key that `utf8` begins with, which is the one that Hugging
  // Face's `tokenizers` takes; empty if there is none.
  std::optional<std::string_view> find(std::string_view utf8) const;

  // The longest key that `utf8` begins with, which is the one that SentencePiece takes.
  struct Longest {
    size_t bytes = 0;  // of the key; 0: none
    std::string_view replacement;
    bool open = false;  // with more text, a longer key may match
  };
  Longest find_longest(std::string_view utf8) const;

 private:
  CharsMap() = default;
  void read(std::string_view bytes);
  // A node is the position of its children: the unit of the child for a byte is at node ^ byte, and
  // the value of the node at node ^ 0. Sets `ends` to whether a key ends at the child.
  std::optional<uint32_t> child(uint32_t node, unsigned char byte, bool* ends) const;
  std::string_view replacement(uint32_t node) const;
  void check_values() const;

  std::vector<uint32_t> units_;
  std::string strings_;
  uint32_t root_ = 0;
};

}  // namespace recurve
