#pragma once
#include <string>

#include "recurve/v1/inference.pb.h"

namespace recurve {

// [{"role": "user", "content": "Hello"}, ...], as Hugging Face's templates take them: further
// fields of a message go on as they are. `name` says where the text is from. Throws UsageError with
// a sentence.
v1::Messages parse_messages(const std::string& text, const std::string& name);

}  // namespace recurve
