#include <algorithm>

#include "server/text/jinja/callables.h"
#include "server/text/jinja/operations.h"

// Methods of Python's str and dict.
namespace recurve::jinja {
namespace {

using Values = const CallValues&;

// An argument that must be given.
const Value& required(Run& run, Values call, size_t position, const char* if_missing) {
  const Value* value = call.find(position, "");
  if (value == nullptr) run.fail("{}", if_missing);
  return *value;
}

// An argument that may be missing or none.
std::optional<std::string> optional_string(Run& run, const Value* value, std::string_view what) {
  if (value == nullptr || value->is_none()) return {};
  return to_string(run, *value, what).bytes;
}

int64_t optional_count(Run& run, const Value* value, std::string_view what) {
  return value == nullptr || value->is_none() ? -1 : to_index(run, *value, what);
}

// A list of parts of `whole`.
Value list_of(Run& run, const Text& whole, std::vector<Text> parts) {
  run.check_items(parts.size());
  std::vector<Value> items;
  for (Text& part : parts) items.push_back(with_markup_of(run, whole, std::move(part)));
  return run.list(std::move(items));
}

Value strip_side(Run& run, const Value& self, Values call, Side side) {
  const auto of = optional_string(run, call.find(0, "chars"), "chars");
  return with_markup_of(run, *self.text(), strip(*self.text(), side, of));
}
Value strip_both(Run& run, const Value& self, Values call) {
  return strip_side(run, self, call, Side::kBoth);
}
Value strip_left(Run& run, const Value& self, Values call) {
  return strip_side(run, self, call, Side::kLeft);
}
Value strip_right(Run& run, const Value& self, Values call) {
  return strip_side(run, self, call, Side::kRight);
}

template <std::vector<Text> (*cut)(const Text&, const std::optional<std::string>&, int64_t)>
Value split_with(Run& run, const Value& self, Values call) {
  run.spend(self.text()->bytes.size());
  const auto separator = optional_string(run, call.find(0, "sep"), "sep");
  if (separator && separator->empty()) run.fail("the separator of a split is empty");
  const int64_t most = optional_count(run, call.find(1, "maxsplit"), "maxsplit");
  const auto bound = static_cast<int64_t>(run.most_items());  // one item more is an error
  return list_of(run, *self.text(),
                 cut(*self.text(), separator, most < 0 ? bound : std::min(most, bound)));
}

Value split_lines(Run& run, const Value& self, Values) {
  run.spend(self.text()->bytes.size());
  return list_of(run, *self.text(), splitlines(*self.text(), run.most_items()));
}

// startswith and endswith take a string or a tuple of strings.
template <bool (*matches)(std::string_view, std::string_view)>
Value any_of(Run& run, const Value& self, Values call) {
  const Value& wanted = required(run, call, 0, "the string to look for is missing");
  const std::string_view text = self.text()->bytes;
  if (wanted.list() == nullptr) {
    return Value(matches(text, to_string(run, wanted, "the string to look for").bytes));
  }
  const auto& all = wanted.list()->items;
  return Value(std::any_of(all.begin(), all.end(), [&](const Value& one) {
    run.spend();
    return matches(text, to_string(run, one, "each of the strings to look for").bytes);
  }));
}
bool begins(std::string_view text, std::string_view with) { return text.starts_with(with); }
bool ends(std::string_view text, std::string_view with) { return text.ends_with(with); }

Value replace_in_self(Run& run, const Value& self, Values call) {
  const Value& from = required(run, call, 0, "replace needs two strings");
  const Value& to = required(run, call, 1, "replace needs two strings");
  const Text& with = to_string(run, to, "what replaces it");
  return replace_checked(run, *self.text(), to_string(run, from, "what is replaced"),
                         self.text()->markup ? escape_html(with) : with,
                         optional_count(run, call.find(2, "count"), "count"));
}

template <Text (*map)(const Text&)>
Value mapped_self(Run& run, const Value& self, Values) {
  return with_markup_of(run, *self.text(), map(*self.text()));
}

Value join_items(Run& run, const Value& self, Values call) {
  const Value& items = required(run, call, 0, "join needs a list");
  Text out;
  bool first = true;
  for (const Value& item : items_of(run, items)) {
    if (!std::exchange(first, false)) out.append(*self.text());
    const Text& one = to_string(run, item, "each item to join");
    out.append(self.text()->markup ? escape_html(one) : one);
    run.check_size(out.bytes.size());
  }
  return with_markup_of(run, *self.text(), std::move(out));
}

Value find_in(Run& run, const Value& self, Values call) {
  const Value& wanted = required(run, call, 0, "find needs a string");
  const std::string_view text = self.text()->bytes;
  run.spend(text.size());
  const size_t at = find_text(text, to_string(run, wanted, "the string to look for").bytes);
  if (at == text.npos) return Value(int64_t{-1});
  return Value(static_cast<int64_t>(count_characters(text.substr(0, at))));
}

Value count_in(Run& run, const Value& self, Values call) {
  const Value& wanted = required(run, call, 0, "count needs a string");
  const std::string_view text = self.text()->bytes;
  const std::string& what = to_string(run, wanted, "the string to count").bytes;
  run.spend(text.size());
  if (what.empty()) return Value(static_cast<int64_t>(count_characters(text)) + 1);
  int64_t n = 0;
  for (size_t at = find_text(text, what); at != text.npos;
       at = find_text(text, what, at + what.size())) {
    ++n;
  }
  return Value(n);
}

Value without_prefix(Run& run, const Value& self, Values call) {
  const Value& prefix = required(run, call, 0, "removeprefix needs a string");
  const Text& text = *self.text();
  const std::string& head = to_string(run, prefix, "the prefix").bytes;
  const size_t begin = text.bytes.starts_with(head) ? head.size() : 0;
  return with_markup_of(run, text, text.part(begin, text.bytes.size()));
}

Value without_suffix(Run& run, const Value& self, Values call) {
  const Value& suffix = required(run, call, 0, "removesuffix needs a string");
  const Text& text = *self.text();
  const std::string& tail = to_string(run, suffix, "the suffix").bytes;
  const size_t end = text.bytes.size() - (text.bytes.ends_with(tail) ? tail.size() : 0);
  return with_markup_of(run, text, text.part(0, end));
}

Value dict_get(Run& run, const Value& self, Values call) {
  const Value& key = required(run, call, 0, "get needs a key");
  const Value* found = key.text() == nullptr ? nullptr : self.dict()->find(key.text()->bytes);
  if (found != nullptr) return *found;
  const Value* otherwise = call.find(1, "");
  return otherwise == nullptr ? Value(None{}) : *otherwise;
}

Value dict_items(Run& run, const Value& self, Values) {
  return run.list(pairs_of(run, *self.dict()));
}

Value dict_keys(Run& run, const Value& self, Values) { return run.list(items_of(run, self)); }

Value dict_values(Run& run, const Value& self, Values) {
  std::vector<Value> items;
  run.spend(64 * self.dict()->entries().size());
  for (const auto& entry : self.dict()->entries()) items.push_back(entry.second);
  return run.list(std::move(items));
}

constexpr MethodEntry kStringMethods[] = {
    {"strip", "chars", strip_both},
    {"lstrip", "chars", strip_left},
    {"rstrip", "chars", strip_right},
    {"split", "sep maxsplit", split_with<split>},
    {"rsplit", "sep maxsplit", split_with<rsplit>},
    {"splitlines", "", split_lines},
    {"startswith", "prefix", any_of<begins>},
    {"endswith", "suffix", any_of<ends>},
    {"replace", "old new count", replace_in_self},
    {"upper", "", mapped_self<upper>},
    {"lower", "", mapped_self<lower>},
    {"title", "", mapped_self<title>},
    {"capitalize", "", mapped_self<capitalize>},
    {"join", "iterable", join_items},
    {"find", "sub", find_in},
    {"count", "sub", count_in},
    {"removeprefix", "prefix", without_prefix},
    {"removesuffix", "suffix", without_suffix},
};

constexpr MethodEntry kDictMethods[] = {
    {"get", "key default", dict_get},
    {"items", "", dict_items},
    {"keys", "", dict_keys},
    {"values", "", dict_values},
};

}  // namespace

const MethodEntry* find_string_method(std::string_view name) {
  return find_by_name(kStringMethods, name);
}
const MethodEntry* find_dict_method(std::string_view name) {
  return find_by_name(kDictMethods, name);
}

}  // namespace recurve::jinja
