#pragma once
#include "model/model.h"
#include "server/request/serving_info.h"
#include "server/text/tokenizers/token_files.h"
#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// The control tokens that the tokenizer's files define, with the end ids of the model.
TokenFiles token_files(const ModelInfo& model, const std::filesystem::path& tokenizer_dir);

// The tokens that begin and end a text. Every end id of the checkpoint ends it: those of
// config.json and generation_config.json (`model`), eos_token of the tokenizer's files (`files`),
// and that of the tokenizer itself. Without any, the tokenizer's BOS does, as it separates
// documents. Two kinds of ids are logged and ignored: ids without a token, and the default of the
// upstream config class if it is ordinary text: in xLSTM-7b, 2 is "!". The BOS of config.json is
// used only if it is a control token of the tokenizer.
TokenRules resolve_token_rules(const ModelInfo& model, const TokenFiles& files,
                               const Tokenizer& tokenizer);

// A line of the start-up table: `0 (config.json, tokenizer_config.json), 5 "!"
// (generation_config.json)`.
std::string ends_line(const TokenRules& rules, const Tokenizer& tokenizer);

}  // namespace recurve
