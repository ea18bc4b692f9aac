#include "server/request/gathered_answer.h"

#include <algorithm>
#include <optional>
#include <variant>
#include <vector>

namespace recurve {
namespace {

// Of a token's text, and of a token with its log-probability as values of JSON.
constexpr int64_t kTextBytes = 32, kLogprobBytes = 512;

int64_t bytes_of_token(const std::optional<int32_t>& logprobs) {
  if (!logprobs) return kTextBytes;
  return kTextBytes + kLogprobBytes * (1 + std::clamp(*logprobs, 0, kMaxLogprobs));
}

}  // namespace

// What is out of range is refused by its own name before there is an answer.
int64_t most_bytes_gathered(const TextRequest& asked, const RequestRules& rules) {
  const int32_t most = rules.max_generated_tokens;
  const int64_t tokens = std::clamp(asked.max_tokens.value_or(kDefaultMaxTokens), 0, most);
  const int64_t choices = std::clamp(asked.choices, 1, std::max(rules.max_choices, 1));
  int64_t bytes = choices * tokens * bytes_of_token(asked.logprobs);
  const auto* ids = std::get_if<std::vector<int32_t>>(&asked.prompt);
  if (asked.prompt_logprobs && ids != nullptr) {
    bytes += choices * static_cast<int64_t>(ids->size()) * bytes_of_token(asked.prompt_logprobs);
  }
  return bytes;
}

Refused hold_gathered(Serving& serving, const Identity& caller, std::span<const TextRequest> asked,
                      ByteBudget::Share* share) {
  int64_t bytes = 0;
  for (const TextRequest& one : asked) bytes += most_bytes_gathered(one, serving.rules);
  const int64_t most = serving.options.max_gathered_bytes / 2;
  if (bytes > most) {
    return invalid(
        "max_tokens",
        "the whole answer may take {} MB by max_tokens, n and logprobs, and at most {} MB "
        "are gathered: stream it, or ask for less",
        bytes >> 20, most >> 20);
  }
  *share = serving.gathered_bytes.take(bytes, caller.share());
  if (*share) return {};
  return refuse(
      EndReason::kExhausted,
      fmt::format("the whole answer may take {} MB, and answers under way fill the memory for "
                  "these: stream it, or try again later",
                  bytes >> 20));
}

}  // namespace recurve
