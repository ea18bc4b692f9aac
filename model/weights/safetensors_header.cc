#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "model/weights/safetensors.h"

namespace recurve {
namespace {

static_assert(std::endian::native == std::endian::little, "weights are read in place");

using nlohmann::json;

// Reads the header event by event: a parser that builds objects would silently take one of two
// tensors of the same name, and could be made to build anything. Every handler returns true to go
// on, false to stop with problem_ set.
class HeaderReader final : public nlohmann::json_sax<json> {
 public:
  std::vector<SafetensorsEntry> take_entries() { return std::move(entries_); }
  const std::string& problem() const { return problem_; }

  bool null() override { return misplaced("null"); }
  bool boolean(bool) override { return misplaced("a boolean"); }
  bool number_float(double, const std::string& text) override {
    return misplaced("the number " + in_quotes(text));
  }
  bool binary(json::binary_t&) override { return misplaced("binary data"); }
  bool number_integer(int64_t value) override {
    return fail(fmt::format("wanted no negative number, found {}", value));
  }
  bool number_unsigned(uint64_t value) override;
  bool string(std::string& value) override;
  bool start_object(size_t) override;
  bool key(std::string& key) override;
  bool end_object() override;
  bool start_array(size_t) override;
  bool end_array() override;
  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    problem_ = fmt::format("wanted JSON, found none at byte {} of the header", position);
    return false;
  }

 private:
  enum class Level { kOutside, kFile, kMetadata, kTensor };
  enum class Field { kNone, kDtype, kShape, kOffsets };

  bool fail(const std::string& what) {
    const bool in_entry = level_ == Level::kTensor || (level_ == Level::kFile && !name_.empty());
    problem_ = in_entry                     ? fmt::format("tensor {}: {}", in_quotes(name_), what)
               : level_ == Level::kMetadata ? "__metadata__: " + what
                                            : what;
    return false;
  }
  bool misplaced(const std::string& found);
  bool finish_tensor();

  Level level_ = Level::kOutside;
  Field field_ = Field::kNone;
  bool in_array_ = false;
  bool seen_metadata_ = false;
  std::string name_;
  SafetensorsEntry entry_;
  std::array<uint64_t, 2> offsets_{};
  size_t offset_count_ = 0;
  std::array<bool, 4> seen_{};  // by Field, of the tensor being read
  std::vector<SafetensorsEntry> entries_;
  std::string problem_;
};

bool HeaderReader::misplaced(const std::string& found) {
  const char* wanted = "an object of tensors";
  if (level_ == Level::kFile) wanted = "an object for each tensor";
  if (level_ == Level::kMetadata) wanted = "text for every key";
  if (level_ == Level::kTensor) {
    wanted = field_ == Field::kDtype   ? "the name of a type as dtype"
             : field_ == Field::kShape ? "an array of whole numbers as shape"
                                       : "two whole numbers as data_offsets";
  }
  return fail(fmt::format("wanted {}, found {}", wanted, found));
}

bool HeaderReader::number_unsigned(uint64_t value) {
  const bool is_shape = in_array_ && field_ == Field::kShape;
  const bool is_offset = in_array_ && field_ == Field::kOffsets;
  if (!is_shape && !is_offset) return misplaced(fmt::format("the number {}", value));
  if (is_shape) {
    if (entry_.shape.size() == kMaxRank) {
      return fail(fmt::format("wanted at most {} dimensions, found more", kMaxRank));
    }
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return fail(fmt::format("wanted a shape that fits the file, found {} in it", value));
    }
    entry_.shape.push_back(static_cast<int64_t>(value));
  } else {
    if (offset_count_ == 2) return fail("wanted two data_offsets, found more");
    offsets_[offset_count_++] = value;
  }
  return true;
}

bool HeaderReader::string(std::string& value) {
  if (level_ == Level::kMetadata) return true;
  if (level_ != Level::kTensor || field_ != Field::kDtype) return misplaced(in_quotes(value));
  const std::optional<StoredType> type = stored_type_from(value);
  if (!type) {
    return fail(
        fmt::format("wanted a dtype of the safetensors format, found {}", in_quotes(value)));
  }
  entry_.type = *type;
  return true;
}

bool HeaderReader::start_object(size_t) {
  if (level_ == Level::kOutside) {
    level_ = Level::kFile;
    return true;
  }
  if (level_ != Level::kFile) return misplaced("an object");
  level_ = name_ == "__metadata__" ? Level::kMetadata : Level::kTensor;
  if (level_ == Level::kMetadata) {
    if (seen_metadata_) return fail("wanted one such object, found two");
    seen_metadata_ = true;
  }
  entry_ = {};
  offset_count_ = 0;
  seen_ = {};
  return true;
}

bool HeaderReader::key(std::string& key) {
  if (level_ == Level::kFile) name_ = std::move(key);
  if (level_ != Level::kTensor) return true;
  field_ = key == "dtype"          ? Field::kDtype
           : key == "shape"        ? Field::kShape
           : key == "data_offsets" ? Field::kOffsets
                                   : Field::kNone;
  if (field_ == Field::kNone) {
    return fail(
        fmt::format("wanted dtype, shape and data_offsets only, found the key {}", in_quotes(key)));
  }
  bool& seen = seen_[static_cast<size_t>(field_)];
  if (seen) return fail(fmt::format("wanted each key once, found {} twice", in_quotes(key)));
  seen = true;
  return true;
}

bool HeaderReader::end_object() {
  if (level_ == Level::kTensor && !finish_tensor()) return false;
  level_ = level_ == Level::kFile ? Level::kOutside : Level::kFile;
  field_ = Field::kNone;
  return true;
}

bool HeaderReader::start_array(size_t) {
  const bool expected = field_ == Field::kShape || field_ == Field::kOffsets;
  if (in_array_ || !expected) return misplaced("an array");
  in_array_ = true;
  return true;
}

bool HeaderReader::end_array() {
  in_array_ = false;
  return true;
}

bool HeaderReader::finish_tensor() {
  for (const auto& [field, name] : {std::pair{Field::kDtype, "dtype"},
                                    {Field::kShape, "shape"},
                                    {Field::kOffsets, "data_offsets"}}) {
    if (!seen_[static_cast<size_t>(field)]) {
      return fail(fmt::format("wanted dtype, shape and data_offsets, found no {}", name));
    }
  }
  if (offset_count_ != 2) {
    return fail(fmt::format("wanted two data_offsets, found {}", offset_count_));
  }
  entry_.name = name_;
  std::tie(entry_.begin, entry_.end) = std::pair(offsets_[0], offsets_[1]);
  entries_.push_back(std::move(entry_));
  return true;
}

// What the numbers of one entry must fulfil on their own. Empty if all is well.
std::string problem_of(const SafetensorsEntry& entry, uint64_t data_bytes) {
  const std::string offsets = fmt::format("[{}, {}]", entry.begin, entry.end);
  if (entry.begin > entry.end || entry.end > data_bytes) {
    return fmt::format("wanted data_offsets inside the {} bytes of data, found {}", data_bytes,
                       offsets);
  }
  const std::string what = fmt::format("{} {}", name_of(entry.type), shape_text(entry.shape));
  const std::optional<int64_t> count = checked_count(entry.shape);
  const std::optional<int64_t> bytes =
      count ? checked_product(*count, static_cast<int64_t>(size_of(entry.type))) : std::nullopt;
  if (!bytes) {
    return fmt::format("wanted a shape that fits the file, found {}, more than any file holds",
                       what);
  }
  if (static_cast<uint64_t>(*bytes) != entry.end - entry.begin) {
    return fmt::format("wanted {} bytes for {}, found {} at data_offsets {}", *bytes, what,
                       entry.end - entry.begin, offsets);
  }
  return {};
}

// The tensors must cover the data: no overlap, no gap, no rest. Empty if they do.
std::string coverage_problem(const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes) {
  std::vector<const SafetensorsEntry*> order;
  order.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != entry.end) order.push_back(&entry);
  }
  std::ranges::sort(order, {}, [](const auto* e) { return std::pair(e->begin, e->end); });
  uint64_t covered = 0;
  const SafetensorsEntry* before = nullptr;
  for (const SafetensorsEntry* entry : order) {
    if (entry->begin < covered) {
      return fmt::format(
          "tensor {}: wanted separate data, found data_offsets [{}, {}] that overlap [{}, {}] of "
          "tensor {}",
          in_quotes(entry->name), entry->begin, entry->end, before->begin, before->end,
          in_quotes(before->name));
    }
    if (entry->begin > covered) {
      return fmt::format("tensor {}: wanted data from byte {} on, found a gap up to byte {}",
                         in_quotes(entry->name), covered, entry->begin);
    }
    covered = entry->end;
    before = entry;
  }
  if (covered != data_bytes) {
    return fmt::format("wanted {} bytes of data, which is where its last tensor ends, found {}",
                       covered, data_bytes);
  }
  return {};
}

std::string name_problem(const std::vector<SafetensorsEntry>& by_name) {
  const auto twice = std::ranges::adjacent_find(by_name, {}, &SafetensorsEntry::name);
  if (twice == by_name.end()) return {};
  return fmt::format("tensor {}: wanted one of that name, found two", in_quotes(twice->name));
}

}  // namespace

SafetensorsHeader parse_safetensors(std::span<const std::byte> bytes, std::string_view file) {
  const auto refuse = [file](const std::string& problem) {
    throw std::runtime_error(fmt::format("{}: {}", file, problem));
  };
  uint64_t length = 0;
  if (bytes.size() < sizeof(length)) {
    refuse(fmt::format("wanted a safetensors file, found only {} bytes", bytes.size()));
  }
  std::memcpy(&length, bytes.data(), sizeof(length));
  const uint64_t rest = bytes.size() - sizeof(length);
  if (length > rest || length > kMaxSafetensorsHeader) {
    refuse(fmt::format(
        "wanted a safetensors header of at most {} bytes, found one that says it has {}",
        std::min(rest, kMaxSafetensorsHeader), length));
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + sizeof(length);
  if (length == 0 || text[0] != '{') refuse("wanted a header that begins with \"{\", found none");

  // The parser takes a zero for the end and would not read what follows.
  if (const void* zero = std::memchr(text, 0, length)) {
    refuse(fmt::format("wanted JSON, found a zero at byte {} of the header",
                       static_cast<const char*>(zero) - text + 1));
  }
  HeaderReader reader;
  if (!json::sax_parse(text, text + length, &reader)) refuse(reader.problem());
  SafetensorsHeader header{sizeof(length) + length, reader.take_entries()};
  std::ranges::sort(header.entries, {}, &SafetensorsEntry::name);
  const uint64_t data_bytes = rest - length;
  if (const auto problem = name_problem(header.entries); !problem.empty()) refuse(problem);
  for (const SafetensorsEntry& entry : header.entries) {
    if (const auto problem = problem_of(entry, data_bytes); !problem.empty()) {
      refuse(fmt::format("tensor {}: {}", in_quotes(entry.name), problem));
    }
  }
  if (const auto problem = coverage_problem(header.entries, data_bytes); !problem.empty()) {
    refuse(problem);
  }
  return header;
}

}  // namespace recurve
