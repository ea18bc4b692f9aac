#include "server/http/openai/fields/field_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "server/http/body_fields.h"

namespace recurve {
namespace {

constexpr int kC = 1, kH = 2, kR = 4;  // completions, chat completions, responses
constexpr int kCH = kC | kH, kHR = kH | kR, kAll = kC | kH | kR;
constexpr bool kRefused = false, kHarmless = true;

constexpr RequestField kFields[] = {
    // The prompt.
    {"model", kAll, kHarmless},
    {"prompt", kC, kRefused, {"[]"}},          // a session may continue without one
    {"messages", kH, kRefused, {"[]", "{}"}},  // refused where they are read
    {"input", kR, kRefused, {"[]", "{}"}},
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
    {"input_ids", 0, kRefused},
    {"prompt_embeds", 0, kRefused},
    {"previous_response", 0, kRefused},
    {"previous_input_messages", 0, kRefused, {"[]"}},
    {"documents", 0, kRefused, {"[]"}},
    {"image_data", 0, kRefused, {"[]"}},
    {"multimodal_data", 0, kRefused, {"[]"}},
    {"media_io_kwargs", 0, kHarmless, {}, "there are no media in a prompt"},
    {"mm_processor_kwargs", 0, kHarmless, {}, "there are no media in a prompt"},
    {"images_config", 0, kHarmless, {}, "there are no media in a prompt"},
    {"max_dynamic_patch", 0, kHarmless, {}, "there are no media in a prompt"},
    {"min_dynamic_patch", 0, kHarmless, {}, "there are no media in a prompt"},
    {"use_audio_in_video", 0, kHarmless, {}, "there are no media in a prompt"},
    // The answer.
    {"max_tokens", kCH, kRefused},
    {"max_completion_tokens", kH, kRefused},
    {"max_output_tokens", kR, kRefused},
    {"n", kCH, kRefused, {"1"}},
    {"best_of", 0, kRefused, {"1"}},
    {"echo", kC, kRefused, {"false"}},
    {"logprobs", kCH, kRefused, {"false"}},
    {"top_logprobs", kHR, kRefused, {"0"}},
    {"include", kR, kHarmless, {"[]"}, "returns more about the same answer"},
    {"stop", kAll, kRefused, {"[]"}},
    {"stream", kAll, kRefused, {"false"}},
    {"stream_options", kAll, kHarmless, {"{}"}},
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
    {"background_options", 0, kHarmless, {}, "is used with background only"},
    // Sampling.
    {"temperature", kAll, kRefused},
    {"top_p", kAll, kRefused},
    {"presence_penalty", kAll, kRefused},
    {"frequency_penalty", kAll, kRefused},
    {"logit_bias", kAll, kRefused, {"{}"}},
    {"seed", kAll, kRefused},
    // The request, and an answer that is stored.
    {"store", kR, kHarmless, {}, "other answers are not stored"},
    {"metadata", 0, kHarmless, {}, "is returned with a response, for the client only"},
    {"user", 0, kHarmless, {}, "for OpenAI's checks; is returned with a response"},
    {"truncation", 0, kHarmless, {}, "no prompt is too long for a state"},
    {"parallel_tool_calls", kHR, kHarmless, {}, "there are no calls"},
    {"max_tool_calls", 0, kHarmless, {}, "the client answers each call"},
    {"service_tier", 0, kHarmless, {}, "there is one"},
    {"safety_identifier", 0, kHarmless, {}, "for OpenAI's checks"},
    {"access_programs", 0, kHarmless, {}, "for OpenAI's checks"},
    {"prompt_cache_key", 0, kHarmless, {}, "prompts that share a prefix are found without one"},
    {"prompt_cache_options", 0, kHarmless, {}, "an answer is the same with and without the cache"},
    {"prompt_cache_retention",
     0,
     kHarmless,
     {},
     "an answer is the same with and without the cache"},
    // Of this server, and of others with the same meaning.
    {"session", kCH, kRefused},
    {"priority", kAll, kHarmless},
    {"prefix", kAll, kHarmless},
    {"prefix_points", kAll, kHarmless, {"[]"}},
    {"top_k", kAll, kRefused},
    {"min_p", kAll, kRefused},
    {"typical_p", kAll, kRefused},
    {"repetition_penalty", kAll, kRefused},
    {"min_tokens", kAll, kRefused},
    {"ignore_eos", kAll, kRefused},
    {"stop_token_ids", kAll, kRefused, {"[]"}},
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
    {"regex", kCH, kRefused},
    {"ebnf", kCH, kRefused},
    {"json_schema", kCH, kRefused},
    // Of vLLM.
    {"bad_words", 0, kRefused, {"[]"}},
    {"cache_salt", 0, kHarmless, {}, "an answer is the same with and without the cache"},
    {"chat_template", 0, kRefused},
    {"ec_transfer_params", 0, kRefused},
    {"enable_response_messages", 0, kRefused, {"false"}},
    {"guided_decoding", 0, kRefused},
    {"guided_decoding_backend", 0, kHarmless, {}, "there is one"},
    {"guided_json_object", 0, kRefused, {"false"}},
    {"guided_whitespace_pattern", 0, kRefused},
    {"include_reasoning", 0, kRefused, {"true"}},
    {"kv_transfer_params", 0, kRefused},
    {"length_penalty", 0, kRefused, {"1.0", "1"}},
    {"logits_processors", 0, kRefused, {"[]"}},
    {"logprob_token_ids", 0, kRefused},
    {"prompt_logprobs", 0, kRefused},
    {"repetition_detection", 0, kRefused},
    {"request_id", 0, kHarmless, {}, "the header x-request-id names a request"},
    {"return_mm_kwargs", 0, kHarmless, {}, "there are no media in a prompt"},
    {"return_prompt_text", 0, kRefused, {"false"}},
    {"return_token_ids", 0, kRefused, {"false"}},
    {"return_token_offsets", 0, kRefused, {"false"}},
    {"return_tokens_as_token_ids", kCH, kRefused, {"false"}},
    {"routed_experts_prompt_start", 0, kHarmless, {}, "is used with return_routed_experts only"},
    {"session_id",
     0,
     kHarmless,
     {},
     "tells a router where a request goes; the field session names one"},
    {"skip_special_tokens", 0, kHarmless, {}, "control tokens have no text"},
    {"spaces_between_special_tokens", 0, kHarmless, {}, "control tokens have no text"},
    {"stream_interval", 0, kHarmless, {}, "how often events are sent"},
    {"structural_tag", 0, kRefused},
    {"thinking_token_budget", 0, kRefused, {"-1"}},
    {"truncate_prompt_tokens", 0, kRefused},
    {"truncation_side", 0, kHarmless, {}, "is used with truncate_prompt_tokens only"},
    {"use_beam_search", 0, kRefused, {"false"}},
    {"vllm_xargs", 0, kRefused, {"{}"}},
    {"watermarking", 0, kRefused, {"false"}},
    // Of SGLang.
    {"bootstrap_host", 0, kRefused},
    {"bootstrap_port", 0, kRefused},
    {"bootstrap_room", 0, kRefused},
    {"custom_labels", 0, kHarmless, {}, "for the metrics of SGLang"},
    {"custom_logit_processor", 0, kRefused},
    {"custom_params", 0, kRefused, {"{}"}},
    {"data_parallel_rank", 0, kHarmless, {}, "tells a router where a request goes"},
    {"disagg_prefill_dp_rank", 0, kHarmless, {}, "tells a router where a request goes"},
    {"extra_key", 0, kHarmless, {}, "an answer is the same with and without the cache"},
    {"lora_path", 0, kRefused},
    {"ngram_corpus_id", 0, kHarmless, {}, "of speculation, with which an answer is the same"},
    {"no_stop_trim", 0, kRefused, {"false"}},
    {"return_cached_tokens_details", 0, kRefused, {"false"}},
    {"return_hidden_states", 0, kRefused, {"false"}},
    {"return_meta_info", 0, kRefused, {"false"}},
    {"return_prompt_token_ids", 0, kRefused, {"false"}},
    {"return_routed_experts", 0, kRefused, {"false"}},
    {"rid", 0, kHarmless, {}, "the header x-request-id names a request"},
    {"routed_dp_rank", 0, kHarmless, {}, "tells a router where a request goes"},
    {"routed_experts_start_len", 0, kHarmless, {}, "is used with return_routed_experts only"},
    {"separate_reasoning", 0, kRefused, {"true"}},
    {"session_params", 0, kRefused, {"{}"}},
    {"stop_regex", 0, kRefused, {"[]"}},
    {"stream_reasoning", 0, kRefused, {"true"}},
    {"task", 0, kRefused},
    // Of llama.cpp.
    {"adaptive_decay", 0, kHarmless, {}, "is used with adaptive_target only"},
    {"adaptive_target", 0, kRefused, {"-1", "-1.0"}},
    {"backend_sampling", 0, kHarmless, {}, "the device that samples"},
    {"cache_prompt", 0, kHarmless, {}, "an answer is the same with and without the cache"},
    {"dry_allowed_length", 0, kHarmless, {}, "is used with dry_multiplier only"},
    {"dry_base", 0, kHarmless, {}, "is used with dry_multiplier only"},
    {"dry_multiplier", 0, kRefused, {"0", "0.0"}},
    {"dry_penalty_last_n", 0, kHarmless, {}, "is used with dry_multiplier only"},
    {"dry_sequence_breakers", 0, kHarmless, {}, "is used with dry_multiplier only"},
    {"dynatemp_exponent", 0, kHarmless, {}, "is used with dynatemp_range only"},
    {"dynatemp_range", 0, kRefused, {"0", "0.0"}},
    {"grammar", 0, kRefused, {"\"\""}},
    {"grammar_lazy", 0, kRefused, {"false"}},
    {"grammar_triggers", 0, kRefused, {"[]"}},
    {"id_slot", 0, kHarmless, {}, "the server chooses the slot"},
    {"lora", 0, kRefused, {"[]"}},
    {"min_keep", 0, kRefused, {"0"}},
    {"mirostat", 0, kRefused, {"0"}},
    {"mirostat_eta", 0, kHarmless, {}, "is used with mirostat only"},
    {"mirostat_tau", 0, kHarmless, {}, "is used with mirostat only"},
    {"n_cache_reuse", 0, kHarmless, {}, "an answer is the same with and without the cache"},
    {"n_cmpl", 0, kRefused, {"1"}},
    {"n_discard", 0, kHarmless, {}, "no prompt is too long for a state"},
    {"n_indent", 0, kRefused, {"0"}},
    {"n_keep", 0, kHarmless, {}, "no prompt is too long for a state"},
    {"n_predict", 0, kRefused, {"-1"}},
    {"n_probs", 0, kRefused, {"0"}},
    {"parse_tool_calls", 0, kRefused, {"true"}},
    {"post_sampling_probs", 0, kRefused, {"false"}},
    {"preserved_tokens", 0, kRefused, {"[]"}},
    {"reasoning_budget_tokens", 0, kRefused, {"-1"}},
    {"reasoning_format", 0, kRefused, {"\"none\"", "\"auto\""}},
    {"repeat_last_n", 0, kRefused, {"-1"}},
    {"repeat_penalty", 0, kRefused, {"1", "1.0"}},
    {"response_fields", 0, kRefused, {"[]"}},
    {"return_progress", 0, kHarmless, {}, "adds to a stream, not to the answer"},
    {"return_tokens", 0, kRefused, {"false"}},
    {"samplers", 0, kRefused},
    {"sse_ping_interval", 0, kHarmless, {}, "adds to a stream, not to the answer"},
    {"t_max_predict_ms", 0, kRefused, {"0"}},
    {"thinking_budget_tokens", 0, kRefused, {"-1"}},
    {"thinking_forced_open", 0, kRefused, {"false"}},
    {"timings_per_token", 0, kHarmless, {}, "adds to a response, not to the answer"},
    {"top_n_sigma", 0, kRefused, {"-1", "-1.0"}},
    {"xtc_probability", 0, kRefused, {"0", "0.0"}},
    {"xtc_threshold", 0, kHarmless, {}, "is used with xtc_probability only"},
    // Of others: Ollama, Transformers, services.
    {"do_sample", 0, kRefused, {"true"}},
    {"early_stopping", 0, kRefused, {"false"}},
    {"enable_thinking", 0, kRefused, {"false"}},
    {"format", 0, kRefused, {"\"\""}},
    {"keep_alive", 0, kHarmless, {}, "the model stays loaded"},
    {"max_length", 0, kRefused},
    {"max_new_tokens", 0, kRefused},
    {"min_new_tokens", 0, kRefused, {"0"}},
    {"num_beams", 0, kRefused, {"1"}},
    {"num_ctx", 0, kRefused},
    {"num_predict", 0, kRefused, {"-1"}},
    {"options", 0, kRefused, {"{}"}},
    {"stop_sequences", 0, kRefused, {"[]"}},
    {"tfs_z", 0, kRefused, {"1", "1.0"}},
    {"think", 0, kRefused, {"false"}},
    {"thinking", 0, kRefused, {"{\"type\":\"disabled\"}"}},
    {"top_a", 0, kRefused, {"0", "0.0"}},
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

std::span<const RequestField> request_fields() { return kFields; }

bool is_read_by(const RequestField& field, Resource resource) {
  return (field.read_by & bit_of(resource)) != 0;
}

void check_fields(const ClientJson& body, Resource resource) {
  for (const RequestField& field : kFields) {
    const ClientJson* value = find(body, field.name);
    if (value == nullptr) continue;
    const bool is_read = is_read_by(field, resource);
    const bool is_empty = value->is_structured() && value->empty();
    if (is_read ? !is_empty : field.is_harmless) continue;
    const std::string text = value->is_binary() ? std::string() : dump(*value);
    const bool same = std::any_of(field.same.begin(), field.same.end(),
                                  [&](const char* one) { return one != nullptr && text == one; });
    if (same) continue;
    throw BadField(field.name,
                   is_read ? fmt::format("{} must not be empty: leave it out", field.name)
                           : fmt::format("{} is not supported here: leave it out", field.name));
  }
}

}  // namespace recurve
