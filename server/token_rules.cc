#include "server/token_rules.h"

#include <algorithm>

#include "server/observe/log.h"

namespace recurve {
namespace {

// The id if it is a control token, or nothing is known of tokens; says so in the log if it is none.
std::optional<int32_t> checked(std::optional<int32_t> id, const char* key,
                               const Tokenizer& tokenizer) {
  if (!id || !tokenizer.reads_text() || tokenizer.is_special(*id)) return id;
  log_event(LogLevel::kWarning, "config_token_ignored",
            {{"key", key},
             {"id", *id},
             {"token", tokenizer.token_bytes(*id)},
             {"reason", "not a control token of the tokenizer"}});
  return std::nullopt;
}

}  // namespace

TokenRules resolve_token_rules(const ModelInfo& model, const Tokenizer& tokenizer) {
  TokenRules rules;
  std::optional<int32_t> bos = checked(model.bos, "bos_token_id", tokenizer);
  if (!bos) bos = tokenizer.bos_id();
  for (int32_t id : model.eos) {
    if (auto eos = checked(id, "eos_token_id", tokenizer)) rules.eos.push_back(*eos);
  }
  if (rules.eos.empty()) {
    if (auto eos = tokenizer.eos_id() ? tokenizer.eos_id() : bos) rules.eos.push_back(*eos);
  }
  rules.force_bos = model.force_bos && bos.has_value();
  if (rules.force_bos) rules.bos = bos;
  return rules;
}

}  // namespace recurve
