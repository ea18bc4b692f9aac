#include "server/serving/gathered_answer.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <variant>
#include <vector>

#include "server/text/utf8.h"

namespace recurve {
namespace {

constexpr int64_t kTokenBytes = 32;  // of each token, without its text

int64_t bytes_of_logprobs(const std::optional<int32_t>& logprobs, const LongestTokens& longest,
                          const GatheredForm& form) {
  if (!logprobs) return 0;
  const auto likeliest = static_cast<size_t>(std::clamp(*logprobs, 0, kMaxLogprobs));
  const auto sum =
      longest.sums.empty() ? 0 : longest.sums[std::min(likeliest, longest.sums.size() - 1)];
  return form.entry * static_cast<int64_t>(1 + likeliest) + form.entry_text * sum;
}

// Of one token of the answer.
int64_t bytes_of_token(const TextRequest& asked, const LongestTokens& longest,
                       const GatheredForm& form) {
  return kTokenBytes + form.text * longest.in_json +
         bytes_of_logprobs(asked.logprobs, longest, form);
}

Refused reserve(ServerCore& core, const Identity& caller, Refusal too_much, int64_t bytes,
                ByteBudget::Share* share) {
  if (bytes > core.options.max_gathered_bytes / 2) return too_much;
  *share = core.gathered_bytes.take(bytes, caller.share());
  if (*share) return {};
  return refuse(EndReason::kExhausted,
                fmt::format("not enough memory for a whole answer of up to {} MB: ask for less, "
                            "stream it, or try again later",
                            bytes >> 20));
}

}  // namespace

int64_t bytes_in_json(std::string_view text) {
  if (!is_valid_utf8(text)) return 6 + 5 * static_cast<int64_t>(text.size());
  int64_t bytes = 0;
  for (const char c : text)
    bytes += static_cast<unsigned char>(c) < ' ' ? 6 : c == '"' || c == '\\' ? 2 : 1;
  return bytes;
}

int64_t bytes_in_json(std::span<const int32_t> ids, const Tokenizer& tokenizer) {
  int64_t bytes = 0;
  for (const int32_t id : ids) bytes += bytes_in_json(tokenizer.token_bytes(id));
  return bytes;
}

LongestTokens longest_tokens(const Tokenizer& tokenizer, int32_t ids) {
  LongestTokens longest;
  std::vector<int64_t> sizes;
  for (int32_t id = 0; id < ids; ++id) {
    const std::string_view text = tokenizer.token_bytes(id);
    sizes.push_back(static_cast<int64_t>(text.size()));
    longest.in_json = std::max(longest.in_json, bytes_in_json(text));
  }
  std::ranges::sort(sizes, std::greater());
  sizes.resize(std::min(sizes.size(), size_t{kMaxLogprobs + 1}));
  for (const int64_t size : sizes) {
    longest.sums.push_back(size + (longest.sums.empty() ? 0 : longest.sums.back()));
  }
  return longest;
}

int32_t default_max_tokens(const TextRequest& asked, const ModelText& model) {
  const int32_t most = model.max_generated_tokens, limit = model.max_tokens_default;
  if (!asked.is_chat) return std::min(kDefaultMaxTokens, most);
  const int32_t wanted = limit > 0 ? std::min(limit, most) : most;
  constexpr int64_t kMostBytes = 16 << 20;  // so that several fit into the memory of all answers
  const int64_t each = bytes_of_token(asked, model.longest, kGatheredEvents);
  const int64_t fit = kMostBytes / std::max(asked.choices, 1) / each;
  return static_cast<int32_t>(
      std::clamp<int64_t>(fit, std::min(kDefaultMaxTokens, wanted), wanted));
}

// Values out of range are clamped here; validate() refuses them.
int64_t max_gathered_bytes_of(const TextRequest& asked, const ModelText& model,
                              const GatheredForm& form) {
  const int32_t most = model.max_generated_tokens;
  const int64_t tokens =
      std::clamp(asked.max_tokens ? *asked.max_tokens : default_max_tokens(asked, model), 0, most);
  const int64_t choices = std::clamp(asked.choices, 1, std::max(model.max_choices, 1));
  const LongestTokens& longest = model.longest;
  int64_t bytes = 0;
  if (form.answer) {
    bytes = tokens * bytes_of_token(asked, longest, form);
  }
  const auto* ids = std::get_if<std::vector<int32_t>>(&asked.prompt);
  if (asked.prompt_logprobs && ids != nullptr) {
    bytes += static_cast<int64_t>(ids->size()) *
             (kTokenBytes + bytes_of_logprobs(asked.prompt_logprobs, longest, form));
  }
  return choices * bytes;
}

Refused reserve_gathered(ServerCore& core, const ModelText& model, const Identity& caller,
                         std::span<const TextRequest> asked, const GatheredForm& form,
                         ByteBudget::Share* share) {
  constexpr int64_t kEscaped = 6;  // bytes of JSON for one byte, at most
  int64_t bytes = form.repeated * (form.text * kEscaped);
  for (const TextRequest& one : asked) bytes += max_gathered_bytes_of(one, model, form);
  const FieldNames names = asked.empty() ? FieldNames() : asked.front().names;
  return reserve(
      core, caller,
      invalid(
          names.max_tokens,
          "the whole answer may take {} MB with these {}, n and {}, the limit is {} MB: stream it, "
          "or ask for less",
          bytes >> 20, names.max_tokens, names.logprobs, core.options.max_gathered_bytes >> 21),
      bytes, share);
}

Refused reserve_answer(ServerCore& core, const Identity& caller, const char* field, int64_t bytes,
                       ByteBudget::Share* share) {
  return reserve(core, caller,
                 invalid(field, "the answer takes {} MB, and the limit is {} MB: send {} in parts",
                         bytes >> 20, core.options.max_gathered_bytes >> 21, field),
                 bytes, share);
}

}  // namespace recurve
