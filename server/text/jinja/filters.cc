#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "server/text/jinja/callables.h"
#include "server/text/jinja/json.h"
#include "server/text/jinja/operations.h"

// Jinja's filters of strings and numbers, and tojson of transformers. Those of lists and dicts are
// in list_filters.cc.
namespace recurve::jinja {
namespace {

using Values = const CallValues&;

template <Text (*map)(const Text&)>
Value mapped(Run& run, const Value& input, Values) {
  const Text text = to_text(run, input);
  return with_markup_of(run, text, map(text));
}

Value in_title_case(Run& run, const Value& input, Values) {
  return run.text(title_filter(to_text(run, input)));
}

Value trim(Run& run, const Value& input, Values call) {
  const Value* chars = call.find(0, "chars");
  std::optional<std::string> of;
  if (is_given(chars)) of = to_string(run, *chars, "chars").bytes;
  const Text text = to_text(run, input);
  return with_markup_of(run, text, strip(text, Side::kBoth, of));
}

// The argument of an indent: a text, or a number of spaces.
Text indentation(Run& run, const Value& value, std::string_view what) {
  if (value.text() != nullptr) return *value.text();
  const int64_t width = to_index(run, value, what);
  if (width > 1000) run.fail("an indent of {} is too wide", width);
  return Text(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '),
              Origin::kTemplate);
}

JsonStyle json_style(Run& run, Values call) {
  JsonStyle style;
  style.ascii = is_set(call.find(0, "ensure_ascii"));
  if (const Value* indent = call.find(1, "indent"); is_given(indent)) {
    style.item_separator = Text(",", Origin::kTemplate);
    style.indent = indentation(run, *indent, "indent");
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

Value tojson(Run& run, const Value& input, Values call) {
  return run.text(to_json(run, input, json_style(run, call)));
}

Value length(Run& run, const Value& input, Values) { return Value(length_of(run, input)); }

Value if_missing(Run&, const Value& input, Values call) {
  const Value *otherwise = call.find(0, "default_value"), *boolean = call.find(1, "boolean");
  if (!input.is_undefined() && !(is_set(boolean) && !input.is_true())) return input;
  return otherwise == nullptr ? Value::text("") : *otherwise;
}

Value replace_in(Run& run, const Value& input, Values call) {
  const Value *from = call.find(0, "old"), *to = call.find(1, "new"),
              *count = call.find(2, "count");
  if (from == nullptr || to == nullptr) run.fail("replace needs two strings");
  Text text = to_text(run, input);
  text.markup = false;
  return replace_checked(run, text, to_text(run, *from), to_text(run, *to),
                         is_given(count) ? to_index(run, *count, "count") : -1);
}

Value as_string(Run& run, const Value& input, Values) { return run.text(to_text(run, input)); }

Value safe(Run& run, const Value& input, Values) {
  Text text = to_text(run, input);
  text.markup = true;
  return run.text(std::move(text));
}

// The value of Python's int() or float() for a string; empty if they raise.
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

Value to_integer(Run& run, const Value& input, Values call) {
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
    if (std::abs(*real) >= 9e18) run.fail("an integer does not fit in 64 bits");
    return Value(static_cast<int64_t>(*real));
  }
  return otherwise == nullptr ? Value(int64_t{0}) : *otherwise;
}

Value to_real(Run& run, const Value& input, Values call) {
  const Value* otherwise = call.find(0, "default");
  std::optional<double> real;
  if (input.text() != nullptr) real = parse_number<double>(run, input);
  if (input.is_number()) real = as_double(input);
  if (real) return Value(*real);
  return otherwise == nullptr ? Value(0.0) : *otherwise;
}

Value absolute(Run& run, const Value& input, Values) {
  if (!input.is_number()) run.fail("abs needs a number, got {}", type_name(input));
  return less(run, input, Value(int64_t{0})) ? negate(run, input) : input;
}

// Python's round(): to the nearest, of two that are as near to the even one.
Value rounded(Run& run, const Value& input, Values call) {
  constexpr int64_t kMostDigits = 15;
  const Value *places = call.find(0, "precision"), *named = call.find(1, "method");
  const int64_t digits = places == nullptr ? 0 : to_index(run, *places, "precision");
  const std::string method = named == nullptr ? "common" : to_string(run, *named, "method").bytes;
  if (!input.is_number()) run.fail("round needs a number, got {}", type_name(input));
  if (digits < 0 || digits > kMostDigits)
    run.fail("round to {} digits is not supported: use 0 to {}", digits, kMostDigits);
  const double value = as_double(input);
  if (method == "common") {
    if (const bool* truth = input.get<bool>()) return Value(int64_t{*truth});
    if (input.get<double>() == nullptr || !std::isfinite(value)) return input;
    return Value(std::strtod(fmt::format("{:.{}f}", value, digits).c_str(), nullptr));
  }
  const double power = std::pow(10.0, static_cast<double>(digits));
  if (method == "ceil") return Value(std::ceil(value * power) / power);
  if (method == "floor") return Value(std::floor(value * power) / power);
  run.fail("round by 'common', 'ceil' or 'floor', got '{}'", method);
}

Value reverse(Run& run, const Value& input, Values) {
  if (const Text* text = input.text()) return with_markup_of(run, *text, reversed(run, *text));
  std::vector<Value> all = items_of(run, input);
  std::reverse(all.begin(), all.end());
  return run.generator(std::move(all));
}

Value indent_lines(Run& run, const Value& input, Values call) {
  const Value* width = call.find(0, "width");
  const Text indention =
      width == nullptr ? Text("    ", Origin::kTemplate) : indentation(run, *width, "width");
  const Text text = to_text(run, input);
  if (indention.markup && !text.markup) run.fail("an indent that is safe is not supported");
  const auto lines = static_cast<size_t>(std::count(text.bytes.begin(), text.bytes.end(), '\n'));
  run.check_items(lines);
  run.check_size(text.bytes.size() + (lines + 1) * indention.bytes.size());
  return with_markup_of(
      run, text,
      indent(text, indention, is_set(call.find(1, "first")), is_set(call.find(2, "blank"))));
}

constexpr Filter kFilters[] = {
    {"trim", "chars", trim},
    {"upper", "", mapped<upper>},
    {"lower", "", mapped<lower>},
    {"title", "", in_title_case},
    {"capitalize", "", mapped<capitalize>},
    {"tojson", "ensure_ascii indent separators sort_keys", tojson},
    {"length", "", length},
    {"count", "", length},
    {"default", "default_value boolean", if_missing},
    {"d", "default_value boolean", if_missing},
    {"replace", "old new count", replace_in},
    {"string", "", as_string},
    {"safe", "", safe},
    {"int", "default", to_integer},
    {"float", "default", to_real},
    {"abs", "", absolute},
    {"round", "precision method", rounded},
    {"reverse", "", reverse},
    {"indent", "width first blank", indent_lines},
};

}  // namespace

const Filter* find_filter(std::string_view name) {
  const Filter* found = find_by_name(kFilters, name);
  return found != nullptr ? found : find_by_name(list_filters(), name);
}

}  // namespace recurve::jinja
