#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "server/text/jinja/json.h"
#include "server/text/jinja/template.h"
#include "server/text/jinja/value.h"
#include "server/text/work_limits.h"

namespace recurve {

// Messages that a client sends instead of a prompt (see check_message()).
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
  const char* field = "messages";       // its name in refusals
  // Variables that templates know, unless variables_json has them: enable_thinking and thinking,
  // and reasoning_effort.
  std::optional<bool> thinking = {};
  std::string effort = {};  // empty: not set
};

// Messages that cannot be rendered; what() is for the client that sent them.
class ChatError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Most messages of a conversation of so many bytes. A parsed message takes about a kilobyte. For
// JSON values, including the messages, see most_values().
constexpr size_t most_messages(size_t bytes) { return (size_t{1} << 13) + bytes / 512; }

// The size of a conversation as received.
size_t bytes_of(const Conversation& conversation);

// A conversation for a template, checked and parsed once for all renderings.
struct ChatInput {
  // Throws ChatError, and WorkUnwanted if `work` says so.
  ChatInput(Conversation conversation, const WorkLimits& work = {});

  // Only the first `count` messages of `sent`, without a generation prompt.
  ChatInput first(size_t count) const;

  // Whether the messages are the only input of a template.
  bool plain() const { return variables.empty() && !has_tools; }

  // Dicts; at least one. System messages at the beginning are merged into one if one of them has
  // the role developer.
  std::vector<jinja::Value> messages;
  std::vector<jinja::Value> sent;     // the same as received
  size_t systems = 0;                 // messages of the system or developer that begin `sent`
  size_t first_developer = SIZE_MAX;  // its index in these
  size_t after_last_user = 0;         // index in `sent` after the last of the user; 0: none
  jinja::Template::Variables variables;
  jinja::Value tools;  // a list, or none
  bool has_tools;
  bool add_generation_prompt;
  bool continue_final_message;
  const char* field;
  WorkLimits work;

 private:
  void merge_systems(size_t count);
};

// A message with this content.
jinja::Value chat_message(std::string_view role, jinja::Text content);

// The message with `mark` after its content, or after the last text of a list of parts. Throws
// ChatError if it has no text.
jinja::Value with_mark(const jinja::Value& message, std::string_view mark);

// Checks a message, from any frontend. Without this, templates print unexpected values as they are,
// or ignore them.
//   content      a string, or a list of parts of type "text"; of other roles than system, user and
//                assistant it may be any JSON value
//   assistant    content or tool_calls, and no refusal
//   tool_calls   arguments are a JSON object, or a string that contains one
// Throws ChatError, which names the index of the message. `budget`: for the values in such strings.
void check_message(const jinja::Value& message, size_t index, jinja::JsonBudget& budget);

// The concatenated texts of a content that is a list of parts.
jinja::Text joined_parts(const jinja::List& parts);

// Merges the first `count` messages, of the system or a developer, into one, since most templates
// render only the first.
void merge_first(std::vector<jinja::Value>& messages, size_t count);

}  // namespace recurve
