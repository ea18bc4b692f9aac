#pragma once
#include <chrono>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

namespace recurve {

// Structured logs: one event, one line, to standard error, through spdlog.
//
// Logging never waits for the reader of standard error: the log has a thread that writes. If more
// than kLogLines lines wait, the oldest are dropped and counted: in log_lines_dropped(), and in an
// event log_lines_dropped once the queue is half empty.
//
//   time=2026-03-01T12:00:00.123Z level=info event=request_finished request_id=r17 tokens=12
//   {"time":"2026-03-01T12:00:00.123Z","level":"info","event":"request_finished",...}
//
// Event and field names are snake_case constants; ids, counts and seconds go into fields. Text of a
// prompt or an answer is logged at kDebug and kTrace only.

enum class LogLevel { kTrace, kDebug, kInfo, kWarning, kError, kOff };
enum class LogFormat { kText, kJson };

// A string is not copied: it must outlive the call to which the value is passed.
class LogValue {
 public:
  using Variant = std::variant<bool, int64_t, uint64_t, double, std::string_view>;

  LogValue(std::same_as<bool> auto v) : value_(v) {}
  LogValue(std::signed_integral auto v) : value_(static_cast<int64_t>(v)) {}
  LogValue(std::unsigned_integral auto v)
    requires(!std::same_as<decltype(v), bool>)
      : value_(static_cast<uint64_t>(v)) {}
  LogValue(std::floating_point auto v) : value_(static_cast<double>(v)) {}
  LogValue(const char* v) : value_(std::string_view(v)) {}
  LogValue(std::string_view v) : value_(v) {}
  LogValue(const std::string& v) : value_(std::string_view(v)) {}

  const Variant& get() const { return value_; }

 private:
  Variant value_;
};

struct LogField {
  std::string_view key;
  LogValue value;
};

// Lines that may wait to be written.
constexpr size_t kLogLines = 4096;

// Call once, before other threads log; until then the level is kInfo and the format kText.
void init_logging(LogLevel level, LogFormat format);

// For callers whose fields are expensive to compute.
bool log_enabled(LogLevel level);

// Thread-safe; never throws. A line is written whole.
//   log_event(LogLevel::kInfo, "request_finished", {{"request_id", id}, {"tokens", 12}});
void log_event(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {});

// Writes text for an operator unchanged, at every level, in order with the log's lines and with the
// same guarantees. In JSON each of its lines is an event "text", so that standard error has only
// JSON.
void log_text(std::string_view text);

// Waits until everything logged before is written or lost, at most for `most`. False: it is not.
bool flush_log(std::chrono::milliseconds most);

// Lines and texts lost since the start: the reader was too slow, or writing failed.
uint64_t log_lines_dropped();

// The part of a line that follows time and level: `event=... key=value ...`, or
// `"event":"...","key":value,...`. Values are escaped so that no value can end its line, start a
// field or move a terminal's cursor: text other than printable ASCII becomes a JSON string with
// \u escapes, bytes that are not UTF-8 become U+FFFD, and JSON has null for NaN and infinities.
std::string format_event(LogFormat format, std::string_view event,
                         std::initializer_list<LogField> fields);

}  // namespace recurve
