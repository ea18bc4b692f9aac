#include <algorithm>
#include <charconv>
#include <cmath>

#include "server/text/jinja/callables.h"
#include "server/text/jinja/json.h"
#include "server/text/jinja/operations.h"

// Jinja's filters, and tojson as transformers has it.
namespace recurve::jinja {
namespace {

using Call = const CallValues&;

bool is_given(const Value* value) { return value != nullptr && !value->is_none(); }
bool is_set(const Value* value) { return value != nullptr && value->is_true(); }

template <Text (*map)(const Text&)>
Value mapped(Run& run, const Value& input, Call) {
  return run.text(map(to_text(run, input)));
}

Value trim(Run& run, const Value& input, Call call) {
  const Value* chars = call.find(0, "chars");
  std::optional<std::string> of;
  if (is_given(chars)) of = to_string(run, *chars, "chars").bytes;
  return run.text(strip(to_text(run, input), Side::kBoth, of));
}

JsonStyle json_style(Run& run, Call call) {
  JsonStyle style;
  style.ascii = is_set(call.find(0, "ensure_ascii"));
  if (const Value* indent = call.find(1, "indent"); is_given(indent)) {
    style.item_separator = Text(",", Origin::kTemplate);
    if (indent->text() != nullptr) {
      style.indent = *indent->text();
    } else {
      const int64_t width = to_index(run, *indent, "indent");
      if (width > 1000) run.fail("an indent of {} is too wide", width);
      style.indent = Text(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '),
                          Origin::kTemplate);
    }
  }
  if (const Value* separators = call.find(2, "separators"); is_given(separators)) {
    const std::vector<Value> both = items_of(run, *separators);
    if (both.size() != 2) run.fail("separators must be two strings");
    style.item_separator = to_string(run, both[0], "a separator");
    style.key_separator = to_string(run, both[1], "a separator");
  }
  style.sort_keys = is_set(call.find(3, "sort_keys"));
  return style;
}

Value tojson(Run& run, const Value& input, Call call) {
  return run.text(to_json(run, input, json_style(run, call)));
}

// "a.b.0": an attribute of an item, step by step.
Value deep_attribute(Run& run, Value value, const Value& path) {
  if (path.is_integer()) return item(run, value, path);
  std::string_view rest = to_string(run, path, "the attribute").bytes;
  for (bool more = true; more;) {
    const size_t dot = rest.find('.');
    const std::string_view name = rest.substr(0, dot);
    int64_t index = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool number = error == std::errc() && end == name.data() + name.size() && index >= 0;
    value = item(run, value, number ? Value(index) : Value::text(name));
    more = dot != rest.npos;
    if (more) rest = rest.substr(dot + 1);
  }
  return value;
}

Value join(Run& run, const Value& input, Call call) {
  const Value *separator = call.find(0, "d"), *path = call.find(1, "attribute");
  const Text between = separator == nullptr ? Text() : to_text(run, *separator);
  Text out;
  bool first = true;
  for (const Value& one : items_of(run, input)) {
    if (!std::exchange(first, false)) out.append(between);
    out.append(to_text(run, is_given(path) ? deep_attribute(run, one, *path) : one));
    run.check_size(out.bytes.size());
  }
  return run.text(std::move(out));
}

Value length(Run& run, const Value& input, Call) { return Value(length_of(run, input)); }

Value if_missing(Run&, const Value& input, Call call) {
  const Value *otherwise = call.find(0, "default_value"), *boolean = call.find(1, "boolean");
  if (!input.is_undefined() && !(is_set(boolean) && !input.is_true())) return input;
  return otherwise == nullptr ? Value::text("") : *otherwise;
}

Value first(Run& run, const Value& input, Call) {
  const Value none(Undefined{"there is no first item, the sequence was empty"});
  if (Generator* generator = input.generator()) {
    return generator->next < generator->items.size() ? generator->items[generator->next++] : none;
  }
  const std::vector<Value> items = items_of(run, input);
  return items.empty() ? none : items.front();
}

Value last(Run& run, const Value& input, Call) {
  if (input.generator() != nullptr) run.fail("{} has no last item", type_name(input));
  const std::vector<Value> items = items_of(run, input);
  return items.empty() ? Value(Undefined{"there is no last item, the sequence was empty"})
                       : items.back();
}

Value replace_in(Run& run, const Value& input, Call call) {
  const Value *from = call.find(0, "old"), *to = call.find(1, "new"),
              *count = call.find(2, "count");
  if (from == nullptr || to == nullptr) run.fail("replace needs two strings");
  return replaced(run, to_text(run, input), to_text(run, *from), to_text(run, *to),
                  is_given(count) ? to_index(run, *count, "count") : -1);
}

Value list(Run& run, const Value& input, Call) { return run.list(items_of(run, input)); }

Value items(Run& run, const Value& input, Call) {
  std::vector<Value> pairs;
  if (input.is_undefined()) return run.generator({});
  if (input.dict() == nullptr) run.fail("items needs a dict, got {}", type_name(input));
  for (const auto& [key, value] : input.dict()->entries()) {
    pairs.push_back(run.list({run.text(key), value}, /*tuple=*/true));
  }
  return run.generator(std::move(pairs));
}

// A test by its name, with the arguments from `at` on; truth where there is none.
bool passes(Run& run, const Value& value, Call call, size_t at) {
  run.spend();
  if (at >= call.positional.size()) return value.is_true();
  const std::string& name = to_string(run, call.positional[at], "the name of a test").bytes;
  const Predicate* predicate = find_predicate(name);
  if (predicate == nullptr) run.fail("the test '{}' is not supported", name);
  CallValues rest;
  rest.positional.assign(call.positional.begin() + static_cast<ptrdiff_t>(at) + 1,
                         call.positional.end());
  if (!takes_positional(predicate->parameters, rest.positional.size())) {
    run.fail("the test '{}' is not supported with {} arguments", name, rest.positional.size());
  }
  return predicate->holds(run, value, rest);
}

template <bool wanted>
Value select(Run& run, const Value& input, Call call) {
  std::vector<Value> chosen;
  for (Value& one : items_of(run, input)) {
    if (passes(run, one, call, 0) == wanted) chosen.push_back(std::move(one));
  }
  return run.generator(std::move(chosen));
}

template <bool wanted>
Value select_by(Run& run, const Value& input, Call call) {
  if (call.positional.empty()) run.fail("the name of an attribute is missing");
  std::vector<Value> chosen;
  for (Value& one : items_of(run, input)) {
    const Value attribute = deep_attribute(run, one, call.positional[0]);
    if (passes(run, attribute, call, 1) == wanted) chosen.push_back(std::move(one));
  }
  return run.generator(std::move(chosen));
}

Value map_attribute(Run& run, const Value& input, Call call) {
  const Value *path = call.find(SIZE_MAX, "attribute"), *otherwise = call.find(SIZE_MAX, "default");
  std::vector<Value> out;
  if (path == nullptr) run.fail("map needs the name of a filter or an attribute");
  for (const Value& one : items_of(run, input)) {
    Value value = deep_attribute(run, one, *path);
    const bool missing = value.is_undefined() && otherwise != nullptr;
    out.push_back(missing ? *otherwise : std::move(value));
  }
  return run.generator(std::move(out));
}

Value map(Run& run, const Value& input, Call call) {
  if (call.positional.empty()) return map_attribute(run, input, call);
  const std::string& name = to_string(run, call.positional[0], "the name of a filter").bytes;
  const Filter* filter = find_filter(name);
  if (filter == nullptr) run.fail("the filter '{}' is not supported", name);
  CallValues rest = call;
  rest.positional.erase(rest.positional.begin());
  if (!takes_positional(filter->parameters, rest.positional.size())) {
    run.fail("the filter '{}' is not supported with {} arguments", name, rest.positional.size());
  }
  const Run::Level level(run);
  std::vector<Value> out;
  for (const Value& one : items_of(run, input)) out.push_back(filter->apply(run, one, rest));
  return run.generator(std::move(out));
}

Value string(Run& run, const Value& input, Call) { return run.text(to_text(run, input)); }
Value safe(Run& run, const Value& input, Call) { return run.text(to_text(run, input)); }

// What Python's int() and float() read; empty where they refuse.
template <typename Number>
std::optional<Number> parse_number(Run& run, const Value& value) {
  const std::string text = strip(to_string(run, value, "a number"), Side::kBoth).bytes;
  const size_t sign = text.starts_with('+') ? 1 : 0;
  Number number{};
  const auto [end, error] = std::from_chars(text.data() + sign, text.data() + text.size(), number);
  const bool signs = sign == 1 && text.size() > 1 && text[1] == '-';
  if (error != std::errc() || end != text.data() + text.size() || signs) return {};
  return number;
}

Value to_integer(Run& run, const Value& input, Call call) {
  const Value* otherwise = call.find(0, "default");
  std::optional<double> real;
  if (input.text() != nullptr) {
    if (const auto integer = parse_number<int64_t>(run, input)) return Value(*integer);
    real = parse_number<double>(run, input);
  } else if (input.is_number()) {
    if (const auto* integer = input.get<int64_t>()) return Value(*integer);
    real = as_double(input);
  }
  if (real && std::isfinite(*real)) {
    if (std::abs(*real) >= 9e18) run.fail("an integer becomes larger than 64 bits");
    return Value(static_cast<int64_t>(*real));
  }
  return otherwise == nullptr ? Value(int64_t{0}) : *otherwise;
}

Value to_real(Run& run, const Value& input, Call call) {
  const Value* otherwise = call.find(0, "default");
  std::optional<double> real;
  if (input.text() != nullptr) real = parse_number<double>(run, input);
  if (input.is_number()) real = as_double(input);
  if (real) return Value(*real);
  return otherwise == nullptr ? Value(0.0) : *otherwise;
}

Value absolute(Run& run, const Value& input, Call) {
  if (!input.is_number()) run.fail("abs needs a number, got {}", type_name(input));
  return less(run, input, Value(int64_t{0})) ? negate(run, input) : input;
}

Value reverse(Run& run, const Value& input, Call) {
  std::vector<Value> all = items_of(run, input);
  std::reverse(all.begin(), all.end());
  if (input.text() == nullptr) return run.generator(std::move(all));
  Text out;
  for (const Value& one : all) out.append(*one.text());
  return run.text(std::move(out));
}

Value indent_lines(Run& run, const Value& input, Call call) {
  const Value* width = call.find(0, "width");
  Text indention(std::string(4, ' '), Origin::kTemplate);
  if (width != nullptr && width->text() != nullptr) {
    indention = *width->text();
  } else if (width != nullptr) {
    const int64_t spaces = std::max<int64_t>(to_index(run, *width, "width"), 0);
    if (spaces > 1000) run.fail("an indent of {} is too wide", spaces);
    indention = Text(std::string(static_cast<size_t>(spaces), ' '), Origin::kTemplate);
  }
  const Text text = to_text(run, input);
  const auto lines = static_cast<size_t>(std::count(text.bytes.begin(), text.bytes.end(), '\n'));
  run.check_size(text.bytes.size() + (lines + 1) * indention.bytes.size());
  return run.text(
      indent(text, indention, is_set(call.find(1, "first")), is_set(call.find(2, "blank"))));
}

constexpr Filter kFilters[] = {
    {"trim", "chars", trim},
    {"upper", "", mapped<upper>},
    {"lower", "", mapped<lower>},
    {"title", "", mapped<title_filter>},
    {"capitalize", "", mapped<capitalize>},
    {"tojson", "ensure_ascii indent separators sort_keys", tojson},
    {"join", "d attribute", join},
    {"length", "", length},
    {"count", "", length},
    {"default", "default_value boolean", if_missing},
    {"d", "default_value boolean", if_missing},
    {"first", "", first},
    {"last", "", last},
    {"replace", "old new count", replace_in},
    {"list", "", list},
    {"items", "", items},
    {"select", "*", select<true>},
    {"reject", "*", select<false>},
    {"selectattr", "*", select_by<true>},
    {"rejectattr", "*", select_by<false>},
    {"map", "* attribute default", map},
    {"string", "", string},
    {"safe", "", safe},
    {"int", "default", to_integer},
    {"float", "default", to_real},
    {"abs", "", absolute},
    {"reverse", "", reverse},
    {"indent", "width first blank", indent_lines},
};

}  // namespace

const Filter* find_filter(std::string_view name) {
  const auto found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                  [&](const Filter& f) { return f.name == name; });
  return found == std::end(kFilters) ? nullptr : &*found;
}

}  // namespace recurve::jinja
