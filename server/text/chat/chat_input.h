#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "server/text/jinja/template.h"
#include "server/text/work_limits.h"

namespace recurve {

// What a client sends instead of a prompt (chat_rules.h says what it may be).
struct ChatMessage {
  std::string role;                    // 1 to 64 of [A-Za-z0-9_-]; "developer" is "system"
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

// Messages of a conversation of so many bytes: more are refused. What is made of a message takes
// about a kilobyte. Values of JSON, with the messages: most_values().
constexpr size_t most_messages(size_t bytes) { return (size_t{1} << 13) + bytes / 512; }

// Of a conversation, as they came.
size_t bytes_of(const Conversation& conversation);

// A conversation as a template sees it: checked and parsed once for all that is written of it.
struct ChatInput {
  // Throws ChatError, and WorkUnwanted as `work` has it.
  ChatInput(Conversation conversation, const WorkLimits& work = {});

  // The first messages alone, `count` as they were sent, with no prompt behind them.
  ChatInput first(size_t count) const;

  // Whether a template can see nothing but the messages.
  bool plain() const { return variables.empty() && !has_tools; }

  // Dicts; at least one. System messages at the beginning of which a developer has written one are
  // one message.
  std::vector<jinja::Value> messages;
  std::vector<jinja::Value> sent;     // the same as they were sent
  size_t systems = 0;                 // of the system or a developer, at the beginning of `sent`
  size_t first_developer = SIZE_MAX;  // of these
  size_t behind_question = 0;         // of `sent`, what is behind the user's last; 0: there is none
  jinja::Template::Variables variables;
  jinja::Value tools;  // a list, or none
  bool has_tools;
  bool add_generation_prompt;
  bool continue_final_message;
  WorkLimits work;

 private:
  void merge_systems(size_t count);
};

// One message.
jinja::Value chat_message(std::string_view role, jinja::Text content);

// The message with `mark` behind its content, or behind the last text of it where it is a list of
// parts. Throws ChatError where it has none.
jinja::Value with_mark(const jinja::Value& message, std::string_view mark);

}  // namespace recurve
