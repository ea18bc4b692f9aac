#pragma once
#include <span>

#include "server/http/request_body.h"

namespace recurve {

// The resources of OpenAI's API that read these fields.
enum class OpenAiResource { kCompletions, kChatCompletions, kResponses, kEmbeddings };

// The fields of the openai package, and those that vLLM, SGLang, llama.cpp and others add. Any
// other field is ignored.
FieldTable table_of(OpenAiResource resource);

}  // namespace recurve
