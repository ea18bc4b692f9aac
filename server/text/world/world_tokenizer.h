#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// The tokenizer of RWKV's World models: at each place of a text the longest entry of the vocabulary
// that stands there, byte by byte, without anything before or after. Every text has ids. Id 0 has
// no bytes and ends a text, whatever a config says. vocabulary: the text of its file
// (server/text/world/world_vocabulary.h). file: its name for messages. Throws std::runtime_error
// with one sentence that names the file.
std::unique_ptr<Tokenizer> parse_world_vocabulary(std::string_view vocabulary,
                                                  const std::string& file);

}  // namespace recurve
