#include "server/text/client_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "server/text/cut.h"
#include "server/text/json_bytes.h"

namespace recurve {
namespace {

constexpr size_t kMostShown = 200;  // bytes of what the client has sent

// Of a value in memory: in its list, with what it has on the heap beside its text, and a name in
// its object.
constexpr size_t kScalarBytes = 16, kStringBytes = 64, kStructureBytes = 96, kNameBytes = 112;

// Lists of at least so many values are built in memory of their exact size: one that grows takes up
// to three times that.
constexpr uint32_t kLongList = 16;

// Of a list or an object of a JSON text: its index, in the order of their beginnings, and how many
// values it has.
using LongList = std::pair<uint32_t, uint32_t>;

// Of all that are long, by index. Of what is no JSON, anything.
std::vector<LongList> long_lists(std::string_view text, size_t most_levels) {
  std::vector<LongList> found, open;
  uint32_t lists = 0;
  bool in_string = false;
  for (size_t at = 0; at < text.size() && open.size() <= most_levels; ++at) {
    const char byte = text[at];
    if (in_string) {
      at += byte == '\\' ? 1 : 0;
      in_string = byte != '"';
    } else if (byte == '"') {
      in_string = true;
    } else if (byte == '[' || byte == '{') {
      open.emplace_back(lists++, 1);
    } else if (byte == ',' && !open.empty()) {
      ++open.back().second;
    } else if ((byte == ']' || byte == '}') && !open.empty()) {
      if (open.back().second >= kLongList) found.push_back(open.back());
      open.pop_back();
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Builds the value from the parser's events. nlohmann's own way to be asked about each of them goes
// through a whole list again after each object in it.
template <typename Json>
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view what, std::string_view text, size_t most_levels)
      : what_(what),
        most_levels_(most_levels),
        most_bytes_(most_bytes_of_values(text.size())),
        long_lists_(long_lists(text, most_levels)) {}

  bool null() override { return add(nullptr, kScalarBytes); }
  bool boolean(bool value) override { return add(value, kScalarBytes); }
  bool number_integer(int64_t value) override { return add(value, kScalarBytes); }
  bool number_unsigned(uint64_t value) override { return add(value, kScalarBytes); }
  bool number_float(double value, const std::string&) override { return add(value, kScalarBytes); }
  bool string(std::string& value) override { return add(std::move(value), kStringBytes); }
  bool binary(typename Json::binary_t&) override { return false; }  // not in JSON

  bool start_object(size_t) override { return open(Json::object()); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    count(kNameBytes);
    if constexpr (std::is_same_v<Json, nlohmann::ordered_json>) {
      // Not by its own way, which looks through all names for each.
      auto& members = *open_.back()->template get_ptr<typename Json::object_t*>();
      members.emplace_back(std::move(name), nullptr);
      member_ = &members.back().second;
    } else {
      const auto [member, is_new] = open_.back()->emplace(std::move(name), nullptr);
      if (!is_new) {
        const std::string shown = cut(member.key());
        throw JsonRefused(fmt::format("{} must be said once, and is said twice", shown), shown);
      }
      member_ = &*member;
    }
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    throw JsonRefused(fmt::format("{} must be JSON in UTF-8, and is not: {}", what_,
                                  cut(error.what(), kMostShown)));
  }

  Json take() { return std::move(value_); }

 private:
  // Before it takes them.
  void count(size_t bytes) {
    bytes_ += bytes;
    if (bytes_ <= most_bytes_) return;
    throw JsonRefused(
        fmt::format("{} must be JSON of fewer small values: these would take more than {} MB",
                    what_, most_bytes_ >> 20));
  }
  bool add(Json value, size_t bytes) {
    count(bytes);
    put(std::move(value));
    return true;
  }
  bool open(Json value) {
    count(kStructureBytes);
    if (open_.size() == most_levels_) {
      throw JsonRefused(
          fmt::format("{} must be JSON of at most {} levels, got more", what_, most_levels_));
    }
    open_.push_back(put(std::move(value)));
    reserve(open_.back());
    return true;
  }
  void reserve(Json* list) {
    const uint32_t index = lists_++;
    if (next_long_ == long_lists_.size() || long_lists_[next_long_].first != index) return;
    const size_t values = long_lists_[next_long_++].second;
    if (bytes_ + values * kScalarBytes > most_bytes_) return;
    if (list->is_array()) list->template get_ptr<typename Json::array_t*>()->reserve(values);
    if constexpr (std::is_same_v<Json, nlohmann::ordered_json>) {
      if (list->is_object()) list->template get_ptr<typename Json::object_t*>()->reserve(values);
    }
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  // Where it stands from now on: a list grows at its end alone, and what is open is at the end.
  Json* put(Json value) {
    Json* place = &value_;
    if (!open_.empty() && open_.back()->is_array()) {
      place = &open_.back()->emplace_back();
    } else if (!open_.empty()) {
      place = member_;
    }
    *place = std::move(value);
    return place;
  }

  const std::string_view what_;
  const size_t most_levels_, most_bytes_;
  const std::vector<LongList> long_lists_;
  uint32_t lists_ = 0;    // and objects, that have begun
  size_t next_long_ = 0;  // of long_lists_
  size_t bytes_ = 0;
  Json value_;
  const FreesInPlace<Json> frees_{value_};  // where the text is refused
  std::vector<Json*> open_;
  Json* member_ = nullptr;  // of the object that is open, by the name that was said last
};

}  // namespace

nlohmann::json read_client_json(std::string_view text, std::string_view what, size_t most_levels,
                                const WorkLimits& work) {
  Builder<nlohmann::json> builder(what, text, most_levels);
  nlohmann::json::sax_parse(JsonBytes::begin(text, work), JsonBytes::end(text, work), &builder);
  return builder.take();
}

nlohmann::ordered_json read_in_order(std::string_view text) {
  Builder<nlohmann::ordered_json> builder("the text", text, SIZE_MAX);
  nlohmann::ordered_json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace recurve
