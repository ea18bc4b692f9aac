#include "server/http/openai/field_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "server/http/body_fields.h"

namespace recurve {
namespace {

using nlohmann::json;

// Where a field is not read, it is refused by name because the answer would be another one with it,
// or ignored because it would not. What does not stand here is ignored too.
enum Otherwise { kRefused, kIgnored };

constexpr int kC = 1, kH = 2, kR = 4;  // completions, chat completions, responses
constexpr int kCH = kC | kH, kHR = kH | kR, kAll = kC | kH | kR;

struct Field {
  const char* name;
  int read_by;
  Otherwise otherwise;
  std::array<const char*, 2> same = {};  // JSON that is never refused, besides null
};
constexpr Field kFields[] = {
    // What is asked.
    {"model", kAll, kIgnored},
    {"prompt", kC, kRefused},
    {"messages", kH, kRefused},
    {"input", kR, kRefused},
    {"instructions", kR, kRefused},
    {"previous_response_id", kR, kRefused},
    {"suffix", 0, kRefused, {"\"\""}},
    {"tools", kHR, kRefused, {"[]"}},
    {"tool_choice", kHR, kRefused, {"\"none\"", "\"auto\""}},
    {"functions", 0, kRefused, {"[]"}},
    {"function_call", 0, kRefused, {"\"none\"", "\"auto\""}},
    {"conversation", 0, kRefused},
    {"context_management", 0, kRefused, {"[]"}},
    {"prediction", 0, kRefused},
    {"web_search_options", 0, kRefused},
    // What the answer is like.
    {"max_tokens", kCH, kRefused},
    {"max_completion_tokens", kH, kRefused},
    {"max_output_tokens", kR, kRefused},
    {"n", kCH, kRefused, {"1"}},
    {"best_of", 0, kRefused, {"1"}},
    {"echo", kC, kRefused, {"false"}},
    {"logprobs", kCH, kRefused, {"false"}},
    {"top_logprobs", kHR, kRefused, {"0"}},
    {"include", kR, kIgnored},
    {"stop", kAll, kRefused},
    {"stream", kAll, kRefused, {"false"}},
    {"stream_options", kAll, kIgnored},
    {"response_format", kCH, kRefused, {"{\"type\":\"text\"}"}},
    {"text", kR, kRefused, {"{\"format\":{\"type\":\"text\"}}", "{}"}},
    {"modalities", 0, kRefused, {"[\"text\"]"}},
    {"audio", 0, kRefused},
    {"image", 0, kRefused},
    {"reasoning", 0, kRefused, {"{}"}},
    {"reasoning_effort", 0, kRefused, {"\"none\""}},
    {"verbosity", 0, kRefused, {"\"medium\""}},
    {"moderation", 0, kRefused},
    {"background", 0, kRefused, {"false"}},
    {"background_options", 0, kIgnored},
    // How tokens are chosen.
    {"temperature", kAll, kRefused},
    {"top_p", kAll, kRefused},
    {"presence_penalty", kAll, kRefused},
    {"frequency_penalty", kAll, kRefused},
    {"logit_bias", kAll, kRefused},
    {"seed", kAll, kRefused},
    // What goes with the request, or with an answer that is kept.
    {"store", kR, kIgnored},
    {"metadata", kR, kIgnored},
    {"user", kR, kIgnored},
    {"truncation", kR, kIgnored},  // nothing is ever too long for a state
    {"parallel_tool_calls", kHR, kIgnored},
    {"max_tool_calls", 0, kIgnored},
    {"service_tier", 0, kIgnored},
    {"safety_identifier", 0, kIgnored},
    {"access_programs", 0, kIgnored},
    {"prompt_cache_key", 0, kIgnored},
    {"prompt_cache_options", 0, kIgnored},
    {"prompt_cache_retention", 0, kIgnored},
    // Ours, and those of other servers that mean the same.
    {"session", kCH, kRefused},
    {"priority", kAll, kIgnored},
    {"prefix", kAll, kIgnored},
    {"prefix_points", kAll, kIgnored},
    {"top_k", kAll, kRefused},
    {"min_p", kAll, kRefused},
    {"typical_p", kAll, kRefused},
    {"repetition_penalty", kAll, kRefused},
    {"min_tokens", kAll, kRefused},
    {"ignore_eos", kAll, kRefused},
    {"stop_token_ids", kAll, kRefused},
    {"allowed_token_ids", kAll, kRefused},
    {"include_stop_str_in_output", kAll, kRefused, {"false"}},
    {"add_special_tokens", kAll, kRefused},
    {"chat_template_kwargs", kHR, kRefused, {"{}"}},
    {"add_generation_prompt", kH, kRefused, {"true"}},
    {"continue_final_message", kH, kRefused, {"false"}},
    {"guided_choice", kCH, kRefused},
    {"guided_grammar", kCH, kRefused},
    {"guided_json", kCH, kRefused},
    {"guided_regex", kCH, kRefused},
    {"structured_outputs", kCH, kRefused},
    // Of other servers.
    {"bad_words", 0, kRefused, {"[]"}},
    {"chat_template", 0, kRefused},
    {"documents", 0, kRefused, {"[]"}},
    {"grammar", 0, kRefused, {"\"\""}},
    {"guided_decoding_backend", 0, kIgnored},
    {"guided_whitespace_pattern", 0, kRefused},
    {"json_schema", 0, kRefused},
    {"length_penalty", 0, kRefused, {"1.0", "1"}},
    {"prompt_logprobs", 0, kRefused},
    {"skip_special_tokens", 0, kIgnored},
    {"spaces_between_special_tokens", 0, kIgnored},
    {"truncate_prompt_tokens", 0, kRefused},
    {"use_beam_search", 0, kRefused, {"false"}},
};

int bit_of(Resource resource) {
  switch (resource) {
    case Resource::kCompletions:
      return kC;
    case Resource::kChatCompletions:
      return kH;
    case Resource::kResponses:
      break;
  }
  return kR;
}

}  // namespace

void check_fields(const json& body, Resource resource) {
  for (const Field& field : kFields) {
    if (field.otherwise == kIgnored || (field.read_by & bit_of(resource)) != 0) continue;
    const json* value = find(body, field.name);
    if (value == nullptr) continue;
    const std::string said = dump(*value);
    const bool same = std::any_of(field.same.begin(), field.same.end(),
                                  [&](const char* one) { return one != nullptr && said == one; });
    if (same) continue;
    throw BadField(field.name, fmt::format("{} is not supported here: leave it out", field.name));
  }
}

}  // namespace recurve
