#include <algorithm>
#include <cmath>
#include <limits>

#include "server/text/jinja/operations.h"

namespace recurve::jinja {
namespace {

[[noreturn]] void too_large(const Run& run) { run.fail("an integer becomes larger than 64 bits"); }

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

Value integer_operation(const Run& run, Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  const bool divides =
      op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
  if (divides && b == 0) run.fail("division by zero");
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

Value real_operation(const Run& run, Operator op, double a, double b) {
  const bool divides =
      op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
  if (divides && b == 0) run.fail("division by zero");
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
    return like(run, *text, std::move(out));
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
  if (a == nullptr || b == nullptr || a->tuple != b->tuple) refuse(run, "add", left, right);
  run.spend(64 * (a->items.size() + b->items.size()));
  std::vector<Value> items = a->items;
  items.insert(items.end(), b->items.begin(), b->items.end());
  return run.list(std::move(items), a->tuple);
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
  if (a && b) return integer_operation(run, op, *a, *b);
  if (left.is_number() && right.is_number()) {
    return real_operation(run, op, as_double(left), as_double(right));
  }
  const auto sequence = [](const Value& v) { return v.text() != nullptr || v.list() != nullptr; };
  if (op == Operator::kAdd && sequence(left)) return add_sequences(run, left, right);
  if (op == Operator::kMultiply && sequence(left) && b) return repeated(run, left, *b);
  if (op == Operator::kMultiply && sequence(right) && a) return repeated(run, right, *a);
  if (op == Operator::kModulo && left.text() != nullptr) {
    run.fail("formatting with % is not supported");
  }
  refuse(run, verb(op), left, right);
}

Value negate(Run& run, const Value& value) {
  if (const auto integer = as_integer(value)) {
    if (*integer == std::numeric_limits<int64_t>::min()) too_large(run);
    return Value(-*integer);
  }
  if (!value.is_number()) refuse(run, "negate", value, value);
  return Value(-as_double(value));
}

}  // namespace recurve::jinja
