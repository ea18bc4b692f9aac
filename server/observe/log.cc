#include "server/observe/log.h"

#include <poll.h>
#include <signal.h>
#include <spdlog/async.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

namespace recurve {
namespace {

using Json = nlohmann::ordered_json;

spdlog::level::level_enum to_spdlog(LogLevel level) {
  static constexpr std::array kLevels = {spdlog::level::trace, spdlog::level::debug,
                                         spdlog::level::info,  spdlog::level::warn,
                                         spdlog::level::err,   spdlog::level::off};
  return kLevels[static_cast<size_t>(level)];
}

using Pool = spdlog::details::thread_pool;

// Waits until the reader has taken it all. False: writing failed.
bool write_whole(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t size = write(fd, text.data(), text.size());
    if (size >= 0) {
      text.remove_prefix(static_cast<size_t>(size));
    } else if (errno == EAGAIN) {  // a process that shares the file set O_NONBLOCK
      pollfd entry{fd, POLLOUT, 0};
      poll(&entry, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

// Counts what happens to lines. Thread-safe.
class Tally {
 public:
  explicit Tally(Pool& pool) : pool_(pool) {}

  void posted() { ++posted_; }
  void handled(bool written) {
    {
      std::lock_guard lock(mutex_);
      ++handled_;
      failed_ += !written;
    }
    changed_.notify_all();
  }
  void not_posted() {
    std::lock_guard lock(mutex_);
    ++failed_;
  }

  uint64_t lost() const {
    std::lock_guard lock(mutex_);
    return failed_ + pool_.overrun_counter();
  }
  bool wait_until_all_handled(std::chrono::milliseconds most) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, most,
                             [this] { return handled_ + pool_.overrun_counter() >= posted_; });
  }

 private:
  Pool& pool_;
  std::atomic<uint64_t> posted_ = 0;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  uint64_t handled_ = 0;  // taken from the pool's queue, then written or failed
  uint64_t failed_ = 0;
};

void log_lost_lines();

// Writes to standard error, in the pool's thread.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit StderrSink(Tally& tally) : tally_(tally) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    const bool written = write_whole(STDERR_FILENO, {line.data(), line.size()});
    if (written) log_lost_lines();  // before handled(): waiters wait for this line too
    tally_.handled(written);
  }
  void flush_() override {}  // nothing is buffered

 private:
  Tally& tally_;
};

// The pool's thread blocks all signals: other threads handle those of the process, and instead of
// SIGPIPE write() returns an error.
std::shared_ptr<Pool> make_pool() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  auto pool = std::make_shared<Pool>(kLogLines, 1);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return pool;
}

struct Log {
  Log() { init(LogLevel::kInfo, LogFormat::kText); }

  void init(LogLevel level, LogFormat new_format) {
    format = new_format;
    events->set_level(to_spdlog(level));
    constexpr auto kUtc = spdlog::pattern_time_type::utc;
    if (new_format == LogFormat::kText) {
      events->set_pattern("time=%Y-%m-%dT%H:%M:%S.%eZ level=%l %v", kUtc);
      texts->set_formatter(std::make_unique<spdlog::pattern_formatter>("%v", kUtc, /*eol=*/""));
    } else {
      const char* const object = R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%v})";
      events->set_pattern(object, kUtc);
      texts->set_pattern(object, kUtc);
    }
  }

  void post(spdlog::async_logger& logger, spdlog::level::level_enum level, std::string_view text) {
    tally.posted();
    logger.log(level, spdlog::string_view_t(text.data(), text.size()));
  }

  std::shared_ptr<spdlog::async_logger> make_logger() {
    auto logger =
        std::make_shared<spdlog::async_logger>("recurve", std::make_shared<StderrSink>(tally), pool,
                                               spdlog::async_overflow_policy::overrun_oldest);
    // Called without memory for a line. The default handler writes to standard error.
    logger->set_error_handler([this](const std::string&) { tally.handled(false); });
    return logger;
  }

  const std::shared_ptr<Pool> pool = make_pool();
  Tally tally{*pool};
  const std::shared_ptr<spdlog::async_logger> events = make_logger(), texts = make_logger();
  std::atomic<LogFormat> format{LogFormat::kText};
  uint64_t logged_lost = 0;  // lost lines that an event has counted; used by the pool's thread
};

// Never destroyed: other static objects may log while the process ends.
Log& log() {
  static Log* const instance = new Log;
  return *instance;
}

// Only if the queue has capacity: otherwise the line would push out another one.
void log_lost_lines() {
  const uint64_t lost = log().tally.lost();
  if (lost == log().logged_lost || log().pool->queue_size() > kLogLines / 2) return;
  const uint64_t lines = lost - std::exchange(log().logged_lost, lost);
  log_event(LogLevel::kWarning, "log_lines_dropped", {{"lines", lines}});
}

// Lines wait in memory, so text that a client chose is cut.
std::string_view bounded(std::string_view text) {
  constexpr size_t kMostBytes = 4096;
  return text.substr(0, kMostBytes);
}

Json to_json(const LogValue& value) {
  return std::visit(
      [](auto v) {
        if constexpr (std::is_same_v<decltype(v), std::string_view>) {
          return Json(std::string(bounded(v)));
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
    if (!needs_quotes(*text)) return std::string(bounded(*text));
  } else if (const auto* number = std::get_if<double>(&value.get())) {
    return fmt::format("{}", *number);  // also nan and inf
  }
  return dump(to_json(value));
}

}  // namespace

void init_logging(LogLevel level, LogFormat format) { log().init(level, format); }

bool log_enabled(LogLevel level) {
  return level != LogLevel::kOff && log().events->should_log(to_spdlog(level));
}

void log_event(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  if (!log_enabled(level)) return;
  try {
    log().post(*log().events, to_spdlog(level), format_event(log().format, event, fields));
  } catch (const std::exception&) {
    // The line is lost; logging must not fail its caller.
    log().tally.not_posted();
  }
}

void log_text(std::string_view text) {
  if (log().format == LogFormat::kText) {
    log().post(*log().texts, spdlog::level::info, text);
    return;
  }
  try {
    while (!text.empty()) {
      const std::string_view line = text.substr(0, text.find_first_of("\r\n"));
      text.remove_prefix(std::min(text.size(), line.size() + 1));
      if (line.empty()) continue;
      log().post(*log().texts, spdlog::level::info,
                 format_event(LogFormat::kJson, "text", {{"text", line}}));
    }
  } catch (const std::exception&) {
    log().tally.not_posted();
  }
}

bool flush_log(std::chrono::milliseconds most) { return log().tally.wait_until_all_handled(most); }

uint64_t log_lines_dropped() { return log().tally.lost(); }

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
