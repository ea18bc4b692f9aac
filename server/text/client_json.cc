#include "server/text/client_json.h"

#include <fmt/format.h>

#include <vector>

#include "server/text/json_bytes.h"

namespace recurve {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostShown = 200;  // bytes of what the client has sent

// Of a value in memory: in its list, with what it has on the heap beside its text, and a name in
// its object.
constexpr size_t kScalarBytes = 16, kStringBytes = 64, kStructureBytes = 96, kNameBytes = 112;

// Builds the value from the parser's events. nlohmann's own way to be asked about each of them goes
// through a whole list again after each object in it.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view what, size_t most_levels, size_t most_bytes)
      : what_(what), most_levels_(most_levels), most_bytes_(most_bytes) {}

  bool null() override { return add(nullptr, kScalarBytes); }
  bool boolean(bool value) override { return add(value, kScalarBytes); }
  bool number_integer(int64_t value) override { return add(value, kScalarBytes); }
  bool number_unsigned(uint64_t value) override { return add(value, kScalarBytes); }
  bool number_float(double value, const std::string&) override { return add(value, kScalarBytes); }
  bool string(std::string& value) override { return add(std::move(value), kStringBytes); }
  bool binary(Json::binary_t&) override { return false; }  // not in JSON

  bool start_object(size_t) override { return open(Json::object()); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    count(kNameBytes);
    const auto [member, is_new] = open_.back()->emplace(std::move(name), nullptr);
    if (!is_new) {
      const std::string shown = member.key().substr(0, kMostShown);
      throw JsonRefused(fmt::format("{} must be said once, and is said twice", shown), shown);
    }
    member_ = &*member;
    return true;
  }
  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    throw JsonRefused(fmt::format("{} must be JSON in UTF-8, and is not: {}", what_,
                                  std::string_view(error.what()).substr(0, kMostShown)));
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
    return true;
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
  size_t bytes_ = 0;
  Json value_;
  std::vector<Json*> open_;
  Json* member_ = nullptr;  // of the object that is open, by the name that was said last
};

}  // namespace

Json read_client_json(std::string_view text, std::string_view what, size_t most_levels,
                      const WorkLimits& work) {
  Builder builder(what, most_levels, most_bytes_of_values(text.size()));
  Json::sax_parse(JsonBytes::begin(text, work), JsonBytes::end(text, work), &builder);
  return builder.take();
}

}  // namespace recurve
