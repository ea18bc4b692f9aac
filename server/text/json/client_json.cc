#include "server/text/json/client_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "server/text/cut.h"

namespace recurve {
namespace {

constexpr size_t kLongText = 4096;

// The number of values of each of the first `most` lists and objects of a JSON text, in order. For
// invalid JSON the numbers are arbitrary. They allow to allocate the exact size: a list that grows
// takes up to three times the memory, and an object copies its values when it grows.
std::vector<uint32_t> sizes_of_lists(std::string_view text, size_t most_levels, size_t most) {
  std::vector<uint32_t> sizes;
  std::vector<size_t> open;  // in sizes
  bool in_string = false, begins = false;
  for (size_t at = 0; at < text.size() && open.size() <= most_levels && sizes.size() < most; ++at) {
    const char byte = text[at];
    if (in_string) {
      at += byte == '\\' ? 1 : 0;
      in_string = byte != '"';
      continue;
    }
    if (byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t') continue;
    const bool closes = byte == ']' || byte == '}';
    if (!open.empty() && (byte == ',' || (begins && !closes))) ++sizes[open.back()];
    in_string = byte == '"';
    begins = byte == '[' || byte == '{';
    if (begins) open.push_back(sizes.size());
    if (begins) sizes.push_back(0);
    if (closes && !open.empty()) open.pop_back();
  }
  return sizes;
}

// A name that occurs twice in an object; null: none.
const std::string* duplicate_name(const ClientJson::object_t& members) {
  std::vector<const std::string*> names;
  names.reserve(members.size());
  for (const auto& member : members) names.push_back(&member.first);
  std::sort(names.begin(), names.end(), [](const auto* a, const auto* b) { return *a < *b; });
  const auto twice = std::adjacent_find(names.begin(), names.end(),
                                        [](const auto* a, const auto* b) { return *a == *b; });
  return twice == names.end() ? nullptr : *twice;
}

// Builds the value from the parser's events. (nlohmann's callback filter scans a whole list again
// after each object in it.)
class Builder final : public nlohmann::json_sax<ClientJson> {
 public:
  Builder(std::string_view what, std::string_view text, size_t most_levels, ValueBudget& budget,
          std::span<const std::string_view> id_fields)
      : what_(what),
        most_levels_(most_levels),
        id_fields_(id_fields),
        budget_(budget),
        sizes_(sizes_of_lists(text, most_levels, budget.left)) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return in_ids() ? add_id(value) : add(value); }
  bool number_unsigned(uint64_t value) override { return in_ids() ? add_id(value) : add(value); }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override {
    if (value.size() >= kLongText) value.shrink_to_fit();  // its capacity may be twice its size
    return add(std::move(value));
  }
  bool binary(ClientJson::binary_t&) override { return false; }  // not in JSON

  bool start_object(size_t) override { return open(ClientJson::object()); }
  bool end_object() override {
    const auto& members = *open_.back()->get_ptr<ClientJson::object_t*>();
    if (const std::string* twice = members.size() > 1 ? duplicate_name(members) : nullptr) {
      const std::string shown = cut(*twice);
      throw JsonRefused(fmt::format("{} must be given once, got it twice", shown), shown);
    }
    return close();
  }
  bool start_array(size_t) override { return open(ClientJson::array()); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    if (open_.size() == 1) {
      const auto field = std::ranges::find(id_fields_, name);
      id_field_ = field == id_fields_.end() ? std::string_view() : *field;
    }
    // Not by operator[], which compares all names.
    auto& members = *open_.back()->get_ptr<ClientJson::object_t*>();
    members.emplace_back(std::move(name), nullptr);
    member_ = &members.back().second;
    return true;
  }
  bool parse_error(size_t byte, const std::string&, const nlohmann::detail::exception&) override {
    throw JsonRefused(
        fmt::format("{} must be valid JSON in UTF-8, the error is at byte {}", what_, byte));
  }

  ClientJson take() { return std::move(value_); }

 private:
  // Counts a value before it takes memory.
  void count() {
    if (budget_.left == 0) {
      throw TooManyValues(
          fmt::format("{} must have at most {} values except token ids in lists, got more", what_,
                      budget_.most));
    }
    --budget_.left;
  }
  bool add(ClientJson value) {
    count();
    put(std::move(value));
    return true;
  }
  bool open(ClientJson value) {
    count();
    if (open_.size() == most_levels_) {
      throw JsonRefused(
          fmt::format("{} must be JSON of at most {} levels, got more", what_, most_levels_));
    }
    open_.push_back(put(std::move(value)));
    values_ = lists_ < sizes_.size() ? sizes_[lists_] : 0;
    ++lists_;
    if (values_ > budget_.left) return true;
    if (auto* list = open_.back()->get_ptr<ClientJson::array_t*>(); list && !may_hold_ids()) {
      list->reserve(values_);
    }
    if (auto* object = open_.back()->get_ptr<ClientJson::object_t*>()) object->reserve(values_);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  // Whether the innermost open list is that of a field of ids, or a list in it.
  bool may_hold_ids() const {
    const size_t levels = open_.size();
    return !id_field_.empty() && levels >= 2 && levels <= 3 &&
           (levels == 2 || open_[1]->is_array());
  }
  bool in_ids() const {
    return may_hold_ids() &&
           (open_.back()->is_binary() || (open_.back()->is_array() && open_.back()->empty()));
  }
  template <typename Integer>
  bool add_id(Integer id) {
    if (!std::in_range<int32_t>(id)) {
      throw JsonRefused(fmt::format("{} must be token ids of 32 bits, got {}", id_field_, id),
                        std::string(id_field_));
    }
    if (!open_.back()->is_binary()) {
      *open_.back() = ClientJson::binary({});
      open_.back()->get_binary().reserve(values_ * sizeof(int32_t));
    }
    const auto value = static_cast<int32_t>(id);
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    auto& ids = open_.back()->get_binary();
    ids.insert(ids.end(), bytes, bytes + sizeof value);
    return true;
  }
  // Stores a value. Its address is stable while it is open: lists grow only at the end, where the
  // open value is.
  ClientJson* put(ClientJson value) {
    ClientJson* stored = &value_;
    if (!open_.empty() && open_.back()->is_binary()) {
      throw JsonRefused(
          fmt::format("{} must be a list of token ids, got {}", id_field_, value.type_name()),
          std::string(id_field_));
    }
    if (!open_.empty() && open_.back()->is_array()) {
      stored = &open_.back()->emplace_back();
    } else if (!open_.empty()) {
      stored = member_;
    }
    *stored = std::move(value);
    return stored;
  }

  const std::string_view what_;
  const size_t most_levels_;
  const std::span<const std::string_view> id_fields_;
  ValueBudget& budget_;
  const std::vector<uint32_t> sizes_;  // of the lists and objects
  size_t lists_ = 0;                   // lists and objects that have begun
  size_t values_ = 0;                  // of the list or object that began last
  std::string_view id_field_;  // the member of the outermost object, if it is one of id_fields_
  ClientJson value_;
  std::vector<ClientJson*> open_;
  ClientJson* member_ = nullptr;  // of the open object, with its last name
};

}  // namespace

ClientJson read_client_json(std::string_view text, std::string_view what, size_t most_levels,
                            const WorkLimits& work, ValueBudget& budget,
                            std::span<const std::string_view> id_fields) {
  Builder builder(what, text, most_levels, budget, id_fields);
  ClientJson::sax_parse(JsonBytes::begin(text, work), JsonBytes::end(text, work), &builder);
  return builder.take();
}

std::vector<int32_t> take_ids(ClientJson& value) {
  auto bytes = std::move(value.get_binary());
  std::vector<int32_t> ids;
  ids.reserve(bytes.size() / sizeof(int32_t) + 1);  // for BOS, without another copy
  ids.resize(bytes.size() / sizeof(int32_t));
  std::ranges::copy(std::as_bytes(std::span(bytes)),
                    std::as_writable_bytes(std::span(ids)).begin());
  return ids;
}

}  // namespace recurve
