#pragma once

#include <vector>

#include "server/text/jinja/json_parser.h"
#include "server/text/jinja/value.h"

namespace recurve {

// What a message may say, whatever frontend it came through: templates print what they do not know
// as it is, or leave it out.
//   content      a string, or a list of parts of type "text"; of other roles than system, user and
//                assistant it may be any JSON value
//   assistant    content or tool_calls, and no refusal
//   tool_calls   with arguments that are a JSON object, or a string that holds one
// Throws ChatError, which names the message by its index. `budget`: of the values in those strings.
void check_message(const jinja::Value& message, size_t index, jinja::JsonBudget& budget);

// The texts of a content that is a list of parts, one behind the other.
jinja::Text joined_parts(const jinja::List& parts);

// Makes one of the first messages that are "system", where some were "developer" before: most
// templates write the first alone. `count` of them are "system".
void merge_first(std::vector<jinja::Value>& messages, size_t count);

}  // namespace recurve
