#include "server/observe/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <span>

namespace recurve {
namespace {

// False: the text has other characters than lower-case hexadecimal digits.
bool read_hex(std::string_view digits, std::span<uint8_t> to) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (size_t b = 0; b < to.size(); ++b) {
    const size_t high = kDigits.find(digits[2 * b]), low = kDigits.find(digits[2 * b + 1]);
    if (high == kDigits.npos || low == kDigits.npos) return false;
    to[b] = static_cast<uint8_t>(16 * high + low);
  }
  return true;
}

bool is_zero(std::span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

template <typename Id>
Id make_id() {
  Id id;
  do {
    std::generate(id.begin(), id.end(), [] { return static_cast<uint8_t>(random_number() >> 56); });
  } while (is_zero(id));
  return id;
}

}  // namespace

uint64_t random_number() {
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return generator();
}

// version "-" trace-id "-" parent-id "-" trace-flags
std::optional<TraceContext> parse_traceparent(std::string_view header) {
  constexpr size_t kTrace = 3, kParent = 36, kFlags = 53, kEnd = 55;
  if (header.size() < kEnd || header[kTrace - 1] != '-' || header[kParent - 1] != '-' ||
      header[kFlags - 1] != '-') {
    return {};
  }
  std::array<uint8_t, 1> version, flags;
  TraceContext context;
  if (!read_hex(header.substr(0, 2), version) || !read_hex(header.substr(kTrace), context.trace) ||
      !read_hex(header.substr(kParent), context.span) || !read_hex(header.substr(kFlags), flags)) {
    return {};
  }
  if (version[0] == 0xff || is_zero(context.trace) || is_zero(context.span)) return {};
  const bool longer = header.size() > kEnd;
  if (longer && (version[0] == 0 || header[kEnd] != '-')) return {};
  context.sampled = (flags[0] & 1) != 0;
  return context;
}

std::string to_hex(const TraceId& id) { return fmt::format("{:02x}", fmt::join(id, "")); }
std::string to_hex(const SpanId& id) { return fmt::format("{:02x}", fmt::join(id, "")); }

TraceId make_trace_id() { return make_id<TraceId>(); }
SpanId make_span_id() { return make_id<SpanId>(); }

}  // namespace recurve
