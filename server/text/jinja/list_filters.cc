#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "server/text/jinja/callables.h"
#include "server/text/jinja/operations.h"

// Jinja's filters of lists and dicts.
namespace recurve::jinja {
namespace {

using Values = const CallValues&;

// The attribute or item at a path like "a.b.0".
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

Value join(Run& run, const Value& input, Values call) {
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

Value first(Run& run, const Value& input, Values) {
  const Value none(Undefined{"there is no first item, the sequence was empty"});
  if (Generator* generator = input.generator()) {
    return generator->next < generator->items.size() ? generator->items[generator->next++] : none;
  }
  if (input.text() != nullptr && !input.text()->empty()) {
    return run.text(sliced(run, *input.text(), 0, 1, 1));
  }
  const std::vector<Value> items = items_of(run, input);
  return items.empty() ? none : items.front();
}

Value last(Run& run, const Value& input, Values) {
  if (input.generator() != nullptr) run.fail("{} has no last item", type_name(input));
  if (input.text() != nullptr && !input.text()->empty()) {
    return item(run, input, Value(int64_t{-1}));
  }
  const std::vector<Value> items = items_of(run, input);
  return items.empty() ? Value(Undefined{"there is no last item, the sequence was empty"})
                       : items.back();
}

Value list(Run& run, const Value& input, Values) { return run.list(items_of(run, input)); }

Value items(Run& run, const Value& input, Values) {
  if (input.is_undefined()) return run.generator({});
  if (input.dict() == nullptr) run.fail("items needs a dict, got {}", type_name(input));
  return run.generator(pairs_of(run, *input.dict()));
}

// A string in lower case; other values unchanged.
Value ignoring_case(Run& run, const Value& value) {
  return value.text() == nullptr ? value : run.text(lower(*value.text()));
}

using Keyed = std::vector<std::pair<Value, Value>>;  // sort keys and items

// A list of the items in the order of their keys.
Value sorted(Run& run, Keyed rows, bool reverse) {
  std::stable_sort(rows.begin(), rows.end(), [&](const auto& a, const auto& b) {
    run.spend();
    return reverse ? less(run, b.first, a.first) : less(run, a.first, b.first);
  });
  std::vector<Value> items;
  for (auto& row : rows) items.push_back(std::move(row.second));
  return run.list(std::move(items));
}

Value dictsort(Run& run, const Value& input, Values call) {
  if (input.dict() == nullptr) run.fail("dictsort needs a dict, got {}", type_name(input));
  const Value* by = call.find(1, "by");
  const std::string part = by == nullptr ? "key" : to_string(run, *by, "by").bytes;
  if (part != "key" && part != "value")
    run.fail("dictsort sorts by 'key' or 'value', got '{}'", part);
  Keyed rows;
  for (const auto& [name, value] : input.dict()->entries()) {
    const Value key = run.text(name);
    const Value& by_what = part == "key" ? key : value;
    rows.emplace_back(
        is_set(call.find(0, "case_sensitive")) ? by_what : ignoring_case(run, by_what),
        run.list({key, value}, /*tuple=*/true));
  }
  return sorted(run, std::move(rows), is_set(call.find(2, "reverse")));
}

// What an item is ordered by.
Value order_key(Run& run, const Value& one, bool case_sensitive, const Value* path) {
  const Value key = is_given(path) ? deep_attribute(run, one, *path) : one;
  return case_sensitive ? key : ignoring_case(run, key);
}

Value sort(Run& run, const Value& input, Values call) {
  const bool case_sensitive = is_set(call.find(1, "case_sensitive"));
  const Value* path = call.find(2, "attribute");
  if (is_given(path) && path->text() != nullptr &&
      path->text()->bytes.find(',') != std::string::npos)
    run.fail("sort by several attributes is not supported");
  Keyed rows;
  for (Value& one : items_of(run, input)) {
    Value key = order_key(run, one, case_sensitive, path);
    rows.emplace_back(std::move(key), std::move(one));
  }
  return sorted(run, std::move(rows), is_set(call.find(0, "reverse")));
}

// The first of the least or largest items.
template <bool largest>
Value extreme(Run& run, const Value& input, Values call) {
  const bool case_sensitive = is_set(call.find(0, "case_sensitive"));
  const Value* path = call.find(1, "attribute");
  std::optional<std::pair<Value, Value>> best;  // sort key and item
  for (Value& one : items_of(run, input)) {
    run.spend();
    Value key = order_key(run, one, case_sensitive, path);
    if (!best || (largest ? less(run, best->first, key) : less(run, key, best->first)))
      best.emplace(std::move(key), std::move(one));
  }
  return best ? best->second
              : Value(Undefined{"there is no least or largest item, the sequence was empty"});
}

Value sum(Run& run, const Value& input, Values call) {
  const Value *path = call.find(0, "attribute"), *start = call.find(1, "start");
  Value total = start == nullptr ? Value(int64_t{0}) : *start;
  if (total.text() != nullptr) run.fail("sum of strings is not supported: use join");
  for (const Value& one : items_of(run, input)) {
    run.spend();
    const Value& term = is_given(path) ? deep_attribute(run, one, *path) : one;
    total = apply(run, Operator::kAdd, total, term);
  }
  return total;
}

Value unique(Run& run, const Value& input, Values call) {
  const bool case_sensitive = is_set(call.find(0, "case_sensitive"));
  const Value* path = call.find(1, "attribute");
  std::set<std::string> seen;  // not hashed: clients choose the keys
  std::vector<Value> out;
  for (Value& one : items_of(run, input)) {
    std::string key = hash_key(run, order_key(run, one, case_sensitive, path));
    run.spend(key.size());
    if (seen.insert(std::move(key)).second) out.push_back(std::move(one));
  }
  return run.generator(std::move(out));
}

// The result of the test named by argument `at` with the arguments after it; truth if there is
// none.
bool passes(Run& run, const Value& value, Values call, size_t at) {
  run.spend();
  if (at >= call.positional.size()) return value.is_true();
  const std::string& name = to_string(run, call.positional[at], "the name of a test").bytes;
  const Test* test = find_test(name);
  if (test == nullptr) run.fail("the test '{}' is not supported", name);
  CallValues rest;
  rest.positional.assign(call.positional.begin() + static_cast<ptrdiff_t>(at) + 1,
                         call.positional.end());
  if (!takes_positional(test->parameters, rest.positional.size())) {
    run.fail("the test '{}' is not supported with {} arguments", name, rest.positional.size());
  }
  return test->apply(run, value, rest);
}

// These filters give an empty sequence for every input that is false, as none, 0 and undefined.
template <bool wanted>
Value select(Run& run, const Value& input, Values call) {
  if (!input.is_true()) return run.generator({});
  std::vector<Value> chosen;
  for (Value& one : items_of(run, input)) {
    if (passes(run, one, call, 0) == wanted) chosen.push_back(std::move(one));
  }
  return run.generator(std::move(chosen));
}

template <bool wanted>
Value select_by(Run& run, const Value& input, Values call) {
  if (!input.is_true()) return run.generator({});
  if (call.positional.empty()) run.fail("the name of an attribute is missing");
  std::vector<Value> chosen;
  for (Value& one : items_of(run, input)) {
    const Value attribute = deep_attribute(run, one, call.positional[0]);
    if (passes(run, attribute, call, 1) == wanted) chosen.push_back(std::move(one));
  }
  return run.generator(std::move(chosen));
}

Value map_attribute(Run& run, const Value& input, Values call) {
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

Value map(Run& run, const Value& input, Values call) {
  if (!input.is_true()) return run.generator({});
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

constexpr Filter kListFilters[] = {
    {"dictsort", "case_sensitive by reverse", dictsort},
    {"sort", "reverse case_sensitive attribute", sort},
    {"min", "case_sensitive attribute", extreme<false>},
    {"max", "case_sensitive attribute", extreme<true>},
    {"sum", "attribute start", sum},
    {"unique", "case_sensitive attribute", unique},
    {"join", "d attribute", join},
    {"first", "", first},
    {"last", "", last},
    {"list", "", list},
    {"items", "", items},
    {"select", "*", select<true>},
    {"reject", "*", select<false>},
    {"selectattr", "*", select_by<true>},
    {"rejectattr", "*", select_by<false>},
    {"map", "* attribute default", map},
};

}  // namespace

std::span<const Filter> list_filters() { return kListFilters; }

}  // namespace recurve::jinja
