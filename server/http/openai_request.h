#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "server/request/refusal.h"
#include "server/request/text_request.h"

namespace recurve {

// How an answer is to be written.
struct OpenAiForm {
  bool chat = false;        // /v1/chat/completions; else /v1/completions
  bool stream = false;      // events as they come; else one object at the end
  bool usage = false;       // a stream's last event has the usage
  bool usage_each = false;  // and every other one too
};

// Reads the body of a request in the dialect of OpenAI's API. Fields that it does not know are
// ignored, as other servers do, but for those that would change the answer: the table is in the
// source. `model`: the name served. `form`: chat is set before; the rest is filled, where the body
// could be read so far.
Refused read_openai(std::string_view body, const std::string& model, TextRequest* asked,
                    OpenAiForm* form);

}  // namespace recurve
