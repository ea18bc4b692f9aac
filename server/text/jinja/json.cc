#include "server/text/jinja/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "server/text/json/client_json.h"

namespace recurve::jinja {
namespace {

std::string utf16_escape(int32_t code) {
  if (code < 0x10000) return fmt::format("\\u{:04x}", code);
  return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10),
                     0xDC00 + ((code - 0x10000) & 0x3FF));
}

std::string escape(int32_t code, bool ascii) {  // empty: not escaped
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

using Json = nlohmann::json;

constexpr size_t kMaxJsonDepth = 64;

// Builds the value from the parser's events. (nlohmann's objects lose the order of keys, or need
// linear time to find one.)
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(Origin origin, JsonBudget& budget) : origin_(origin), budget_(budget) {}

  bool null() override { return add_scalar(Value(None{})); }
  bool boolean(bool value) override { return add_scalar(Value(value)); }
  bool number_integer(int64_t value) override { return add_scalar(Value(value)); }
  bool number_unsigned(uint64_t value) override {
    if (value > INT64_MAX) throw Error(fmt::format("the integer {} has more than 64 bits", value));
    return add_scalar(Value(static_cast<int64_t>(value)));
  }
  bool number_float(double value, const std::string& text) override {
    if (text.find_first_of(".eE") == text.npos) {
      throw Error(fmt::format("the integer {} has more than 64 bits", text));
    }
    return add_scalar(Value(value));
  }
  bool string(std::string& value) override { return add_scalar(Value::text(Text(value, origin_))); }
  bool binary(Json::binary_t&) override { return false; }  // not in JSON

  bool start_object(size_t) override { return open(false); }
  bool key(std::string& key) override {
    open_.back().key = Text(key, origin_);
    return true;
  }
  bool end_object() override {
    Value dict = Value::dict(std::move(open_.back().dict));
    open_.pop_back();
    return add(std::move(dict));
  }
  bool start_array(size_t) override { return open(true); }
  bool end_array() override {
    Value list = Value::list(std::move(open_.back().items));
    open_.pop_back();
    return add(std::move(list));
  }
  bool parse_error(size_t byte, const std::string&, const Json::exception&) override {
    throw Error(fmt::format("not valid JSON at byte {}", byte));
  }

  Value take() { return std::move(value_); }

 private:
  struct Level {
    bool is_list;
    std::vector<Value> items = {};
    Dict dict = {};
    Text key = {};
  };

  // Counts a value before it takes memory.
  void count() {
    if (budget_.used == budget_.most) {
      throw Error(fmt::format("there are more than {} values in total", budget_.most));
    }
    ++budget_.used;
  }
  bool open(bool is_list) {
    count();
    if (open_.size() == kMaxJsonDepth) {
      throw Error(fmt::format("the JSON is nested more than {} levels deep", kMaxJsonDepth));
    }
    open_.push_back({is_list});
    return true;
  }
  bool add_scalar(Value value) {
    count();
    return add(std::move(value));
  }
  bool add(Value value) {
    if (open_.empty()) {
      value_ = std::move(value);
    } else if (open_.back().is_list) {
      open_.back().items.push_back(std::move(value));
    } else {
      open_.back().dict.set(open_.back().key, std::move(value));
    }
    return true;
  }

  const Origin origin_;
  JsonBudget& budget_;
  std::vector<Level> open_;
  Value value_;
};

class Writer {
 public:
  Writer(Run& run, const JsonStyle& style) : run_(run), style_(style) {}

  Text write(const Value& value) {
    put(value, 0);
    run_.check_size(out_.bytes.size());
    return std::move(out_);
  }

 private:
  void put(const Value& value, size_t depth) {
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

  void put(std::string_view text) { out_.append(text, Origin::kTemplate); }

  void put_string(const Text& text) {
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

  void put_list(const List& list, size_t depth) {
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

  void put_dict(const Dict& dict, size_t depth) {
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

  void break_line(size_t depth) {
    if (!style_.indent) return;
    put("\n");
    for (size_t i = 0; i < depth; ++i) out_.append(*style_.indent);
    run_.check_size(out_.bytes.size());
  }

  void put_number(const Value& value) {
    if (value.is_none()) return put("null");
    if (const auto* boolean = value.get<bool>()) return put(*boolean ? "true" : "false");
    if (const auto* integer = value.get<int64_t>()) return put(fmt::format("{}", *integer));
    const auto* real = value.get<double>();
    if (real == nullptr) run_.fail("{} cannot be written as JSON", type_name(value));
    if (std::isnan(*real)) return put("NaN");
    put(std::isinf(*real) ? (*real > 0 ? "Infinity" : "-Infinity") : format_double(*real));
  }

  Run& run_;
  const JsonStyle& style_;
  Text out_;
};

}  // namespace

Text to_json(Run& run, const Value& value, const JsonStyle& style) {
  return Writer(run, style).write(value);
}

Value parse_json(std::string_view json, Origin origin, JsonBudget& budget) {
  Builder builder(origin, budget);
  Json::sax_parse(JsonBytes::begin(json, budget.work), JsonBytes::end(json, budget.work), &builder);
  return builder.take();
}

}  // namespace recurve::jinja
