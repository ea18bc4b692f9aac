#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "server/text/jinja/text.h"

namespace recurve::jinja {

// What is wrong with a template or its input, in one sentence that begins with the line.
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Value;
struct Macro;  // ast.h

// An undefined name, attribute or item. Prints as an empty string; most other uses are errors.
struct Undefined {
  std::string what;  // e.g. "'x' is undefined"
};
struct None {};

struct List {
  std::vector<Value> items;
  bool tuple = false;  // prints differently
  int nesting = 1;     // levels of values in values, including this
};

// The result of Jinja's lazy filters: always true, without a length, and can be read once.
struct Generator {
  std::vector<Value> items;
  size_t next = 0;
  int nesting = 1;
};

// A dict in the order of insertion.
class Dict {
 public:
  using Entry = std::pair<Text, Value>;
  void set(const Text& key, Value value);
  const Value* find(std::string_view key) const;  // null: none
  const std::vector<Entry>& entries() const { return entries_; }
  int nesting() const { return nesting_; }

 private:
  static constexpr size_t kFew = 16;            // most entries without an index
  size_t index_of(std::string_view key) const;  // the number of entries if there is none

  std::vector<Entry> entries_;
  // Indices in entries_, if there are more than kFew. Not hashed, because clients choose the keys
  // and could choose ones that collide.
  std::map<std::string, size_t, std::less<>> index_;
  int nesting_ = 1;
};

// The only value that a template can change; owned by the run.
struct Namespace {
  std::map<std::string, Value, std::less<>> members;
};

// The variable `loop`.
struct Loop {
  std::shared_ptr<const std::vector<Value>> items;
  size_t index = 0;
  int nesting = 1;
};

enum class Builtin { kRange, kNamespace, kDict, kRaiseException, kStrftimeNow };

// A method that is not called: true and defined, without other uses.
struct Method {
  std::string name;
};

// The value of an expression. Constant, except namespaces and generators. Copies share large
// values.
class Value {
 public:
  using Variant = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
                               std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                               std::shared_ptr<Generator>, Namespace*, std::shared_ptr<const Loop>,
                               const Macro*, Builtin, Method>;

  Value() = default;  // undefined
  template <typename T>
  explicit Value(T value) : value_(std::move(value)) {}
  static Value text(Text text) { return Value(std::make_shared<const Text>(std::move(text))); }
  static Value text(std::string_view bytes) { return text(Text(bytes, Origin::kTemplate)); }
  static Value list(std::vector<Value> items, bool tuple = false);
  static Value generator(std::vector<Value> items);
  static Value dict(Dict dict) { return Value(std::make_shared<const Dict>(std::move(dict))); }

  // Null for a value of another type.
  template <typename T>
  const T* get() const {
    return std::get_if<T>(&value_);
  }
  const Text* text() const { return pointee<Text>(); }
  const List* list() const { return pointee<List>(); }
  const Dict* dict() const { return pointee<Dict>(); }
  const Loop* loop() const { return pointee<Loop>(); }
  Generator* generator() const {
    const auto* pointer = get<std::shared_ptr<Generator>>();
    return pointer == nullptr ? nullptr : pointer->get();
  }
  Namespace* name_space() const {
    const auto* pointer = get<Namespace*>();
    return pointer == nullptr ? nullptr : *pointer;
  }

  bool is_undefined() const { return get<Undefined>() != nullptr; }
  bool is_none() const { return get<None>() != nullptr; }
  bool is_integer() const { return get<int64_t>() != nullptr; }  // true and false are not
  bool is_number() const { return is_integer() || get<double>() != nullptr || get<bool>(); }
  bool is_true() const;  // Python's bool()

  const Variant& variant() const { return value_; }

 private:
  template <typename T>
  const T* pointee() const {
    const auto* pointer = get<std::shared_ptr<const T>>();
    return pointer == nullptr ? nullptr : pointer->get();
  }
  Variant value_;
};

// The levels of values in values. Must be bounded where values are built, because freeing them is
// recursive.
int nesting(const Value& value);
int nesting(const std::vector<Value>& items);  // of a list of them

// A type for messages: "a string", "a list", ...
std::string type_name(const Value& value);

// The value of a number, true and false included.
double as_double(const Value& value);
std::optional<int64_t> as_integer(const Value& value);  // empty for another type

// Python's repr() of a float: the shortest text with the same value.
std::string format_double(double value);

}  // namespace recurve::jinja
