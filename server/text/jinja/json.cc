#include "server/text/jinja/json.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace recurve::jinja {
namespace {

std::string utf16_escape(int32_t code) {
  if (code < 0x10000) return fmt::format("\\u{:04x}", code);
  return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10),
                     0xDC00 + ((code - 0x10000) & 0x3FF));
}

std::string escape(int32_t code, bool ascii) {  // empty: as it is
  switch (code) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    default:
      return code < 0x20 || (ascii && code > 0x7E) ? utf16_escape(code) : "";
  }
}

class Writer {
 public:
  Writer(Run& run, const JsonStyle& style) : run_(run), style_(style) {}

  Text write(const Value& value) {
    put(value, 0);
    run_.check_size(out_.bytes.size());
    return std::move(out_);
  }

 private:
  void put(const Value& value, size_t depth);
  void put(std::string_view text) { out_.append(text, Origin::kTemplate); }
  void put_string(const Text& text);
  void put_list(const List& list, size_t depth);
  void put_dict(const Dict& dict, size_t depth);
  void break_line(size_t depth);
  void put_number(const Value& value);

  Run& run_;
  const JsonStyle& style_;
  Text out_;
};

void Writer::put(const Value& value, size_t depth) {
  const Run::Level level(run_);
  run_.spend();
  run_.check_size(out_.bytes.size());
  if (const Text* text = value.text()) {
    put_string(*text);
  } else if (const List* list = value.list()) {
    put_list(*list, depth);
  } else if (const Dict* dict = value.dict()) {
    put_dict(*dict, depth);
  } else {
    put_number(value);
  }
}

void Writer::put_number(const Value& value) {
  if (value.is_none()) return put("null");
  if (const auto* boolean = value.get<bool>()) return put(*boolean ? "true" : "false");
  if (const auto* integer = value.get<int64_t>()) return put(fmt::format("{}", *integer));
  const auto* real = value.get<double>();
  if (real == nullptr) run_.fail("{} cannot be written as JSON", type_name(value));
  if (std::isnan(*real)) return put("NaN");
  put(std::isinf(*real) ? (*real > 0 ? "Infinity" : "-Infinity") : format_double(*real));
}

void Writer::put_string(const Text& text) {
  run_.spend(text.bytes.size());
  put("\"");
  for (const Character& c : Characters(text.bytes)) {
    const std::string escaped = escape(c.code, style_.ascii);
    if (escaped.empty()) {
      out_.append(std::string_view(text.bytes).substr(c.begin, c.end - c.begin),
                  text.origin(c.begin));
    } else {
      out_.append(escaped, text.origin(c.begin));
    }
  }
  put("\"");
}

void Writer::break_line(size_t depth) {
  if (!style_.indent) return;
  put("\n");
  for (size_t i = 0; i < depth; ++i) out_.append(*style_.indent);
  run_.check_size(out_.bytes.size());
}

void Writer::put_list(const List& list, size_t depth) {
  if (list.items.empty()) return put("[]");
  put("[");
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out_.append(style_.item_separator);
    break_line(depth + 1);
    put(list.items[i], depth + 1);
  }
  break_line(depth);
  put("]");
}

void Writer::put_dict(const Dict& dict, size_t depth) {
  if (dict.entries().empty()) return put("{}");
  std::vector<const Dict::Entry*> entries;
  for (const auto& entry : dict.entries()) entries.push_back(&entry);
  if (style_.sort_keys) {
    std::sort(entries.begin(), entries.end(),
              [](const auto* a, const auto* b) { return a->first.bytes < b->first.bytes; });
  }
  put("{");
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) out_.append(style_.item_separator);
    break_line(depth + 1);
    put_string(entries[i]->first);
    out_.append(style_.key_separator);
    put(entries[i]->second, depth + 1);
  }
  break_line(depth);
  put("}");
}

}  // namespace

Text to_json(Run& run, const Value& value, const JsonStyle& style) {
  return Writer(run, style).write(value);
}

}  // namespace recurve::jinja
