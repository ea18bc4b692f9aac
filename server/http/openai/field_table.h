#pragma once
#include <nlohmann/json.hpp>

namespace recurve {

// What has a body in OpenAI's dialect.
enum class Resource { kCompletions, kChatCompletions, kResponses };

// Refuses a body with a field that would change the answer and is not read for this resource. The
// table in the source has every field of the requests, as the openai package has them, and those
// that other servers add. Throws BadField.
void check_fields(const nlohmann::json& body, Resource resource);

}  // namespace recurve
