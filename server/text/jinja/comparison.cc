#include <algorithm>
#include <cmath>

#include "server/text/jinja/operations.h"

namespace recurve::jinja {
namespace {

bool contains(Run& run, const Value& container, const Value& wanted) {
  if (const Text* text = container.text()) {
    if (wanted.text() == nullptr)
      refuse(run, "search a string for what is no string:", container, wanted);
    run.spend(text->bytes.size());
    return find_text(text->bytes, wanted.text()->bytes) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) {
    return wanted.text() != nullptr && dict->find(wanted.text()->bytes) != nullptr;
  }
  const std::vector<Value> items = items_of(run, container);
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& item) { return equal(run, item, wanted); });
}

// Lists are compared by the first items that differ, else by their number.
bool less(Run& run, const List& left, const List& right) {
  const Run::Level level(run);
  const size_t both = std::min(left.items.size(), right.items.size());
  for (size_t i = 0; i < both; ++i) {
    run.spend();
    if (!equal(run, left.items[i], right.items[i])) {
      return less(run, left.items[i], right.items[i]);
    }
  }
  return left.items.size() < right.items.size();
}

}  // namespace

std::string hash_key(Run& run, const Value& value) {
  const Run::Level level(run);
  run.spend();
  if (value.is_undefined()) return "u";
  if (value.is_none()) return "n";
  if (const auto integer = as_integer(value)) return fmt::format("i{}", *integer);
  if (const auto* real = value.get<double>()) {
    const bool whole = std::abs(*real) < 0x1p63 && std::trunc(*real) == *real;
    return whole ? fmt::format("i{}", static_cast<int64_t>(*real)) : "r" + format_double(*real);
  }
  if (const Text* text = value.text()) return "t" + text->bytes;
  const List* list = value.list();
  if (list == nullptr || !list->tuple) run.fail("{} cannot be told apart", type_name(value));
  std::string key = "(";
  for (const Value& item : list->items) {
    const std::string part = hash_key(run, item);
    run.check_size(key.size() + part.size());
    key += fmt::format("{}:{}", part.size(), part);
  }
  return key;
}

bool compare(Run& run, Operator op, const Value& left, const Value& right) {
  run.spend();
  switch (op) {
    case Operator::kEqual:
      return equal(run, left, right);
    case Operator::kNotEqual:
      return !equal(run, left, right);
    case Operator::kIn:
      return contains(run, right, left);
    case Operator::kNotIn:
      return !contains(run, right, left);
    case Operator::kLess:
      return less(run, left, right);
    case Operator::kGreater:
      return less(run, right, left);
    case Operator::kLessEqual:
      return less(run, left, right) || equal(run, left, right);
    default:
      return less(run, right, left) || equal(run, left, right);
  }
}

bool less(Run& run, const Value& left, const Value& right) {
  const auto a = as_integer(left), b = as_integer(right);
  if (a && b) return *a < *b;
  if (left.is_number() && right.is_number()) return as_double(left) < as_double(right);
  const List *x = left.list(), *y = right.list();
  if (x != nullptr && y != nullptr && x->tuple == y->tuple) return less(run, *x, *y);
  if (left.text() == nullptr || right.text() == nullptr) refuse(run, "compare", left, right);
  run.spend(std::min(left.text()->bytes.size(), right.text()->bytes.size()));
  return left.text()->bytes < right.text()->bytes;  // UTF-8 sorts as its characters do
}

bool equal(Run& run, const Value& left, const Value& right) {
  const Run::Level level(run);
  run.spend();
  const auto a = as_integer(left), b = as_integer(right);
  if (a && b) return *a == *b;
  if (left.is_number() && right.is_number()) return as_double(left) == as_double(right);
  if (left.variant().index() != right.variant().index()) return false;
  if (left.is_undefined() || left.is_none()) return true;
  if (left.text() != nullptr) {
    run.spend(std::min(left.text()->bytes.size(), right.text()->bytes.size()));
    return left.text()->bytes == right.text()->bytes;
  }
  if (const List *x = left.list(), *y = right.list(); x != nullptr) {
    return x->tuple == y->tuple &&
           std::equal(x->items.begin(), x->items.end(), y->items.begin(), y->items.end(),
                      [&](const Value& p, const Value& q) { return equal(run, p, q); });
  }
  if (const Dict *x = left.dict(), *y = right.dict(); x != nullptr) {
    if (x->entries().size() != y->entries().size()) return false;
    return std::all_of(x->entries().begin(), x->entries().end(), [&](const Dict::Entry& entry) {
      const Value* other = y->find(entry.first.bytes);
      return other != nullptr && equal(run, entry.second, *other);
    });
  }
  if (left.name_space() != nullptr) return left.name_space() == right.name_space();
  run.fail("cannot compare {}", type_name(left));
}

}  // namespace recurve::jinja
