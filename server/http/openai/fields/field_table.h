#pragma once
#include <array>
#include <span>

#include "server/text/json/client_json.h"

namespace recurve {

// What has a body in OpenAI's dialect.
enum class Resource { kCompletions, kChatCompletions, kResponses };

// A field that clients send. Where it is not read, it is refused by name, because the answer would
// be another one with it, or it is harmless, because it would not.
struct RequestField {
  const char* name;
  int read_by;  // see is_read_by()
  bool is_harmless;
  // JSON that means what leaving the field out means, as null does. An empty list or object that
  // does not stand here is refused, where the field is read too.
  std::array<const char*, 2> same = {};
  const char* why_harmless = nullptr;
};

// Every field of the requests, as the openai package has them, and those that vLLM, SGLang,
// llama.cpp and others add. A field that does not stand there is ignored.
std::span<const RequestField> request_fields();
bool is_read_by(const RequestField& field, Resource resource);

// Refuses a body with a field that would change the answer and is not read for this resource.
// Throws BadField.
void check_fields(const ClientJson& body, Resource resource);

}  // namespace recurve
