#include "server/observe/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <type_traits>

namespace recurve {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 6> kLevelNames = {"trace",   "debug", "info",
                                                         "warning", "error", "off"};

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
      return spdlog::level::trace;
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

struct Log {
  Log() : logger("recurve", std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    init(LogLevel::kInfo, LogFormat::kText);
  }

  void init(LogLevel level, LogFormat new_format) {
    format = new_format;
    logger.set_level(to_spdlog(level));
    logger.flush_on(spdlog::level::trace);
    logger.set_pattern(new_format == LogFormat::kText
                           ? "time=%Y-%m-%dT%H:%M:%S.%eZ level=%l %v"
                           : R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%v})",
                       spdlog::pattern_time_type::utc);
  }

  spdlog::logger logger;
  std::atomic<LogFormat> format{LogFormat::kText};
};

// Never destroyed: other static objects may log while the process ends.
Log& log() {
  static Log* const instance = new Log;
  return *instance;
}

Json to_json(const LogValue& value) {
  return std::visit(
      [](auto v) {
        if constexpr (std::is_same_v<decltype(v), std::string_view>) {
          return Json(std::string(v));
        } else {
          return Json(v);
        }
      },
      value.get());
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

bool needs_quotes(std::string_view text) {
  return text.empty() || std::any_of(text.begin(), text.end(), [](unsigned char c) {
           return c <= ' ' || c >= 0x7f || c == '"' || c == '\\' || c == '=';
         });
}

std::string text_value(const LogValue& value) {
  if (const auto* text = std::get_if<std::string_view>(&value.get())) {
    if (!needs_quotes(*text)) return std::string(*text);
  } else if (const auto* number = std::get_if<double>(&value.get())) {
    return fmt::format("{}", *number);  // also nan and inf
  }
  return dump(to_json(value));
}

template <typename Values, typename Name>
std::optional<Values> parse(std::string_view name, const Name& names) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return {};
  return static_cast<Values>(found - names.begin());
}

}  // namespace

std::optional<LogLevel> parse_log_level(std::string_view name) {
  return parse<LogLevel>(name, kLevelNames);
}

std::optional<LogFormat> parse_log_format(std::string_view name) {
  return parse<LogFormat>(name, std::array<std::string_view, 2>{"text", "json"});
}

void init_logging(LogLevel level, LogFormat format) { log().init(level, format); }

bool log_enabled(LogLevel level) {
  return level != LogLevel::kOff && log().logger.should_log(to_spdlog(level));
}

void log_event(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  if (!log_enabled(level)) return;
  try {
    log().logger.log(to_spdlog(level),
                     spdlog::string_view_t(format_event(log().format, event, fields)));
  } catch (const std::exception&) {
    // A line that cannot be made is lost; whoever logs has better things to do than to fail.
  }
}

std::string format_event(LogFormat format, std::string_view event,
                         std::initializer_list<LogField> fields) {
  if (format == LogFormat::kJson) {
    Json json = {{"event", std::string(event)}};
    for (const LogField& field : fields) json[std::string(field.key)] = to_json(field.value);
    const std::string object = dump(json);
    return object.substr(1, object.size() - 2);
  }
  std::string line = fmt::format("event={}", event);
  for (const LogField& field : fields) {
    line += fmt::format(" {}={}", field.key, text_value(field.value));
  }
  return line;
}

}  // namespace recurve
