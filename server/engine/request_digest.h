#pragma once
#include <string>

#include "server/request/request.h"

namespace recurve {

// 32 hexadecimal digits that stand for what a request asks for: prompt, sampling and what ends the
// answer, and the seed where the client named one. Two that were sent alike have the same.
std::string digest_of(const Request& request);

// Of endings that are answers, as a written state has them, and back; kInternal where it is none.
const char* reason_text(Finish why);
Finish reason_from(const std::string& text);

}  // namespace recurve
