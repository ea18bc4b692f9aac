#include "clients/cpp/cli/cli_request_flags.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <functional>

#include "clients/cpp/cli/cli_io.h"
#include "server/startup/flag_values.h"

namespace recurve {
namespace {

// A flag with one value, which `set` takes once it is parsed. The last one given counts.
template <class T>
CLI::Option* value_flag(CLI::App& command, const std::string& name, std::function<void(T)> set,
                        const std::string& help) {
  return command
      .add_option_function<T>(
          name, [set = std::move(set)](const T& value) { set(value); }, help)
      ->take_last();
}

// A flag that may be given several times, with one value each.
CLI::Option* repeated_flag(CLI::App& command, const std::string& name,
                           std::function<void(const std::string&)> add, const std::string& help) {
  return command
      .add_option_function<std::vector<std::string>>(
          name,
          [add = std::move(add)](const std::vector<std::string>& values) {
            for (const std::string& value : values) add(value);
          },
          help)
      ->allow_extra_args(false);
}

void add_logit_bias(v1::SamplingParams* sampling, const std::string& pair) {
  const char* end = pair.data() + pair.size();
  int32_t id = 0;
  float bias = 0;
  const auto [after_id, id_error] = std::from_chars(pair.data(), end, id);
  bool valid = id_error == std::errc() && after_id != end && *after_id == '=';
  if (valid) {
    const auto [after_bias, bias_error] = std::from_chars(after_id + 1, end, bias);
    valid = bias_error == std::errc() && after_bias == end;
  }
  if (!valid)
    throw CLI::ValidationError("--logit-bias", "'" + pair + "' is not ID=BIAS, as 42=-1.5");
  (*sampling->mutable_logit_bias())[id] = bias;
}

std::string file_text(const std::string& file) {
  std::string text = read_all(file);
  check_utf8(text, file);
  return text;
}

}  // namespace

void add_sampling_flags(CLI::App& command, v1::GenerateRequest* request) {
  const auto sampling = [request] { return request->mutable_sampling(); };
  value_flag<float>(
      command, "-t,--temperature", [=](float v) { sampling()->set_temperature(v); },
      "Divisor of the logits, 0 to 1000; 0: always the most likely token [default: 1]");
  value_flag<int32_t>(
      command, "--top-k", [=](int32_t v) { sampling()->set_top_k(v); },
      "Sample from this many most likely ids, from 0; 0: all [default: 0]");
  value_flag<float>(
      command, "--top-p", [=](float v) { sampling()->set_top_p(v); },
      "Sample from the fewest most likely ids whose probabilities reach this, above 0 to 1 "
      "[default: 1, all]");
  value_flag<float>(
      command, "--min-p", [=](float v) { sampling()->set_min_p(v); },
      "Sample from ids at least this many times as likely as the most likely, 0 to 1 [default: "
      "0, all]");
  value_flag<float>(
      command, "--typical-p", [=](float v) { sampling()->set_typical_p(v); },
      "Sample from the fewest ids whose probabilities reach this, those of average surprise first "
      "(locally typical sampling), above 0 to 1 "
      "[default: 1, all]");
  value_flag<float>(
      command, "--repetition-penalty", [=](float v) { sampling()->set_repetition_penalty(v); },
      "Penalty of ids of prompt and answer: divides positive logits, multiplies negative ones, "
      "0.01 to 100 [default: 1, off]");
  value_flag<float>(
      command, "--presence-penalty", [=](float v) { sampling()->set_presence_penalty(v); },
      "Subtract once from the logit of every id in the answer so far, -2 to 2 [default: 0]");
  value_flag<float>(
      command, "--frequency-penalty", [=](float v) { sampling()->set_frequency_penalty(v); },
      "Subtract for each time an id occurs in the answer so far, -2 to 2 [default: 0]");
  repeated_flag(
      command, "--logit-bias", [=](const std::string& pair) { add_logit_bias(sampling(), pair); },
      "Add to the logit of an id, -1000 to 1000; may be given 1024 times [default: none]")
      ->type_name("ID=BIAS");
  repeated_flag(
      command, "--allowed-token-ids",
      [=](const std::string& list) {
        for (const int32_t id : parse_ids(list, "--allowed-token-ids"))
          sampling()->add_allowed_token_ids(id);
      },
      "Sample only these ids, as 1,2,3; may be repeated [default: all]")
      ->type_name("IDS");
  value_flag<uint64_t>(
      command, "--seed", [=](uint64_t v) { sampling()->set_seed(v); },
      "Seed of sampling, 0 to 2^64 - 1; the same seed gives the same tokens [default: random; "
      "--stats prints it]")
      ->check(CLI::NonNegativeNumber);  // the parser would take -1 for 2^64 - 1
}

void add_stop_flags(CLI::App& command, v1::GenerateRequest* request) {
  const auto stop = [request] { return request->mutable_stop(); };
  value_flag<int32_t>(
      command, "-n,--max-tokens", [=](int32_t v) { stop()->set_max_tokens(v); },
      "Maximum tokens of the answer, from 0 to the server's limit; 0: only absorb the prompt "
      "[default: 256]");
  value_flag<int32_t>(
      command, "--min-tokens", [=](int32_t v) { stop()->set_min_tokens(v); },
      "Minimum tokens before an id may end the answer, 0 to --max-tokens [default: 0]");
  command.add_flag_function(
      "--ignore-eos", [=](int64_t count) { stop()->set_ignore_eos(count > 0); },
      "Do not end the answer at the model's end-of-sequence ids");
  repeated_flag(
      command, "--stop-token-ids",
      [=](const std::string& list) {
        for (const int32_t id : parse_ids(list, "--stop-token-ids")) stop()->add_stop_token_ids(id);
      },
      "End the answer at these ids too, as 1,2,3; at most 64; may be repeated [default: none]")
      ->type_name("IDS");
  repeated_flag(
      command, "--stop", [=](const std::string& text) { stop()->add_stop_strings(text); },
      "End the answer at this text, 1 to 1024 bytes; may be given 16 times [default: none]");
  command.add_flag_function(
      "--include-stop", [=](int64_t count) { stop()->set_include_stop(count > 0); },
      "Include the text of --stop in the answer");
}

void add_constraint_flags(CLI::App& command, v1::GenerateRequest* request) {
  const auto constraint = [request] { return request->mutable_constraint(); };
  std::vector<CLI::Option*> options;
  options.push_back(command.add_flag_function(
      "--any-json", [=](int64_t count) { constraint()->set_json(count > 0); },
      "Constrain the answer to JSON"));
  options.push_back(value_flag<std::string>(
      command, "--json-schema",
      [=](const std::string& file) { constraint()->set_json_schema(file_text(file)); },
      "Constrain the answer to the JSON Schema in this file [default: any text]"));
  options.push_back(value_flag<std::string>(
      command, "--regex", [=](const std::string& v) { constraint()->set_regex(v); },
      "Constrain the whole answer to this regular expression"));
  options.push_back(value_flag<std::string>(
      command, "--grammar",
      [=](const std::string& file) { constraint()->set_grammar(file_text(file)); },
      "Constrain the answer to the EBNF grammar in this file, from its rule root"));
  options.push_back(repeated_flag(
      command, "--choice",
      [=](const std::string& text) { constraint()->mutable_choice()->add_texts(text); },
      "Constrain the answer to one of these texts; repeat the flag for each"));
  options.push_back(value_flag<std::string>(
      command, "--structural-tag",
      [=](const std::string& file) { constraint()->set_structural_tag(file_text(file)); },
      "Constrain the answer to text in which each trigger begins one of the structures in this "
      "JSON file: {\"triggers\": "
      "[TEXT...], \"structures\": [{\"begin\": TEXT, \"schema\": {...}, \"end\": TEXT}...]}"));
  for (CLI::Option* option : options) {
    for (CLI::Option* other : options) {
      if (option != other) option->excludes(other);
    }
  }
  for (const int of_a_file : {1, 3, 5}) options[of_a_file]->type_name("FILE");
  command.add_flag_function(
      "--any-whitespace", [=](int64_t count) { constraint()->set_any_whitespace(count > 0); },
      "Let JSON have up to 16 characters of white space between two tokens, instead of one space "
      "after each comma and colon");
}

CLI::Option* add_tool_flags(CLI::App& command, ToolFlags* flags) {
  CLI::Option* tools = value_flag<std::string>(
      command, "--tools", [=](const std::string& file) { flags->tools_json = file_text(file); },
      "Functions that the model may call, in a JSON file: [{\"type\": \"function\", \"function\": "
      "{\"name\": ..., \"description\": ..., \"parameters\": JSON SCHEMA}}...]; each call is "
      "printed as a line of JSON [default: none]");
  tools->type_name("FILE");
  command
      .add_option("--tool-choice", flags->choice,
                  "auto: text, calls or both; required: calls only; none: text only, although the "
                  "prompt lists the functions; a name: a call of this function")
      ->capture_default_str()
      ->needs(tools);
  command
      .add_option("--allow-tool", flags->allowed,
                  "Allow calls of this function only; can be repeated [default: all]")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->needs(tools);
  command.add_flag("--single-tool-call", flags->single, "Allow at most one call")->needs(tools);
  return tools;
}

void set_tools(const ToolFlags& flags, v1::GenerateRequest* request) {
  request->clear_tool_use();
  if (flags.tools_json.empty() || !request->has_messages()) return;
  request->mutable_messages()->set_tools_json(flags.tools_json);
  if (flags.choice == "none") return;
  v1::ToolUse& use = *request->mutable_tool_use();
  use.set_single(flags.single);
  use.mutable_allowed()->Assign(flags.allowed.begin(), flags.allowed.end());
  use.set_required(flags.choice == "required");
  if (flags.choice != "auto" && flags.choice != "required") use.set_function(flags.choice);
}

void add_start_flags(CLI::App& command, v1::GenerateRequest* request) {
  add_model_flag(command, request);
  value_flag<std::string>(
      command, "--initial-state", [=](std::string v) { request->set_initial_state(v); },
      "Start from this state of the server, or open the session with it; see `recurve info` "
      "[default: none]");
  add_adapter_flag(command, request);
}

void add_prompt_flags(CLI::App& command, v1::GenerateRequest* request) {
  add_special_tokens_flag(command, request);
  add_parse_special_flag(command, request);
  add_start_flags(command, request);
  value_flag<int32_t>(
      command, "--logprobs", [=](int32_t v) { request->set_logprobs(v); },
      "With --json: print log-probabilities of the answer's tokens and of this many most likely "
      "ones, 0 to 100 [default: none]");
  value_flag<int32_t>(
      command, "--prompt-logprobs", [=](int32_t v) { request->set_prompt_logprobs(v); },
      "With --json: the same for the prompt's tokens, 0 to 100 [default: none]");
  value_flag<int32_t>(
      command, "--priority", [=](int32_t v) { request->set_priority(v); },
      "Order of waiting requests, -10 to 10: each 1 counts as 10 seconds of waiting [default: 0]");
  takes_names<v1::PrefixMode>(
      command.add_option_function<v1::PrefixMode>(
          "--prefix", [=](const v1::PrefixMode& mode) { request->set_prefix(mode); },
          "Use cached states of prompts with the same prefix, and store new ones "
          "[default: use-and-keep]"),
      {{"off", v1::PREFIX_MODE_OFF},
       {"use", v1::PREFIX_MODE_USE},
       {"use-and-keep", v1::PREFIX_MODE_USE_AND_KEEP}});
  command.add_option_function<std::vector<int64_t>>(
      "--prefix-point",
      [=](const std::vector<int64_t>& points) {
        request->mutable_prefix_points()->Assign(points.begin(), points.end());
      },
      "Store a state for prompts with the same prefix after this many ids, bytes of a text or "
      "messages; up to 8 times [default: where prompts end and diverge]");
  takes_names<v1::Durability>(
      command.add_option_function<v1::Durability>(
          "--durability", [=](const v1::Durability& d) { request->set_durability(d); },
          "Durability of the request: local and remote require a session of that durability, none "
          "does not wait for the disk [default: the session's]"),
      {{"none", v1::DURABILITY_NONE},
       {"local", v1::DURABILITY_LOCAL},
       {"remote", v1::DURABILITY_REMOTE}});
  value_flag<uint64_t>(
      command, "--expected-epoch", [=](uint64_t v) { request->set_expected_epoch(v); },
      "Refuse the request unless the session has this epoch [default: any]");
  value_flag<std::string>(
      command, "--request-id", [=](std::string v) { request->set_request_id(v); },
      "Name of the request, for 'recurve abort' and the server's log: 1 to 128 of A-Z a-z 0-9 . "
      "_ - [default: chosen by the server]");
}

}  // namespace recurve
