#include "server/text/jinja/operations.h"

#include <utf8proc.h>

#include <algorithm>
#include <utility>

#include "server/text/jinja/callables.h"

namespace recurve::jinja {
namespace {

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

// The first byte of the character with this index; the size of the text if there is none.
size_t byte_of(std::string_view utf8, int64_t index) {
  for (const Character& c : Characters(utf8)) {
    if (index-- == 0) return c.begin;
  }
  return utf8.size();
}

// Python's rule for positions before the beginning or after the end.
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
  for (const Character& c : Characters(text.bytes)) {
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

Text text_repr(Run& run, const Text& text) {
  run.spend(text.bytes.size());
  if (!text.markup) return quoted(text);
  Text out("Markup(", Origin::kTemplate);
  out.append(quoted(text));
  out.append(")", Origin::kTemplate);
  return out;
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
    append(run, &out, text_repr(run, key));
    append(&out, ": ");
    append(run, &out, repr(run, value));
  }
  append(&out, "}");
  return out;
}

}  // namespace

void fail_operands(const Run& run, const char* what, const Value& left, const Value& right) {
  for (const Value* value : {&left, &right}) {
    if (const auto* undefined = value->get<Undefined>()) run.fail("{}", undefined->what);
  }
  run.fail("cannot {} {} and {}", what, type_name(left), type_name(right));
}

Value attribute(Run& run, const Value& object, std::string_view name) {
  run.spend();
  if (const auto* undefined = object.get<Undefined>()) run.fail("{}", undefined->what);
  if (const Dict* dict = object.dict()) {
    // In Python, attributes of dict come before its items.
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
    const int64_t size = length_of(run, object);
    const int64_t at = *index < 0 ? *index + size : *index;
    if (at >= 0 && at < size) {
      return with_markup_of(run, *object.text(), sliced(run, *object.text(), at, at + 1, 1));
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
  const int64_t size = length_of(run, object);
  const int64_t low = stride > 0 ? 0 : -1, high = stride > 0 ? size : size - 1;
  const auto position = [&](const Value& value, int64_t if_missing) {
    return value.is_none() ? if_missing : clamped(to_index(run, value, "a slice"), size, low, high);
  };
  const int64_t from = position(begin, stride > 0 ? low : high);
  const int64_t to = position(end, stride > 0 ? high : low);
  // At most the whole size, to avoid an overflow.
  const int64_t stride_used = std::clamp(stride, -size - 1, size + 1);
  if (const Text* text = object.text()) {
    return with_markup_of(run, *text, sliced(run, *text, from, to, stride_used));
  }
  std::vector<Value> items;
  for (int64_t i = from; stride > 0 ? i < to : i > to; i += stride_used) {
    run.spend();
    items.push_back(object.list()->items[static_cast<size_t>(i)]);
  }
  return run.list(std::move(items), object.list()->tuple);
}

Text sliced(Run& run, const Text& text, int64_t begin, int64_t end, int64_t step) {
  run.spend(text.bytes.size());
  if (step == 1 && begin < end) {
    return text.part(byte_of(text.bytes, begin), byte_of(text.bytes, end));
  }
  Text out;
  int64_t i = step > 0 ? 0 : static_cast<int64_t>(count_characters(text.bytes)) - 1;
  if (step > 0) {
    for (const Character& c : Characters(text.bytes)) {
      if (i >= end) break;
      if (i >= begin && (i - begin) % step == 0) out.append(text.part(c.begin, c.end));
      ++i;
    }
    return out;
  }
  for (size_t at = text.bytes.size(); at > 0 && i > end; --i) {
    const Character c = character_before(text.bytes, at);
    if (i <= begin && (begin - i) % -step == 0) out.append(text.part(c.begin, c.end));
    at = c.begin;
  }
  return out;
}

Text reversed(Run& run, const Text& text) {
  return sliced(run, text, static_cast<int64_t>(count_characters(text.bytes)) - 1, -1, -1);
}

std::vector<Value> pairs_of(Run& run, const Dict& dict) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict.entries()) {
    pairs.push_back(run.list({run.text(key), value}, /*tuple=*/true));
  }
  return pairs;
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
    run.check_items(count_characters(text->bytes));
    for (const Character& c : Characters(text->bytes)) {
      all.push_back(run.text(text->part(c.begin, c.end)));
    }
    return all;
  }
  if (Generator* generator = value.generator()) {
    const size_t next = std::exchange(generator->next, generator->items.size());
    run.spend(64 * (generator->items.size() - next));
    return {generator->items.begin() + static_cast<ptrdiff_t>(next), generator->items.end()};
  }
  run.fail("{} is not iterable", type_name(value));
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

Value replace_checked(Run& run, const Text& text, const Text& from, const Text& to, int64_t most) {
  run.spend(text.bytes.size());
  const size_t most_matches =
      from.empty() ? text.bytes.size() + 1 : text.bytes.size() / from.bytes.size();
  // Checks the size of the result if it is larger than the text; both factors are bounded.
  if (to.bytes.size() > 1 && most_matches > 0) {
    run.check_size(text.bytes.size());
    size_t found = most_matches;
    if (!from.empty()) {
      found = 0;
      for (size_t at = find_text(text.bytes, from.bytes); at != std::string::npos;
           at = find_text(text.bytes, from.bytes, at + from.bytes.size())) {
        ++found;
      }
    }
    if (most >= 0) found = std::min(found, static_cast<size_t>(most));
    run.check_size(found * to.bytes.size());
  }
  return with_markup_of(run, text, replace(text, from.bytes, to, most));
}

Value with_markup_of(Run& run, const Text& source, Text text) {
  text.markup = source.markup;
  return run.text(std::move(text));
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
  if (const Text* text = value.text()) return text_repr(run, *text);
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

}  // namespace recurve::jinja
