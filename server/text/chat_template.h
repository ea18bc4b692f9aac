#pragma once

#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/byte_range.h"
#include "server/text/jinja/template.h"

namespace recurve {

// What a client sends instead of a prompt.
struct ChatMessage {
  std::string role;                    // 1 to 64 of [A-Za-z0-9_-]
  std::optional<std::string> content;  // none: the message has no such field
  std::string fields_json = {};        // an object of further fields; empty: none
};
struct Conversation {
  std::vector<ChatMessage> messages;
  std::string tools_json = {};      // a list; empty: none
  std::string variables_json = {};  // an object of further variables; empty: none
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // not together with add_generation_prompt
};

// Why messages cannot be written: one sentence for whoever sent them.
class ChatError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The chat template of a checkpoint. What it gives has the ids of transformers'
// apply_chat_template, without BOS but where the template writes it, provided that control tokens
// count only inside the ranges: these are the bytes that the template wrote itself, and roles, of
// which some templates make control tokens. Constant: every method may be called from any thread,
// and throws ChatError.
class ChatTemplate {
 public:
  // `special_tokens` are variables, e.g. bos_token. Throws std::runtime_error with a sentence where
  // a template cannot be used. `tools`: the template to use where tools are given; empty: the same.
  ChatTemplate(std::string_view text, std::string_view tools,
               jinja::Template::Variables special_tokens);

  // A whole conversation.
  RangedText render(const Conversation& conversation) const;

  // What follows the last token of an answer in a conversation that goes on with these messages:
  // the end of the answer's turn, and the messages. Only for templates that are prefix-stable: the
  // text must be the same whatever the earlier turns were, and must leave them as they are.
  RangedText render_continuation(const Conversation& conversation) const;

  // Throws where the answer to these messages could not be gone on from, because the template
  // writes them anew when others follow. They begin a conversation, or continue one.
  void check_goes_on(const Conversation& conversation, bool continues) const;

  // What the template writes behind an answer; empty if it cannot be told.
  RangedText answer_end() const;

 private:
  jinja::Text write(const Conversation& conversation, std::tm now) const;
  // The same with the content of message `marked` to be found in it.
  jinja::Text write_marked(const Conversation& conversation, size_t marked, std::tm now) const;
  jinja::Text rest_behind(const Conversation& conversation, size_t marked, std::tm now) const;
  void check_stable(const Conversation& conversation, std::tm now) const;

  const jinja::Template template_;
  const std::optional<jinja::Template> tools_template_;
  const jinja::Template::Variables special_tokens_;
};

// What a server can say about a model's chat template.
struct Chat {
  std::shared_ptr<const ChatTemplate> format = {};  // null: messages are refused
  bool exists = false;                              // though it may not be usable
  std::string problem = "the model has no chat template: send text or ids instead";
};

// The template of a Hugging Face model directory: chat_template.jinja, else `chat_template` of
// tokenizer_config.json (a string, or a list of named ones of which "default" and "tool_use" are
// used). One that cannot be used is no reason not to serve: `problem` says what it is.
Chat load_chat(const std::filesystem::path& model_dir);

}  // namespace recurve
