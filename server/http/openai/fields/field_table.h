#pragma once
#include <array>
#include <span>

#include "server/text/json/client_json.h"

namespace recurve {

// The resources of OpenAI's API that read these fields.
enum class Resource { kCompletions, kChatCompletions, kResponses };

// A field that clients send. If a resource does not read it, it is refused by name because it would
// change the answer, or it is harmless because it would not.
struct RequestField {
  const char* name;
  int read_by;  // see is_read_by()
  bool is_harmless;
  // JSON values that mean the same as an absent field, as null does. An empty list or object that
  // is not among them is refused, also if the field is read.
  std::array<const char*, 2> same = {};
  const char* why_harmless = nullptr;
};

// The fields of the openai package, and those that vLLM, SGLang, llama.cpp and others add. Any
// other field is ignored.
std::span<const RequestField> request_fields();
bool is_read_by(const RequestField& field, Resource resource);

// Refuses a body with a field that would change the answer and is not read for this resource.
// Throws BadField.
void check_fields(const ClientJson& body, Resource resource);

}  // namespace recurve
