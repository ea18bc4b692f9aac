#include "server/text/jinja/callables.h"

namespace recurve::jinja {
namespace {

// The next word of `words`, taken off; empty at the end.
std::string_view take_word(std::string_view* words) {
  const size_t end = words->find(' ');
  const std::string_view word = words->substr(0, end);
  *words = end == words->npos ? std::string_view() : words->substr(end + 1);
  return word;
}

}  // namespace

const Value* CallValues::find(size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

bool takes_positional(std::string_view parameters, size_t count) {
  for (; count > 0; --count) {
    const std::string_view name = take_word(&parameters);
    if (name == "*") return true;
    if (name.empty() || name == "**") return false;
  }
  return true;
}

bool takes_named(std::string_view parameters, std::string_view name) {
  while (!parameters.empty()) {
    const std::string_view parameter = take_word(&parameters);
    if (parameter == name || parameter == "**") return true;
  }
  return false;
}

}  // namespace recurve::jinja
