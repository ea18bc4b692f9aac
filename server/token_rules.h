#pragma once
#include "model/model.h"
#include "server/request/serving_info.h"
#include "server/text/tokenizer.h"

namespace recurve {

// Which tokens begin and end a text, from what the model's config and the tokenizer's files say.
// Configs are often wrong: xLSTM-7b's EOS is "!", Codestral's is "<unk>". So an id of the config
// counts only if the tokenizer holds it for a control token; where none is left, the tokenizer's
// own EOS ends a text, and where that has none, its BOS does, as the marker between documents.
TokenRules resolve_token_rules(const ModelInfo& model, const Tokenizer& tokenizer);

}  // namespace recurve
