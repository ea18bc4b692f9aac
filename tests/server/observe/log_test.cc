#include "server/observe/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace recurve::log_test {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::string text(std::initializer_list<LogField> fields) {
  return format_event(LogFormat::kText, "e", fields);
}

nlohmann::json json(std::initializer_list<LogField> fields) {
  return nlohmann::json::parse("{" + format_event(LogFormat::kJson, "e", fields) + "}");
}

// The lines that `f` writes to standard error.
template <typename F>
std::vector<std::string> lines_of(F f) {
  testing::internal::CaptureStderr();
  f();
  EXPECT_TRUE(flush_log(std::chrono::seconds(30)));
  std::istringstream captured(testing::internal::GetCapturedStderr());
  std::vector<std::string> lines;
  for (std::string line; std::getline(captured, line);) lines.push_back(line);
  return lines;
}

TEST(Log, TextHasOneFieldForEachValue) {
  EXPECT_EQ(format_event(LogFormat::kText, "request_finished",
                         {{"request_id", std::string("r17")},
                          {"tokens", 12},
                          {"bytes", std::numeric_limits<uint64_t>::max()},
                          {"low", std::numeric_limits<int64_t>::min()},
                          {"seconds", 0.25},
                          {"float", 0.5f},
                          {"ok", true},
                          {"size", size_t{3}},
                          {"view", std::string_view("a/b:c")}}),
            "event=request_finished request_id=r17 tokens=12 bytes=18446744073709551615 "
            "low=-9223372036854775808 seconds=0.25 float=0.5 ok=true size=3 view=a/b:c");
  EXPECT_EQ(text({}), "event=e");
}

TEST(Log, TextValuesAreEscaped) {
  EXPECT_EQ(text({{"v", ""}}), "event=e v=\"\"");
  EXPECT_EQ(text({{"v", "two words"}}), "event=e v=\"two words\"");
  EXPECT_EQ(text({{"v", "x=1"}}), "event=e v=\"x=1\"");
  EXPECT_EQ(text({{"v", "say \"hi\""}}), R"(event=e v="say \"hi\"")");
  EXPECT_EQ(text({{"v", "back\\slash"}}), R"(event=e v="back\\slash")");
  EXPECT_EQ(text({{"v", "a\nlevel=error event=forged"}}),
            R"(event=e v="a\nlevel=error event=forged")");
  EXPECT_EQ(text({{"v", "\x1b[2J"}}), R"(event=e v="\u001b[2J")");
  EXPECT_EQ(text({{"v", "\xc2\x9b"}}), R"(event=e v="\u009b")");
  EXPECT_EQ(text({{"v", "caf\xc3\xa9"}}), R"(event=e v="caf\u00e9")");
  EXPECT_EQ(text({{"v", "\xff"}}), R"(event=e v="\ufffd")");
  EXPECT_EQ(text({{"v", std::string_view("a\0b", 3)}}), R"(event=e v="a\u0000b")");
  EXPECT_EQ(text({{"v", std::nan("")}, {"w", -INFINITY}}), "event=e v=nan w=-inf");
}

TEST(Log, LongTextIsCut) {
  const std::string plain(1 << 20, 'a'), spaced(1 << 20, ' ');
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    for (const std::string& value : {plain, spaced}) {
      EXPECT_LT(format_event(format, "e", {{"k", value}}).size(), 5000u);
    }
  }
}

TEST(Log, JsonKeepsTypesAndValues) {
  const auto object = json({{"s", "line\nquote\" \\ \x1b caf\xc3\xa9"},
                            {"i", -3},
                            {"u", std::numeric_limits<uint64_t>::max()},
                            {"d", 0.1},
                            {"b", false},
                            {"bad", "a\xff z"},
                            {"nan", std::nan("")}});
  EXPECT_EQ(object["event"], "e");
  EXPECT_EQ(object["s"], "line\nquote\" \\ \x1b caf\xc3\xa9");
  EXPECT_EQ(object["i"], -3);
  EXPECT_EQ(object["u"], std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(object["d"], 0.1);
  EXPECT_TRUE(object["b"].is_boolean());
  EXPECT_EQ(object["bad"], "a\xef\xbf\xbd z");
  EXPECT_TRUE(object["nan"].is_null());
}

TEST(Log, JsonLinesAreObjectsWithTimeAndLevelFirst) {
  init_logging(LogLevel::kInfo, LogFormat::kJson);
  const auto lines = lines_of([] {
    log_event(LogLevel::kWarning, "slow_step", {{"seconds", 1.5}, {"percent", "%d %v {}"}});
    log_event(LogLevel::kInfo, "started");
  });
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], ::testing::StartsWith("{\"time\":\"20"));
  const auto object = nlohmann::json::parse(lines[0]);
  EXPECT_THAT(object["time"].get<std::string>(),
              MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}Z"));
  EXPECT_EQ(object["level"], "warning");
  EXPECT_EQ(object["event"], "slow_step");
  EXPECT_EQ(object["seconds"], 1.5);
  EXPECT_EQ(object["percent"], "%d %v {}");
  EXPECT_EQ(nlohmann::json::parse(lines[1])["event"], "started");
}

TEST(Log, TextLinesHaveTimeAndLevelFirst) {
  init_logging(LogLevel::kInfo, LogFormat::kText);
  const auto lines = lines_of([] { log_event(LogLevel::kError, "device_lost", {{"code", 3}}); });
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], MatchesRegex("time=[0-9-]{10}T[0-9:]{8}\\.[0-9]{3}Z level=error "
                                     "event=device_lost code=3"));
}

TEST(Log, EventsBelowTheLevelAreDropped) {
  init_logging(LogLevel::kWarning, LogFormat::kText);
  EXPECT_FALSE(log_enabled(LogLevel::kInfo));
  EXPECT_TRUE(log_enabled(LogLevel::kWarning));
  const auto lines = lines_of([] {
    log_event(LogLevel::kDebug, "a");
    log_event(LogLevel::kInfo, "b");
    log_event(LogLevel::kWarning, "c");
    log_event(LogLevel::kOff, "d");
  });
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("event=c"));

  init_logging(LogLevel::kOff, LogFormat::kText);
  EXPECT_TRUE(lines_of([] { log_event(LogLevel::kError, "e"); }).empty());
}

TEST(Log, LinesOfSeveralThreadsStayWhole) {
  init_logging(LogLevel::kInfo, LogFormat::kJson);
  const auto lines = lines_of([] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([t] {
        for (int i = 0; i < 100; ++i) {
          log_event(LogLevel::kInfo, "e", {{"thread", t}, {"long", std::string(500, 'x')}});
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  ASSERT_EQ(lines.size(), 400u);
  for (const std::string& line : lines) EXPECT_TRUE(nlohmann::json::accept(line)) << line;
}

TEST(Log, TextIsUnchangedAndInOrder) {
  init_logging(LogLevel::kInfo, LogFormat::kText);
  const auto lines = lines_of([] {
    log_event(LogLevel::kInfo, "before");
    log_text("a table {} %v\n  of two lines\n");
    log_event(LogLevel::kInfo, "after");
  });
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_THAT(lines[0], HasSubstr("event=before"));
  EXPECT_EQ(lines[1], "a table {} %v");
  EXPECT_EQ(lines[2], "  of two lines");
  EXPECT_THAT(lines[3], HasSubstr("event=after"));
}

TEST(Log, InJsonTextIsAnEventPerLine) {
  init_logging(LogLevel::kOff, LogFormat::kJson);
  const auto lines = lines_of([] {
    log_text("\ra \"table\" {} %v\n\n  of two lines\n");
    log_text("no end of line");
  });
  ASSERT_EQ(lines.size(), 3u);
  std::vector<std::string> texts;
  for (const std::string& line : lines) {
    const auto object = nlohmann::json::parse(line);
    EXPECT_EQ(object["event"], "text");
    texts.push_back(object["text"]);
  }
  EXPECT_THAT(texts,
              ::testing::ElementsAre("a \"table\" {} %v", "  of two lines", "no end of line"));
}

// Makes standard error a pipe with the capacity of a page.
class StderrPipe {
 public:
  StderrPipe() {
    EXPECT_EQ(pipe(ends_), 0);
    fcntl(ends_[1], F_SETPIPE_SZ, 4096);
    dup2(ends_[1], STDERR_FILENO);
    close(ends_[1]);
  }
  ~StderrPipe() { restore(); }
  void close_reader() {
    if (ends_[0] >= 0) close(ends_[0]);
    ends_[0] = -1;
  }
  // Reads until the pipe has no writer.
  std::string read_all() const {
    std::string text;
    char piece[4096];
    for (ssize_t n; (n = read(ends_[0], piece, sizeof piece)) > 0;) {
      text.append(piece, static_cast<size_t>(n));
    }
    return text;
  }
  void restore() {
    if (before_ < 0) return;
    dup2(before_, STDERR_FILENO);
    close(before_);
    before_ = -1;
    close_reader();
  }
  void end_writing() { dup2(before_, STDERR_FILENO); }

 private:
  int before_ = dup(STDERR_FILENO);
  int ends_[2] = {-1, -1};
};

TEST(Log, LoggingDoesNotWaitForTheReader) {
  init_logging(LogLevel::kInfo, LogFormat::kText);
  constexpr uint64_t kEvents = 3 * kLogLines;
  const uint64_t lost_before = log_lines_dropped();
  StderrPipe pipe;
  for (uint64_t i = 0; i < kEvents; ++i) log_event(LogLevel::kInfo, "e", {{"number", i}});
  EXPECT_FALSE(flush_log(std::chrono::milliseconds(1)));
  const uint64_t lost = log_lines_dropped() - lost_before;
  EXPECT_GT(lost, kLogLines);
  EXPECT_LT(lost, kEvents - kLogLines);

  std::string text;
  std::thread reader([&] { text = pipe.read_all(); });
  EXPECT_TRUE(flush_log(std::chrono::seconds(30)));
  pipe.end_writing();
  reader.join();
  EXPECT_EQ(log_lines_dropped() - lost_before, lost);
  std::istringstream lines(text);
  uint64_t events = 0, last = 0, told = 0;
  for (std::string line; std::getline(lines, line);) {
    const size_t said = line.find("event=log_lines_dropped lines=");
    if (said != std::string::npos) {
      told += std::stoull(line.substr(line.rfind('=') + 1));
    } else {
      ++events;
      last = std::stoull(line.substr(line.rfind('=') + 1));
    }
  }
  EXPECT_EQ(events + lost, kEvents);
  EXPECT_EQ(told, lost);
  EXPECT_EQ(last, kEvents - 1) << "the oldest are dropped";
}

TEST(Log, WithoutAReaderOnlyLinesAreLost) {
  init_logging(LogLevel::kInfo, LogFormat::kText);
  const uint64_t lost_before = log_lines_dropped();
  StderrPipe pipe;
  pipe.close_reader();
  for (int i = 0; i < 10; ++i) log_event(LogLevel::kInfo, "e");
  EXPECT_TRUE(flush_log(std::chrono::seconds(30)));
  pipe.restore();
  EXPECT_EQ(log_lines_dropped() - lost_before, 10u);
  const auto lines = lines_of([] { log_event(LogLevel::kInfo, "back"); });
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], HasSubstr("event=back"));
  EXPECT_THAT(lines[1], HasSubstr("event=log_lines_dropped lines=10"));
}

}  // namespace recurve::log_test
