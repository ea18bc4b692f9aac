#include "server/state/state_values.h"

#include <fmt/format.h>

#include <cstring>

#include "kernels/check.h"
#include "server/state/written_header.h"

namespace recurve {
namespace {

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  refuse_state(EndReason::kForeignState, fmt::format(format, std::forward<Args>(args)...));
}

// Whether a number has an exponent of ones alone: it is NaN or infinite then.
template <typename Word>
bool any_not_finite(std::span<const std::byte> numbers, Word exponent) {
  Word found = 0;
  for (size_t at = 0; at < numbers.size(); at += sizeof(Word)) {
    Word bits;
    std::memcpy(&bits, numbers.data() + at, sizeof bits);
    found |= static_cast<Word>((bits & exponent) == exponent);
  }
  return found != 0;
}

bool is_finite(DType type, std::span<const std::byte> numbers) {
  switch (type) {
    case DType::kF32:
      return !any_not_finite<uint32_t>(numbers, 0x7F80'0000);
    case DType::kBF16:
      return !any_not_finite<uint16_t>(numbers, 0x7F80);
    default:
      return true;
  }
}

void check_array(const StateArray& array, std::span<const std::byte> numbers, int64_t position) {
  if (array.values == StateValues::kFinite) {
    if (is_finite(array.dtype, numbers)) return;
    refuse("its array \"{}\" of layer {} must be finite, got a NaN or an infinity", array.name,
           array.layer);
  }
  for (; !numbers.empty(); numbers = numbers.subspan(sizeof(int32_t))) {
    int32_t counted = 0;
    std::memcpy(&counted, numbers.data(), sizeof counted);
    if (array.values == StateValues::kHeldRows) {
      if (counted >= 0 && counted < array.written_every) continue;
      refuse("its array \"{}\" must be in [0, {}), got {}", array.name, array.written_every,
             counted);
    }
    if (counted == position) continue;
    refuse("its array \"{}\" must be {}, the number of its tokens, got {}", array.name, position,
           counted);
  }
}

void check_token(const char* what, int32_t id, int32_t vocab) {
  if (id >= 0 && id < vocab) return;
  refuse("its {} must be in [0, {}), got {}", what, vocab, id);
}

void check_seen(const std::vector<uint64_t>& history, int32_t vocab) {
  const auto known = static_cast<size_t>(vocab);
  for (size_t word = 0; word < history.size(); ++word) {
    const size_t first = 64 * word;
    const uint64_t above = first >= known        ? ~uint64_t{0}
                           : known - first >= 64 ? 0
                                                 : ~uint64_t{0} << (known - first);
    if ((history[word] & above) == 0) continue;
    refuse("its history must have ids in [0, {}) only", vocab);
  }
}

}  // namespace

void check_text(int64_t position, const std::optional<int32_t>& pending,
                const StateHeader& wanted) {
  const int64_t most = wanted.layout.most_tokens();
  if (position < 0 || position > most) {
    refuse("it must have at most {} tokens, got {}", most, position);
  }
  if (pending) check_token("pending token", *pending, wanted.vocab);
}

void check_answer(const StateHeader& header, int32_t vocab) {
  for (const int32_t id : header.answer_ids) check_token("token of the answer", id, vocab);
}

void check_tokens(std::span<const uint32_t> tokens, int32_t vocab) {
  for (const uint32_t token : tokens) {
    check_token("tokens", static_cast<int32_t>(token >> 2), vocab);
  }
}

void check_values(const StateHeader& header, const StateHeader& wanted, const StateRooms& rooms) {
  check_text(header.position, header.pending, wanted);
  check_tokens(header.tokens, wanted.vocab);
  const auto tokens = static_cast<int64_t>(header.tokens.size());
  const bool lists = tokens > 0 || header.tokens_first > 0;
  if (lists && header.tokens_first + tokens != header.position) {
    refuse("it must list {} tokens, which it has absorbed, and lists {}",
           header.position - header.tokens_first, tokens);
  }
  check_seen(header.history, wanted.vocab);
  check_answer(header, wanted.vocab);
  const std::vector<StatePieceLayout> pieces = wanted.layout.pieces(header.position);
  CHECK(rooms.size() == pieces.size());
  for (size_t p = 0; p < pieces.size(); ++p) {
    std::span<const std::byte> left = rooms[p];
    for (const size_t a : pieces[p].arrays) {
      const StateArray& array = wanted.layout.arrays[a];
      const size_t bytes = array.bytes() * (pieces[p].page ? kPageTokens : 1);
      check_array(array, left.first(bytes), header.position);
      left = left.subspan(bytes);
    }
  }
}

}  // namespace recurve
