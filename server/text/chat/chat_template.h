#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/chat/chat_input.h"
#include "server/text/chat/reasoning.h"
#include "server/text/chat/tool_call_parser.h"
#include "server/text/jinja/template.h"
#include "server/text/utf8.h"

namespace recurve {

// The chat template of a checkpoint. The ids of what it renders are those of transformers'
// apply_chat_template, without a BOS that the template does not render, if control tokens are
// parsed only in the ranges. These are the bytes that the template itself renders, and the roles,
// which some templates use in control tokens. Constant: every method may be called from any thread.
// Methods throw ChatError, and WorkUnwanted if the limits of the input say so.
class ChatTemplate {
 public:
  // `special_tokens` are variables, e.g. bos_token. `tools`: the template for conversations with
  // tools; empty: `text`. Throws std::runtime_error if a template cannot be used.
  ChatTemplate(std::string_view text, std::string_view tools,
               jinja::Template::Variables special_tokens);

  // Renders a whole conversation.
  RangedText render(const ChatInput& input) const;

  // The same for the beginning of a session. Throws if the session could not continue after the
  // answer, because the template renders these messages differently when others follow.
  RangedText render_start(const ChatInput& input) const;

  // Renders what follows the last token of an answer in a conversation that continues with these
  // messages: the end of the answer's turn, and the messages. Throws unless the template is
  // prefix-stable: this text must be the same after any earlier turns, must not change them, and
  // must not be changed by what follows its own answer.
  RangedText render_continuation(const ChatInput& input) const;

  // What the template renders after an answer; empty if that is not known.
  RangedText answer_end() const;

  // How many times a template has been rendered.
  int64_t renderings() const { return renderings_; }

 private:
  using Messages = std::vector<jinja::Value>;
  struct Turn;

  jinja::Text render_messages(const ChatInput& input, const Messages& messages, bool prompt,
                              const std::tm& now) const;
  Turn render_turn(const ChatInput& input, const Messages& messages, bool prompt,
                   const std::tm& now) const;
  std::optional<std::string> stable_head(const ChatInput& input, const std::tm& now) const;
  void check_stable_head(const ChatInput& input, const Turn& turn, const std::tm& now) const;
  void check_stable_rest(const ChatInput& input, const Turn& turn, const std::tm& now) const;
  bool is_position_independent(const ChatInput& input, const Turn& turn, const std::tm& now) const;
  void check_extensible(const ChatInput& input, const Messages& messages, std::string_view text,
                        const std::tm& now) const;

  // `takes_parts`: it renders a text part like a string. Otherwise parts are passed as one string.
  struct ParsedTemplate {
    jinja::Template text;
    bool takes_parts;
  };
  ParsedTemplate parsed(std::string_view text) const;

  const jinja::Template::Variables special_tokens_;
  const ParsedTemplate template_;
  const std::optional<ParsedTemplate> tools_template_;
  mutable std::atomic<int64_t> renderings_{0};
  // The text before the first answer to one message, without other input; empty if it changes when
  // other messages follow. Initialized last, as that renders.
  const std::optional<std::string> usual_head_;
};

// The chat template of a model, or why there is none.
struct Chat {
  std::shared_ptr<const ChatTemplate> format = {};  // null: messages are refused
  bool exists = false;                              // a template, which may not be usable
  std::string text = {};                            // of the template, if `format` is set
  const ToolForm* tool_form = nullptr;              // of its tool calls; null: unknown
  const ReasoningForm* reasoning_form = nullptr;    // of its reasoning; null: none
  std::string problem =
      "the model has no chat template: send text or ids instead, or start the server with "
      "--chat-template";
};

// Loads the template of a Hugging Face model directory: chat_template.jinja, else `chat_template`
// of tokenizer_config.json (a string, or a list in which "default" and "tool_use" are used). The
// server can run without a template: if it cannot be used, `problem` says why.
Chat load_chat(const std::filesystem::path& model_dir);
// The same with a chosen template: a file, or the name of a common one; empty: the model's own.
// Throws std::runtime_error if a chosen template cannot be used.
Chat load_chat(const std::filesystem::path& model_dir, const std::string& chosen);

// A common template by its name: "chatml", "llama-3", ... (named_templates.cc); empty: no such
// name.
std::optional<std::string_view> named_chat_template(std::string_view name);

// These names: "alpaca, chatml, ...".
std::string chat_template_names();

}  // namespace recurve
