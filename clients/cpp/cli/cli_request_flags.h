#pragma once
#include <CLI/App.hpp>
#include <memory>
#include <string>
#include <vector>

#include "recurve/v1/inference.pb.h"

namespace recurve {

// The flags that `generate` and `chat` share: how tokens are chosen and where an answer ends. They
// write into the request, which must outlive the parsing; flags not given leave their fields unset,
// so that the server's defaults hold.
void add_sampling_flags(CLI::App& command, v1::GenerateRequest* request);
void add_stop_flags(CLI::App& command, v1::GenerateRequest* request);
// Constraints on the answer: --json-schema FILE and the other forms.
void add_constraint_flags(CLI::App& command, v1::GenerateRequest* request);
// The functions that the model may call, and what it may do with them. They go into a request once
// it has its messages, by set_tools().
struct ToolFlags {
  std::string tools_json;  // empty: none
  std::string choice = "auto";
  std::vector<std::string> allowed = {};
  bool single = false;
};
CLI::Option* add_tool_flags(CLI::App& command, ToolFlags* flags);  // --tools
void set_tools(const ToolFlags& flags, v1::GenerateRequest* request);
// How a text becomes tokens, of every message with such a field.
template <typename Message>
void add_special_tokens_flag(CLI::App& command, Message* message) {
  command.add_flag_function(
      "--no-add-special-tokens",
      [message](int64_t count) { message->set_add_special_tokens(count == 0); },
      "Do not add the model's beginning-of-sequence id");
}
template <typename Message>
void add_parse_special_flag(CLI::App& command, Message* message) {
  command.add_flag_function(
      "--parse-special", [message](int64_t count) { message->set_parse_special(count > 0); },
      "Convert names of control tokens in the text (\"<s>\") to their ids; not for untrusted text");
}
template <typename Message>
void add_model_flag(CLI::App& command, Message* message) {
  command.add_option_function<std::string>(
      "--model", [message](const std::string& name) { message->set_model(name); },
      "Name of a model of the server [default: that of the session, or the first]");
}
template <typename Message>
void add_adapter_flag(CLI::App& command, Message* message) {
  command.add_option_function<std::string>(
      "--adapter", [message](const std::string& name) { message->set_adapter(name); },
      "Compute with this LoRA adapter of the server; see `recurve info` [default: that of the "
      "session, or none]");
}
// The model, the initial state and the adapter.
void add_start_flags(CLI::App& command, v1::GenerateRequest* request);
// These, how the prompt is read, log-probabilities, the request's id.
void add_prompt_flags(CLI::App& command, v1::GenerateRequest* request);

}  // namespace recurve
