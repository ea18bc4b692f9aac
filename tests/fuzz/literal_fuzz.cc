// Any text, where a constraint names one: the answer is that text and no other, in whatever form.
#include <algorithm>
#include <cstdlib>

#include "server/constraint/utf8_masks.h"
#include "tests/server/constraint/literals.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace recurve;
  constexpr size_t kMostBytes = 48;
  static const auto library = make_constraint_library(testing::byte_vocabulary());
  const std::string text(reinterpret_cast<const char*>(data), std::min(size, kMostBytes));
  // No constraint has an empty text, and all of them are UTF-8.
  if (text.empty() || utf8_state_after(0, text) != Utf8State{0}) return 0;
  for (const testing::Literal& literal : testing::literals_of(text)) {
    if (!testing::difference(literal, *library->compile(literal.constraint, {})).empty())
      std::abort();
  }
  return 0;
}
