#pragma once
// What a client says that its answer must be: it is refused, or each id that may come is taken,
// some tokens far, and what is compiled too long is given up. Masks that are kept by their place,
// and rules that another constraint has, are those that are worked out anew.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "server/constraint/constraint_library.h"
#include "tests/server/constraint/byte_vocabulary.h"

namespace recurve::fuzz {

inline void follow(const Constraint& constraint, const Constraint& anew, size_t choices) {
  const auto matcher = constraint.begin(), other = anew.begin();
  std::vector<uint32_t> mask((testing::byte_vocabulary().size() + 31) / 32), worked_out(mask);
  for (int token = 0; token < 8; ++token) {
    matcher->fill(mask);
    other->fill(worked_out);
    if (mask != worked_out) std::abort();
    const std::vector<int32_t> ids = testing::ids_of(mask);
    if (ids.empty()) return;
    choices = choices * 6364136223846793005 + 1442695040888963407;
    const int32_t id = ids[(choices >> 33) % ids.size()];
    if (!matcher->fork()->accept(id) || !matcher->accept(id) || !other->accept(id)) std::abort();
  }
}

inline int take(const ConstraintText& text) {
  static const auto keeps = make_constraint_library(testing::byte_vocabulary());
  static const auto keeps_none =
      make_constraint_library(testing::byte_vocabulary(), {.masks = 0, .rules = 0});
  try {
    const auto constraint = keeps->compile(text, {.most_seconds = 0.2});
    const auto anew = keeps_none->compile(text, {.most_seconds = 2});
    for (const size_t choices : {text.text.size(), text.text.size() + 1}) {
      follow(*constraint, *anew, choices);
    }
  } catch (const ConstraintRefused& refused) {
    if (std::string(refused.what()).empty()) std::abort();
  }
  return 0;
}
inline int take(ConstraintText::Form form, const uint8_t* data, size_t size) {
  return take({form, std::string(reinterpret_cast<const char*>(data), size)});
}

}  // namespace recurve::fuzz
