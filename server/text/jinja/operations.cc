#include "server/text/jinja/operations.h"

#include <utf8proc.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "server/text/jinja/callables.h"

namespace recurve::jinja {
namespace {

std::optional<int64_t> as_integer(const Value& value) {
  if (const auto* b = value.get<bool>()) return *b ? 1 : 0;
  if (const auto* i = value.get<int64_t>()) return *i;
  return {};
}

// Two values that an operator has no meaning for.
[[noreturn]] void refuse(const Run& run, const char* what, const Value& left, const Value& right) {
  for (const Value* value : {&left, &right}) {
    if (const auto* undefined = value->get<Undefined>()) run.fail("{}", undefined->what);
  }
  run.fail("cannot {} {} and {}", what, type_name(left), type_name(right));
}

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
    return run.text(std::move(out));
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
    Text sum = *left.text();
    sum.append(*right.text());
    return run.text(std::move(sum));
  }
  const List *a = left.list(), *b = right.list();
  if (a == nullptr || b == nullptr || a->tuple != b->tuple) refuse(run, "add", left, right);
  run.spend(64 * (a->items.size() + b->items.size()));
  std::vector<Value> items = a->items;
  items.insert(items.end(), b->items.begin(), b->items.end());
  return run.list(std::move(items), a->tuple);
}

bool contains(Run& run, const Value& container, const Value& wanted) {
  if (const Text* text = container.text()) {
    if (wanted.text() == nullptr)
      refuse(run, "search a string for what is no string:", container, wanted);
    run.spend(text->bytes.size());
    return text->bytes.find(wanted.text()->bytes) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) {
    return wanted.text() != nullptr && dict->find(wanted.text()->bytes) != nullptr;
  }
  const std::vector<Value> items = items_of(run, container);
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& item) { return equal(run, item, wanted); });
}

bool is_dict_method(std::string_view name) {
  for (const std::string_view method : {"clear", "copy", "fromkeys", "get", "items", "keys", "pop",
                                        "popitem", "setdefault", "update", "values"}) {
    if (name == method) return true;
  }
  return false;
}

Value loop_attribute(const Run& run, const Loop& loop, std::string_view name) {
  const size_t size = loop.items->size();
  const auto number = [](size_t n) { return Value(static_cast<int64_t>(n)); };
  if (name == "index") return number(loop.index + 1);
  if (name == "index0") return number(loop.index);
  if (name == "revindex") return number(size - loop.index);
  if (name == "revindex0") return number(size - loop.index - 1);
  if (name == "first") return Value(loop.index == 0);
  if (name == "last") return Value(loop.index + 1 == size);
  if (name == "length") return number(size);
  if (name == "depth") return number(1);  // Jinja counts recursive loops only
  if (name == "depth0") return number(0);
  if (name == "previtem") {
    return loop.index > 0 ? (*loop.items)[loop.index - 1]
                          : Value(Undefined{"there is no previous item"});
  }
  if (name == "nextitem") {
    return loop.index + 1 < size ? (*loop.items)[loop.index + 1]
                                 : Value(Undefined{"there is no next item"});
  }
  run.fail("loop.{} is not supported", name);
}

// Python's rule for positions from the end and beyond it.
int64_t clamped(int64_t position, int64_t size, int64_t low, int64_t high) {
  return std::clamp(position < 0 ? position + size : position, low, high);
}

bool is_printable(int32_t code) {  // str.isprintable
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return code == ' ';
    default:
      return true;
  }
}

std::string escaped(int32_t code) {
  if (code == '\n') return "\\n";
  if (code == '\r') return "\\r";
  if (code == '\t') return "\\t";
  if (code < 0x100) return fmt::format("\\x{:02x}", code);
  return code < 0x10000 ? fmt::format("\\u{:04x}", code) : fmt::format("\\U{:08x}", code);
}

Text quoted(const Text& text) {
  const bool doubles =
      text.bytes.find('\'') != std::string::npos && text.bytes.find('"') == std::string::npos;
  const char quote = doubles ? '"' : '\'';
  Text out(std::string_view(&quote, 1), Origin::kTemplate);
  for (const Character& c : characters(text.bytes)) {
    const Origin origin = text.origin(c.begin);
    if (c.code == '\\' || c.code == quote) out.append("\\", origin);
    if (is_printable(c.code)) {
      out.append(text.part(c.begin, c.end));
    } else {
      out.append(escaped(c.code), origin);
    }
  }
  out.append(std::string_view(&quote, 1), Origin::kTemplate);
  return out;
}

void append(Run& run, Text* out, const Text& text) {
  run.check_size(out->bytes.size() + text.bytes.size());
  run.spend(text.bytes.size());
  out->append(text);
}

void append(Text* out, std::string_view text) { out->append(text, Origin::kTemplate); }

Text list_repr(Run& run, const List& list) {
  Text out;
  append(&out, list.tuple ? "(" : "[");
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) append(&out, ", ");
    append(run, &out, repr(run, list.items[i]));
  }
  if (list.tuple && list.items.size() == 1) append(&out, ",");
  append(&out, list.tuple ? ")" : "]");
  return out;
}

Text dict_repr(Run& run, const Dict& dict) {
  Text out;
  append(&out, "{");
  bool first = true;
  for (const auto& [key, value] : dict.entries()) {
    if (!std::exchange(first, false)) append(&out, ", ");
    append(run, &out, quoted(key));
    append(&out, ": ");
    append(run, &out, repr(run, value));
  }
  append(&out, "}");
  return out;
}

}  // namespace

Value apply(Run& run, Operator op, const Value& left, const Value& right) {
  run.spend();
  if (op == Operator::kConcatenate) {
    Text joined = to_text(run, left);
    joined.append(to_text(run, right));
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
  if (left.text() == nullptr || right.text() == nullptr) refuse(run, "compare", left, right);
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
  if (const List* x = left.list(), *y = right.list(); x != nullptr) {
    return x->tuple == y->tuple &&
           std::equal(x->items.begin(), x->items.end(), y->items.begin(), y->items.end(),
                      [&](const Value& p, const Value& q) { return equal(run, p, q); });
  }
  if (const Dict* x = left.dict(), *y = right.dict(); x != nullptr) {
    if (x->entries().size() != y->entries().size()) return false;
    return std::all_of(x->entries().begin(), x->entries().end(), [&](const Dict::Entry& entry) {
      const Value* other = y->find(entry.first.bytes);
      return other != nullptr && equal(run, entry.second, *other);
    });
  }
  if (left.name_space() != nullptr) return left.name_space() == right.name_space();
  run.fail("cannot compare {}", type_name(left));
}

Value negate(Run& run, const Value& value) {
  if (const auto integer = as_integer(value)) {
    if (*integer == std::numeric_limits<int64_t>::min()) too_large(run);
    return Value(-*integer);
  }
  if (!value.is_number()) refuse(run, "negate", value, value);
  return Value(-as_double(value));
}

Value attribute(Run& run, const Value& object, std::string_view name) {
  run.spend();
  if (const auto* undefined = object.get<Undefined>()) run.fail("{}", undefined->what);
  if (const Dict* dict = object.dict()) {
    // Python's own attributes come first.
    if (is_dict_method(name)) return Value(Method{std::string(name)});
    if (const Value* found = dict->find(name)) return *found;
  } else if (const Namespace* space = object.name_space()) {
    const auto found = space->members.find(name);
    if (found != space->members.end()) return found->second;
  } else if (const Loop* loop = object.loop()) {
    return loop_attribute(run, *loop, name);
  } else if (object.text() != nullptr && find_string_method(name) != nullptr) {
    return Value(Method{std::string(name)});
  }
  return Value(Undefined{fmt::format("{} has no attribute '{}'", type_name(object), name)});
}

Value item(Run& run, const Value& object, const Value& key) {
  run.spend();
  if (const Text* name = key.text()) {
    const Value* found = object.dict() == nullptr ? nullptr : object.dict()->find(name->bytes);
    return found != nullptr ? *found : attribute(run, object, name->bytes);
  }
  if (const auto* undefined = object.get<Undefined>()) run.fail("{}", undefined->what);
  const auto index = as_integer(key);
  if (index && object.list() != nullptr) {
    const auto& items = object.list()->items;
    const auto size = static_cast<int64_t>(items.size());
    const int64_t at = *index < 0 ? *index + size : *index;
    if (at >= 0 && at < size) return items[static_cast<size_t>(at)];
  } else if (index && object.text() != nullptr) {
    const Text& text = *object.text();
    run.spend(text.bytes.size());
    const std::vector<Character> all = characters(text.bytes);
    const auto size = static_cast<int64_t>(all.size());
    const int64_t at = *index < 0 ? *index + size : *index;
    if (at >= 0 && at < size) {
      const Character& c = all[static_cast<size_t>(at)];
      return run.text(text.part(c.begin, c.end));
    }
  }
  return Value(Undefined{fmt::format("{} has no such item", type_name(object))});
}

Value slice(Run& run, const Value& object, const Value& begin, const Value& end,
            const Value& step) {
  if (object.text() == nullptr && object.list() == nullptr) {
    if (const auto* undefined = object.get<Undefined>()) run.fail("{}", undefined->what);
    run.fail("{} has no slices", type_name(object));
  }
  const int64_t stride = step.is_none() ? 1 : to_index(run, step, "the step of a slice");
  if (stride == 0) run.fail("the step of a slice is 0");
  const std::vector<Value> all = items_of(run, object);
  const auto size = static_cast<int64_t>(all.size());
  const int64_t low = stride > 0 ? 0 : -1, high = stride > 0 ? size : size - 1;
  const auto position = [&](const Value& value, int64_t if_missing) {
    return value.is_none() ? if_missing : clamped(to_index(run, value, "a slice"), size, low, high);
  };
  const int64_t from = position(begin, stride > 0 ? low : high);
  const int64_t to = position(end, stride > 0 ? high : low);
  std::vector<Value> items;
  Text text;
  // In steps of at most the whole size, so that nothing overflows.
  const int64_t stride_used = std::clamp(stride, -size - 1, size + 1);
  for (int64_t i = from; stride > 0 ? i < to : i > to; i += stride_used) {
    const Value& value = all[static_cast<size_t>(i)];
    if (object.list() != nullptr) {
      items.push_back(value);
    } else {
      text.append(*value.text());
    }
  }
  if (object.list() != nullptr) return run.list(std::move(items), object.list()->tuple);
  return run.text(std::move(text));
}

std::vector<Value> items_of(Run& run, const Value& value) {
  if (value.is_undefined()) return {};
  if (const List* list = value.list()) {
    run.spend(64 * list->items.size());
    return list->items;
  }
  if (const Dict* dict = value.dict()) {
    std::vector<Value> keys;
    run.spend(64 * dict->entries().size());
    for (const auto& entry : dict->entries()) keys.push_back(run.text(entry.first));
    return keys;
  }
  if (const Text* text = value.text()) {
    std::vector<Value> all;
    for (const Character& c : characters(text->bytes)) {
      all.push_back(run.text(text->part(c.begin, c.end)));
    }
    return all;
  }
  if (Generator* generator = value.generator()) {
    const size_t next = std::exchange(generator->next, generator->items.size());
    run.spend(64 * (generator->items.size() - next));
    return {generator->items.begin() + static_cast<ptrdiff_t>(next), generator->items.end()};
  }
  run.fail("{} has nothing to go through", type_name(value));
}

int64_t length_of(Run& run, const Value& value) {
  if (value.is_undefined()) return 0;
  if (const Text* text = value.text()) {
    run.spend(text->bytes.size());
    return static_cast<int64_t>(count_characters(text->bytes));
  }
  if (const List* list = value.list()) return static_cast<int64_t>(list->items.size());
  if (const Dict* dict = value.dict()) return static_cast<int64_t>(dict->entries().size());
  if (const Loop* loop = value.loop()) return static_cast<int64_t>(loop->items->size());
  run.fail("{} has no length", type_name(value));
}

Text to_text(Run& run, const Value& value) {
  if (const Text* text = value.text()) {
    run.spend(text->bytes.size());
    return *text;
  }
  return value.is_undefined() ? Text() : repr(run, value);
}

Text repr(Run& run, const Value& value) {
  const Run::Level level(run);
  run.spend();
  if (const Text* text = value.text()) return quoted(*text);
  if (const List* list = value.list()) return list_repr(run, *list);
  if (const Dict* dict = value.dict()) return dict_repr(run, *dict);
  std::string plain;
  if (value.is_undefined()) {
    plain = "Undefined";
  } else if (value.is_none()) {
    plain = "None";
  } else if (const auto* boolean = value.get<bool>()) {
    plain = *boolean ? "True" : "False";
  } else if (const auto* integer = value.get<int64_t>()) {
    plain = fmt::format("{}", *integer);
  } else if (const auto* real = value.get<double>()) {
    plain = format_double(*real);
  } else {
    run.fail("{} cannot be printed", type_name(value));
  }
  return Text(plain, Origin::kTemplate);
}

Value replaced(Run& run, const Text& text, const Text& from, const Text& to, int64_t most) {
  run.spend(text.bytes.size());
  const size_t places =
      from.empty() ? text.bytes.size() + 1 : text.bytes.size() / from.bytes.size();
  // The most it can become; both factors are bounded.
  if (to.bytes.size() > 1 && places > 0) {
    run.check_size(text.bytes.size());
    size_t found = places;
    if (!from.empty()) {
      found = 0;
      for (size_t at = text.bytes.find(from.bytes); at != std::string::npos;
           at = text.bytes.find(from.bytes, at + from.bytes.size())) {
        ++found;
      }
    }
    if (most >= 0) found = std::min(found, static_cast<size_t>(most));
    run.check_size(found * to.bytes.size());
  }
  return run.text(replace(text, from.bytes, to, most));
}

int64_t to_index(Run& run, const Value& value, std::string_view what) {
  const auto integer = as_integer(value);
  if (!integer) run.fail("{} must be an integer, got {}", what, type_name(value));
  return *integer;
}

const Text& to_string(Run& run, const Value& value, std::string_view what) {
  if (value.text() == nullptr) run.fail("{} must be a string, got {}", what, type_name(value));
  return *value.text();
}

}  // namespace recurve::jinja
