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

#include "server/text/byte_range.h"
#include "server/text/chat/chat_input.h"
#include "server/text/chat/tool_forms.h"
#include "server/text/jinja/template.h"

namespace recurve {

// The chat template of a checkpoint. What it gives has the ids of transformers'
// apply_chat_template, without BOS but where the template writes it, provided that control tokens
// count only inside the ranges: these are the bytes that the template wrote itself, and roles, of
// which some templates make control tokens. Constant: every method may be called from any thread,
// and throws ChatError, and WorkUnwanted as the input's limits have it.
class ChatTemplate {
 public:
  // `special_tokens` are variables, e.g. bos_token. Throws std::runtime_error with a sentence where
  // a template cannot be used. `tools`: the template to use where tools are given; empty: the same.
  ChatTemplate(std::string_view text, std::string_view tools,
               jinja::Template::Variables special_tokens);

  // A whole conversation.
  RangedText render(const ChatInput& input) const;

  // The same for a session that begins with it: refused where the answer could not be gone on from,
  // because the template writes these messages anew when others follow.
  RangedText render_start(const ChatInput& input) const;

  // What follows the last token of an answer in a conversation that goes on with these messages:
  // the end of the answer's turn, and the messages. Only for templates that are prefix-stable: the
  // text must be the same whatever the earlier turns were, must leave them as they are, and must be
  // left as it is by what follows its own answer.
  RangedText render_continuation(const ChatInput& input) const;

  // What the template writes behind an answer; empty if it cannot be told.
  RangedText answer_end() const;

  // How often a template has been gone through for all of this.
  int64_t renderings() const { return renderings_; }

 private:
  using Messages = std::vector<jinja::Value>;
  struct Turn;

  jinja::Text write(const ChatInput& input, const Messages& messages, bool prompt,
                    const std::tm& now) const;
  Turn write_turn(const ChatInput& input, const Messages& messages, bool prompt,
                  const std::tm& now) const;
  std::optional<std::string> stable_head(const ChatInput& input, const std::tm& now) const;
  void check_head(const ChatInput& input, const Turn& turn, const std::tm& now) const;
  void check_rest(const ChatInput& input, const Turn& turn, const std::tm& now) const;
  bool stays_in_place(const ChatInput& input, const Turn& turn, const std::tm& now) const;
  void check_goes_on(const ChatInput& input, const Messages& messages, std::string_view text,
                     const std::tm& now) const;

  // A template, and whether it writes a text part as it writes a string: one that does not gets the
  // texts of parts as a string.
  struct Form {
    jinja::Template text;
    bool takes_parts;
  };
  Form form_of(std::string_view text) const;

  const jinja::Template::Variables special_tokens_;
  const Form form_;
  const std::optional<Form> tools_form_;
  mutable std::atomic<int64_t> renderings_{0};
  // What stands in front of a first answer where nothing but messages is given; empty: it changes
  // when others follow. Set last.
  const std::optional<std::string> usual_head_;
};

// What a server can say about a model's chat template.
struct Chat {
  std::shared_ptr<const ChatTemplate> format = {};  // null: messages are refused
  bool exists = false;                              // though it may not be usable
  std::string text = {};                            // the template's own, with `format`
  const ToolForm* tool_form = nullptr;  // of the calls that it writes; null: none that is known
  std::string problem =
      "the model has no chat template: send text or ids instead, or start the server with "
      "--chat-template";
};

// The template of a Hugging Face model directory: chat_template.jinja, else `chat_template` of
// tokenizer_config.json (a string, or a list of named ones of which "default" and "tool_use" are
// used). One that cannot be used is no reason not to serve: `problem` says what it is.
Chat load_chat(const std::filesystem::path& model_dir);
// The same, but the template is the one that was chosen: a file's, or a common form by its name
// (chat_forms.h); empty: the model's own. Throws std::runtime_error with a sentence where that
// cannot be used.
Chat load_chat(const std::filesystem::path& model_dir, const std::string& chosen);

}  // namespace recurve
