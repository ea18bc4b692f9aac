#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace recurve {

// GPT-2's reversible map from bytes to printable characters, in which byte-level BPE writes its
// vocabulary: the printable bytes 21-7E, A1-AC, AE-FF stand for themselves as code points, the
// other 68 are 0x100, 0x101, ... in order (so a space is U+0120).
// Source: openai/gpt-2 encoder.py, bytes_to_unicode().

// Appends the mapped form of `bytes` (UTF-8, 1 or 2 bytes a byte).
void append_byte_level(std::string_view bytes, std::string& out);

// Appends the bytes that a mapped text stands for; false if it holds a character that is not of the
// map; the bytes of those in front of it are appended then.
bool append_undone_byte_level(std::string_view mapped, std::string& out);

// The same as a string of its own; nullopt if it holds a character that is not of the map.
std::optional<std::string> undo_byte_level(std::string_view mapped);

}  // namespace recurve
