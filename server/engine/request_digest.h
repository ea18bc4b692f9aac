#pragma once
#include <string>
#include <string_view>

#include "server/request/request.h"

namespace recurve {

// 32 hexadecimal digits that stand for what a request asks for: prompt, sampling and what ends the
// answer, and the seed where the client named one. Two that were sent alike have the same.
std::string digest_of(const Request& request);

// The reason for which an answer ended, by its name in a written state; kInternal: there is none.
EndReason reason_from(std::string_view name);

}  // namespace recurve
