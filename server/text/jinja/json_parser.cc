#include "server/text/jinja/json_parser.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "server/text/jinja/error.h"
#include "server/text/json/json_bytes.h"

namespace recurve::jinja {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxJsonDepth = 64;

// Builds the value from the parser's events. (nlohmann's own objects would lose the order of keys,
// or find them in time linear in their number.)
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
    Value made = Value::dict(std::move(open_.back().dict));
    open_.pop_back();
    return add(std::move(made));
  }
  bool start_array(size_t) override { return open(true); }
  bool end_array() override {
    Value made = Value::list(std::move(open_.back().items));
    open_.pop_back();
    return add(std::move(made));
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

  // Accounts for a value before it takes memory.
  void count() {
    if (budget_.used == budget_.most) {
      throw Error(fmt::format("there are more than {} values in all", budget_.most));
    }
    ++budget_.used;
  }
  bool open(bool is_list) {
    count();
    if (open_.size() == kMaxJsonDepth) {
      throw Error(fmt::format("the JSON is nested more than {} deep", kMaxJsonDepth));
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

}  // namespace

Value parse_json(std::string_view json, Origin origin, JsonBudget& budget) {
  Builder builder(origin, budget);
  Json::sax_parse(JsonBytes::begin(json, budget.work), JsonBytes::end(json, budget.work), &builder);
  return builder.take();
}

}  // namespace recurve::jinja
