#pragma once
#include <cstdint>
#include <span>

#include "server/request/serving.h"
#include "server/request/text_request.h"

namespace recurve {

// About the most bytes that the answer takes where it is gathered before it is sent.
int64_t most_bytes_gathered(const TextRequest& asked, const RequestRules& rules);

// Takes memory for the answers to all of them, which are gathered, before anything is computed:
// refused with the numbers where one request, a tenant or all calls together would have too much.
Refused hold_gathered(Serving& serving, const Identity& caller, std::span<const TextRequest> asked,
                      ByteBudget::Share* share);

}  // namespace recurve
