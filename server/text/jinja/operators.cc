#include <algorithm>
#include <cmath>
#include <limits>

#include "server/text/jinja/operations.h"

namespace recurve::jinja {
namespace {

[[noreturn]] void too_large(const Run& run) { run.fail("an integer does not fit in 64 bits"); }

int64_t floor_divide(const Run& run, int64_t a, int64_t b) {
  if (b == -1 && a == std::numeric_limits<int64_t>::min()) too_large(run);
  return a / b - ((a % b != 0 && (a % b < 0) != (b < 0)) ? 1 : 0);
}

int64_t power(const Run& run, int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (; exponent > 0; --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) too_large(run);
    if (result == 0 || (result == 1 && base == 1)) break;
    if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  }
  return result;
}

void check_divisor(const Run& run, Operator op, double divisor) {
  const bool divides =
      op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
  if (divides && divisor == 0) run.fail("division by zero");
}

Value integer_operation(const Run& run, Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case Operator::kAdd:
      if (__builtin_add_overflow(a, b, &result)) too_large(run);
      return Value(result);
    case Operator::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) too_large(run);
      return Value(result);
    case Operator::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) too_large(run);
      return Value(result);
    case Operator::kDivide:
      return Value(static_cast<double>(a) / static_cast<double>(b));
    case Operator::kFloorDivide:
      return Value(floor_divide(run, a, b));
    case Operator::kModulo:
      return Value(b == -1 ? int64_t{0} : a - floor_divide(run, a, b) * b);
    default:
      if (b < 0) return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
      return Value(power(run, a, b));
  }
}

Value real_operation(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return Value(a + b);
    case Operator::kSubtract:
      return Value(a - b);
    case Operator::kMultiply:
      return Value(a * b);
    case Operator::kDivide:
      return Value(a / b);
    case Operator::kFloorDivide:
      return Value(std::floor(a / b));
    case Operator::kModulo: {
      const double rest = std::fmod(a, b);
      return Value(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
    }
    default:
      return Value(std::pow(a, b));
  }
}

const char* verb(Operator op) {
  switch (op) {
    case Operator::kAdd:
      return "add";
    case Operator::kSubtract:
      return "subtract";
    case Operator::kMultiply:
      return "multiply";
    case Operator::kPower:
      return "raise";
    default:
      return "divide";
  }
}

Value repeated(Run& run, const Value& sequence, int64_t times) {
  const auto n = static_cast<size_t>(std::max<int64_t>(times, 0));
  if (const Text* text = sequence.text()) {
    if (n > 0 && text->bytes.size() > SIZE_MAX / n) run.check_size(SIZE_MAX);
    run.check_size(text->bytes.size() * n);
    Text out;
    for (size_t i = 0; i < n && !text->empty(); ++i) out.append(*text);
    return with_markup_of(run, *text, std::move(out));
  }
  std::vector<Value> items;
  for (size_t i = 0; i < n && !sequence.list()->items.empty(); ++i) {
    for (const Value& item : sequence.list()->items) {
      run.spend();
      items.push_back(item);
    }
  }
  return run.list(std::move(items), sequence.list()->tuple);
}

Value add_sequences(Run& run, const Value& left, const Value& right) {
  if (left.text() != nullptr && right.text() != nullptr) {
    const bool markup = left.text()->markup || right.text()->markup;
    run.spend(left.text()->bytes.size() + right.text()->bytes.size());
    Text sum = markup ? escape_html(*left.text()) : *left.text();
    sum.append(markup ? escape_html(*right.text()) : *right.text());
    return run.text(std::move(sum));
  }
  const List *a = left.list(), *b = right.list();
  if (a == nullptr || b == nullptr || a->tuple != b->tuple) fail_operands(run, "add", left, right);
  run.spend(64 * (a->items.size() + b->items.size()));
  std::vector<Value> items = a->items;
  items.insert(items.end(), b->items.begin(), b->items.end());
  return run.list(std::move(items), a->tuple);
}

bool contains(Run& run, const Value& container, const Value& wanted) {
  if (const Text* text = container.text()) {
    if (wanted.text() == nullptr) fail_operands(run, "use 'in' with", container, wanted);
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

// Compares lists by the first items that differ, else by their length.
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

Value apply(Run& run, Operator op, const Value& left, const Value& right) {
  run.spend();
  if (op == Operator::kConcatenate) {
    Text joined = to_text(run, left);
    joined.append(to_text(run, right));
    joined.markup = false;
    return run.text(std::move(joined));
  }
  const auto a = as_integer(left), b = as_integer(right);
  if (left.is_number() && right.is_number()) {
    check_divisor(run, op, as_double(right));
    if (a && b) return integer_operation(run, op, *a, *b);
    return real_operation(op, as_double(left), as_double(right));
  }
  const auto sequence = [](const Value& v) { return v.text() != nullptr || v.list() != nullptr; };
  if (op == Operator::kAdd && sequence(left)) return add_sequences(run, left, right);
  if (op == Operator::kMultiply && sequence(left) && b) return repeated(run, left, *b);
  if (op == Operator::kMultiply && sequence(right) && a) return repeated(run, right, *a);
  if (op == Operator::kModulo && left.text() != nullptr) {
    run.fail("formatting with % is not supported");
  }
  fail_operands(run, verb(op), left, right);
}

Value negate(Run& run, const Value& value) {
  if (const auto integer = as_integer(value)) {
    if (*integer == std::numeric_limits<int64_t>::min()) too_large(run);
    return Value(-*integer);
  }
  if (!value.is_number()) fail_operands(run, "negate", value, value);
  return Value(-as_double(value));
}

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
  if (list == nullptr || !list->tuple) run.fail("{} is not hashable", type_name(value));
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
  if (left.text() == nullptr || right.text() == nullptr) fail_operands(run, "compare", left, right);
  run.spend(std::min(left.text()->bytes.size(), right.text()->bytes.size()));
  return left.text()->bytes < right.text()->bytes;  // UTF-8 has the order of code points
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
