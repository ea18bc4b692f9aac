#include "server/engine/request_digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "server/state/state_form.h"

namespace recurve {
namespace {

// What is hashed: each list with its length in front, so that borders count.
class Text {
 public:
  template <typename T>
  Text& add(const T& value) {
    static_assert(std::is_arithmetic_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  template <typename T>
  Text& add(const std::vector<T>& values) {
    add(values.size());
    for (const T& value : values) add(value);
    return *this;
  }
  Text& add(const std::string& text) {
    add(text.size());
    bytes_.append(text);
    return *this;
  }
  Text& add(const std::pair<int32_t, float>& bias) { return add(bias.first).add(bias.second); }
  Text& add(const PromptReading& prompt) { return add(prompt.ids).add(prompt.replaces_pending); }
  std::string hash() {
    const uint64_t first = checksum_of(bytes_);
    return fmt::format("{:016x}{:016x}", first, checksum_of("second " + bytes_));
  }

 private:
  std::string bytes_;
};

}  // namespace

std::string digest_of(const Request& request) {
  const SamplingParams& p = request.sampling;
  Text text;
  text.add(request.prompt).add(request.continued_prompt.has_value());
  if (request.continued_prompt) text.add(*request.continued_prompt);
  text.add(p.temperature).add(p.top_k).add(p.top_p).add(p.min_p).add(p.typical_p);
  text.add(p.repetition_penalty).add(p.presence_penalty).add(p.frequency_penalty);
  text.add(p.logit_bias)
      .add(p.allowed_ids)
      .add(request.max_tokens_is_default ? -1 : p.max_tokens)
      .add(p.min_tokens);
  text.add(p.ignore_eos).add(p.stop_ids).add(p.logprobs).add(p.prompt_logprobs);
  if (p.constraint != nullptr) {
    const ConstraintText& constraint = p.constraint->text();
    text.add(static_cast<int>(constraint.form)).add(constraint.text);
  }
  const auto& [initial_state, adapter] = request.binding;
  if (initial_state) text.add(initial_state->id.digest);
  if (adapter) text.add("adapter " + adapter->id.digest);
  text.add(request.stop_digest).add(request.seed_is_drawn);
  if (!request.seed_is_drawn) text.add(p.seed);
  return text.hash();
}

EndReason reason_from(std::string_view name) {
  const auto row = std::ranges::find(kEnds, name, &EndRow::name);
  return row != kEnds.end() && is_answer(row->reason) ? row->reason : EndReason::kInternal;
}

}  // namespace recurve
