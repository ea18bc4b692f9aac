#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// The tokenizer of RWKV's World models: at each position of a text, the longest entry of the
// vocabulary, byte by byte; nothing is added before or after. Every text has ids. Id 0 has no bytes
// and is always the end of a text. `vocabulary` is the text of the file, `file` its name for
// messages. Throws std::runtime_error, whose message names the file.
std::unique_ptr<Tokenizer> parse_world_vocabulary(std::string_view vocabulary,
                                                  const std::string& file);

// The entries of such a vocabulary (rwkv_vocab_v20230424.txt), which has one per line:
//   ID LITERAL BYTES
// LITERAL is a Python string ('...' or "..."), encoded in UTF-8, or bytes (b'...' or b"..."), and
// may contain spaces. BYTES is the number of bytes. Returns [id]: the bytes, empty for unused ids
// and 0. Throws std::runtime_error, whose message names the line, for another format or an entry
// that occurs twice, and if one of the 256 single bytes has no entry, without which some texts have
// no ids.
std::vector<std::string> read_world_vocabulary(std::string_view text);

}  // namespace recurve
