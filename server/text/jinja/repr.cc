#include <utf8proc.h>

#include <utility>

#include "server/text/jinja/operations.h"

namespace recurve::jinja {
namespace {

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
