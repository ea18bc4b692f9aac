#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace recurve {

// The byte-level alphabet: GPT-2's reversible map from bytes to printable characters, in which
// byte-level BPE writes its vocabulary. The printable bytes 21-7E, A1-AC and AE-FF become the code
// points of the same value, the other 68 become 0x100, 0x101, ... in order (a space is U+0120).
// Source: openai/gpt-2 encoder.py, bytes_to_unicode().

// Appends the characters of `bytes`, in UTF-8 of one or two bytes each.
void encode_byte_level(std::string_view bytes, std::string& out);

// Appends the bytes of such characters; false, after the bytes before it, at a character that is
// not in the alphabet.
bool decode_byte_level(std::string_view characters, std::string& out);

std::optional<std::string> decode_byte_level(std::string_view characters);

}  // namespace recurve
