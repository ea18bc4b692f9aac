#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "server/state/state_form.h"

namespace recurve {

// What is read of states and of records about them: numbers that are used as indexes and sizes, and
// a state's own. Checksums say that these are what was written, and not that who wrote them meant
// well. All throw StateError.

// Of a text: the tokens it has absorbed, and the one sampled last.
void check_text(int64_t position, const std::optional<int32_t>& pending, const StateHeader& wanted);
// Of an answer: its ids, and what is said of it.
void check_answer(const StateHeader& header, int32_t vocab);
// Of tokens, 4 * id + form of each.
void check_tokens(std::span<const uint32_t> tokens, int32_t vocab);
// Of a state all of it: header, and rooms, the state in the pieces of wanted's layout.
void check_values(const StateHeader& header, const StateHeader& wanted, const StateRooms& rooms);

}  // namespace recurve
