#include "server/constraint/schema/schema_scalars.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "server/constraint/constraint.h"
#include "server/constraint/pattern_automaton.h"
#include "server/constraint/schema/schema_patterns.h"
#include "server/constraint/schema/schema_walk.h"
#include "server/constraint/work_watch.h"
#include "server/text/cut.h"

namespace recurve {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMostExact =
    9007199254740992;  // 2^53: all integers up to it are exact in a double
constexpr int64_t kMostUnboundedMultiple = 1024;  // that the library supports

std::optional<double> bound(const SchemaKeywords& keywords, std::string_view keyword,
                            const std::string& path) {
  const Json* value = keywords.find(keyword);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) refuse_schema(path, keyword, "it must be a number");
  const double number = value->get<double>();
  if (!(std::abs(number) <= kMostExact))
    refuse_schema(path, keyword, "it must be in [-2^53, 2^53]");
  return number;
}

std::optional<int64_t> count(const SchemaKeywords& keywords, std::string_view keyword,
                             const std::string& path) {
  const Json* value = keywords.find(keyword);
  if (value == nullptr) return std::nullopt;
  const bool whole = value->is_number() && has_type(*value, "integer");
  const double number = whole ? value->get<double>() : -1;
  if (number < 0) refuse_schema(path, keyword, "it must be a non-negative integer");
  if (number <= kMostSchemaCount) return static_cast<int64_t>(number);
  if (keyword.starts_with("max")) return kMostSchemaCount;
  refuse_schema(path, keyword, fmt::format("it must be at most {}", kMostSchemaCount));
}

// The bounds of the format, if it is one of integers. Requires check_format().
std::optional<NumberFormat> whole_numbers(const SchemaKeywords& keywords) {
  const Json* format = keywords.find("format");
  return format == nullptr ? std::nullopt : number_format(format->get_ref<const std::string&>());
}

// The library generates numbers with six decimals between bounds. The one next to a bound that
// satisfies it.
double nearest_inside(double bound, bool is_low, bool is_exclusive) {
  const auto rounded = [](double number) { return std::stod(fmt::format("{:.6f}", number)); };
  const double nearest = rounded(bound), step = is_low ? 1e-6 : -1e-6;
  const bool is_inside = is_low ? nearest > bound : nearest < bound;
  if (is_inside || (nearest == bound && !is_exclusive)) return nearest;
  const double next = rounded(nearest + step);
  return next == nearest ? std::nextafter(bound, step * HUGE_VAL) : next;
}

// All multiples of `of` within the bounds, as an enum.
Json multiples_within(int64_t low, int64_t high, int64_t of, const std::string& path, int* values) {
  const auto remainder = [&](int64_t number) { return ((number % of) + of) % of; };
  const int64_t first = low + remainder(-low), last = high - remainder(high);
  if (first > last) refuse_as_empty(path, "multipleOf", "no multiple is within the bounds");
  const int64_t count = (last - first) / of + 1;
  if (count > kMostSchemaNodes - *values) {
    refuse_schema(
        path, "multipleOf",
        fmt::format("{} multiples are within the bounds: a schema may have at most {} values",
                    count, kMostSchemaNodes));
  }
  *values += static_cast<int>(count);
  Json multiples = Json::array();
  for (int64_t number = first; number <= last; number += of) multiples.push_back(number);
  return {{"enum", std::move(multiples)}};
}

// Refuses a pattern whose strings of these lengths are none, or whose automaton is too large.
void check_counted(const std::string& pattern, const TextLengths& lengths, const char* keyword,
                   const std::string& path) {
  bool is_empty = false;
  try {
    is_empty = counted_pattern(pattern, lengths, json_characters()).states.empty();
  } catch (const WorkRefused&) {
    throw;
  } catch (const ConstraintRefused& refused) {
    refuse_schema(path, keyword, refused.what());
  }
  if (is_empty) refuse_as_empty(path, keyword, "no string of this length matches it");
}

}  // namespace

const SchemaKeyword* effective_keyword(std::string_view name, const Json& value) {
  const bool has_no_effect = name == "format" && value.is_string() && value != "regex" &&
                             !pattern_of_format(value.get_ref<const std::string&>()) &&
                             !number_format(value.get_ref<const std::string&>());
  return has_no_effect ? nullptr : find_keyword(name);
}

void refuse_schema(const std::string& path, std::string_view keyword, const std::string& why) {
  throw ConstraintRefused(
      fmt::format("schema, {} at {}: {}", cut(keyword), cut(path, kMostRepeated), why));
}

void refuse_as_empty(const std::string& path, std::string_view keyword, const std::string& why) {
  throw NothingIsValid(
      fmt::format("schema, {} at {}: {}", cut(keyword), cut(path, kMostRepeated), why));
}

void check_numbers(const Json& value, std::string_view keyword, const std::string& path) {
  if (value.is_structured()) {
    for (const Json& one : value) check_numbers(one, keyword, path);
    return;
  }
  const bool is_exact = value.is_number_float()
                            ? std::abs(value.get<double>()) < kMostExact
                            : !value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX;
  if (is_exact) return;
  refuse_schema(path, keyword, "numbers must be 64-bit integers, or less than 2^53");
}

int values_in(const Json& value) {
  int values = 1;
  if (value.is_structured()) {
    for (const Json& one : value) values += values_in(one);
  }
  return values;
}

bool has_type(const Json& value, std::string_view type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (value.is_number_float()) {
    return std::isfinite(value.get<double>()) && std::floor(value.get<double>()) == value;
  }
  return value.is_number_integer();
}

std::string checked_pattern(const Json& pattern, std::string_view keyword, const std::string& path,
                            size_t* pattern_bytes, TextLengths* lengths) {
  try {
    const std::string regex =
        json_pattern(pattern.get_ref<const std::string&>(), PatternUse::kContains, lengths);
    *pattern_bytes += regex.size();
    if (*pattern_bytes > kMostPatternBytes)
      throw ConstraintRefused("all patterns together are too long");
    return regex;
  } catch (const ConstraintRefused& refused) {
    refuse_schema(path, keyword, refused.what());
  }
}

void check_format(const SchemaKeywords& keywords, std::string_view type, const std::string& path) {
  const Json* format = keywords.find("format");
  if (format == nullptr) return;
  if (!format->is_string()) refuse_schema(path, "format", "it must be a string");
  if (type == "string" && *format == "regex") {
    refuse_schema(path, "format", "\"regex\" is not enforced here: leave it out");
  }
}

Json read_integer(const SchemaKeywords& keywords, const std::string& path, int* values) {
  Json out{{"type", "integer"}};
  std::optional<double> low, high;
  const auto raise = [&](double to) { low = std::max(low.value_or(to), to); };
  const auto lower = [&](double to) { high = std::min(high.value_or(to), to); };
  if (const auto b = bound(keywords, "minimum", path)) raise(std::ceil(*b));
  if (const auto b = bound(keywords, "exclusiveMinimum", path)) raise(std::floor(*b) + 1);
  if (const auto b = bound(keywords, "maximum", path)) lower(std::floor(*b));
  if (const auto b = bound(keywords, "exclusiveMaximum", path)) lower(std::ceil(*b) - 1);
  if (const auto numbers = whole_numbers(keywords)) {
    raise(static_cast<double>(numbers->least));
    lower(static_cast<double>(numbers->most));
  }
  if (low && high && *low > *high)
    refuse_as_empty(path, "minimum", "no integer is within the bounds");
  if (low) out["minimum"] = static_cast<int64_t>(*low);
  if (high) out["maximum"] = static_cast<int64_t>(*high);
  const auto of = bound(keywords, "multipleOf", path);
  if (!of) return out;
  if (*of < 1 || std::floor(*of) != *of) {
    refuse_schema(path, "multipleOf", "for integers it must be a positive integer");
  }
  if (*of == 1) return out;
  const auto multiple = static_cast<int64_t>(*of);
  if (low && high) {
    return multiples_within(static_cast<int64_t>(*low), static_cast<int64_t>(*high), multiple, path,
                            values);
  }
  if (low || high) {
    refuse_schema(path, "multipleOf",
                  "with only one bound it is not enforced here: give both, or none");
  }
  if (multiple > kMostUnboundedMultiple) {
    refuse_schema(path, "multipleOf",
                  fmt::format("without bounds it must be at most {}", kMostUnboundedMultiple));
  }
  out["multipleOf"] = multiple;
  return out;
}

Json read_number(const SchemaKeywords& keywords, const std::string& path, int* values) {
  if (whole_numbers(keywords)) return read_integer(keywords, path, values);
  Json out{{"type", "number"}};
  if (keywords.find("multipleOf") != nullptr) {
    refuse_schema(path, "multipleOf",
                  "it is enforced for integers only: write \"type\": \"integer\"");
  }
  double low = -HUGE_VAL, high = HUGE_VAL;
  for (const char* keyword : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
    const auto b = bound(keywords, keyword, path);
    if (!b) continue;
    out[keyword] = *keywords.find(keyword);
    const bool is_low = std::string_view(keyword).ends_with("inimum");
    const double inside = nearest_inside(*b, is_low, keyword[0] == 'e');
    (is_low ? low : high) = is_low ? std::max(low, inside) : std::min(high, inside);
    if (low > high) {
      refuse_as_empty(path, keyword, "no number of six decimals is within the bounds");
    }
  }
  return out;
}

void counts(const SchemaKeywords& keywords, const char* least, const char* most,
            const std::string& path, Json* out) {
  const auto low = count(keywords, least, path), high = count(keywords, most, path);
  if (low && high && *low > *high)
    refuse_as_empty(path, least, fmt::format("it must not be greater than {}", most));
  if (low) (*out)[least] = *low;
  if (high) (*out)[most] = *high;
}

TextLengths lengths_of(const Json& string) {
  TextLengths lengths{string.value("minLength", int64_t{0}), {}};
  if (const auto most = string.find("maxLength"); most != string.end()) lengths.most = *most;
  return lengths;
}

Json read_string(const SchemaKeywords& keywords, const std::string& path, size_t* pattern_bytes) {
  Json out{{"type", "string"}}, length = Json::object();
  counts(keywords, "minLength", "maxLength", path, &length);
  const Json* pattern = keywords.find("pattern");
  const Json* format = keywords.find("format");
  const auto of_format =
      format == nullptr ? std::nullopt : pattern_of_format(format->get_ref<const std::string&>());
  if (pattern != nullptr && !pattern->is_string()) {
    refuse_schema(path, "pattern", "it must be a string");
  }
  if (pattern != nullptr && of_format) {
    refuse_schema(path, "format", "it cannot be combined with pattern");
  }
  TextLengths lengths;
  if (pattern != nullptr) {
    out["pattern"] = checked_pattern(*pattern, "pattern", path, pattern_bytes, &lengths);
  } else if (of_format) {
    out["pattern"] = json_pattern(*of_format, PatternUse::kWhole, &lengths);
  } else {
    out.update(length);
    return out;
  }
  const TextLengths wanted = lengths_of(length);
  const bool is_implied = wanted.least <= lengths.least &&
                          (!wanted.most || (lengths.most && *lengths.most <= *wanted.most));
  if (is_implied) return out;
  check_counted(out["pattern"], wanted, pattern != nullptr ? "pattern" : "format", path);
  out.update(length);
  return out;
}

}  // namespace recurve
