#include "server/text/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace recurve::jinja {

void Dict::set(const Text& key, Value value) {
  nesting_ = std::max(nesting_, 1 + jinja::nesting(value));
  const size_t at = index_of(key.bytes);
  if (at < entries_.size()) {
    entries_[at].second = std::move(value);
    return;
  }
  entries_.emplace_back(key, std::move(value));
  if (entries_.size() <= kFew) return;
  for (size_t i = index_.size(); i < entries_.size(); ++i) {
    index_.emplace(entries_[i].first.bytes, i);
  }
}

size_t Dict::index_of(std::string_view key) const {
  if (index_.empty()) {
    const auto same = [&](const Entry& entry) { return entry.first.bytes == key; };
    return static_cast<size_t>(std::ranges::find_if(entries_, same) - entries_.begin());
  }
  const auto found = index_.find(key);
  return found == index_.end() ? entries_.size() : found->second;
}

const Value* Dict::find(std::string_view key) const {
  const size_t at = index_of(key);
  return at == entries_.size() ? nullptr : &entries_[at].second;
}

Value Value::list(std::vector<Value> items, bool tuple) {
  const int levels = nesting(items);
  return Value(std::make_shared<const List>(List{std::move(items), tuple, levels}));
}

Value Value::generator(std::vector<Value> items) {
  const int levels = nesting(items);
  return Value(std::make_shared<Generator>(Generator{std::move(items), 0, levels}));
}

int nesting(const Value& value) {
  if (const List* l = value.list()) return l->nesting;
  if (const Dict* d = value.dict()) return d->nesting();
  if (const Generator* g = value.generator()) return g->nesting;
  if (const Loop* l = value.loop()) return l->nesting;
  return 0;
}

int nesting(const std::vector<Value>& items) {
  int most = 0;
  for (const Value& item : items) most = std::max(most, nesting(item));
  return most + 1;
}

bool Value::is_true() const {
  if (is_undefined() || is_none()) return false;
  if (const auto* b = get<bool>()) return *b;
  if (const auto* i = get<int64_t>()) return *i != 0;
  if (const auto* d = get<double>()) return *d != 0;
  if (const Text* t = text()) return !t->empty();
  if (const List* l = list()) return !l->items.empty();
  if (const Dict* d = dict()) return !d->entries().empty();
  return true;
}

std::string type_name(const Value& value) {
  static constexpr const char* kNames[] = {
      "undefined",       "none",    "a boolean",  "an integer",  "a float",
      "a string",        "a list",  "a dict",     "a generator", "a namespace",
      "the loop object", "a macro", "a function", "a method"};
  static_assert(std::size(kNames) == std::variant_size_v<Value::Variant>);
  return kNames[value.variant().index()];
}

double as_double(const Value& value) {
  if (const auto* b = value.get<bool>()) return *b ? 1 : 0;
  if (const auto* i = value.get<int64_t>()) return static_cast<double>(*i);
  const auto* d = value.get<double>();
  return d == nullptr ? 0 : *d;
}

std::optional<int64_t> as_integer(const Value& value) {
  if (const auto* b = value.get<bool>()) return *b ? 1 : 0;
  if (const auto* i = value.get<int64_t>()) return *i;
  return {};
}

// As in Python, without an exponent from 1e-4 to below 1e16.
std::string format_double(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[40];
  const double size = std::abs(value);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  if (plain && text.find('.') == text.npos) text += ".0";
  return text;
}

}  // namespace recurve::jinja
