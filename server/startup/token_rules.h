#pragma once
#include "model/model.h"
#include "server/request/serving_info.h"
#include "server/text/tokenizers/token_files.h"
#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// What the files of the tokenizer say of control tokens, with the end ids of the model's.
TokenFiles token_files(const ModelInfo& model, const std::filesystem::path& tokenizer_dir);

// Which tokens begin and end a text. Every end id that a file of the checkpoint states ends it:
// config.json and generation_config.json (`model`), eos_token of the tokenizer's (`files`), and
// what the tokenizer itself has. Where none is stated, the tokenizer's BOS does, as the marker
// between documents. Two kinds of ids are logged and ignored: those that are no token's, and what
// upstream's class writes where nobody set it, if it is an ordinary word of texts: xLSTM-7b's 2 is
// "!". A BOS of the config counts only if the tokenizer holds it for a control token.
TokenRules resolve_token_rules(const ModelInfo& model, const TokenFiles& files,
                               const Tokenizer& tokenizer);

// For the start-up table: `0 (config.json, tokenizer_config.json), 5 "!" (generation_config.json)`.
std::string ends_line(const TokenRules& rules, const Tokenizer& tokenizer);

}  // namespace recurve
