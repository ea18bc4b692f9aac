#include "server/observe/metrics.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "server/observe/log.h"

namespace recurve::metrics_test {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAreArray;

// The value of the series, which is a whole line's beginning; -1 if there is none.
double value(const std::string& text, const std::string& series) {
  const size_t at = ("\n" + text).find("\n" + series + " ");
  if (at == std::string::npos) return -1;
  return std::stod(text.substr(at + series.size() + 1));
}

TEST(Metrics, EverySeriesIsThereFromTheStart) {
  const Metrics metrics;
  const std::string text = metrics.text();
  for (const char* series : {"recurve_requests_total",
                             "recurve_requests_running",
                             "recurve_requests_waiting",
                             "recurve_prompt_tokens_total",
                             "recurve_generated_tokens_total",
                             "recurve_slots{tier=\"free\"}",
                             "recurve_slots{tier=\"running\"}",
                             "recurve_slots{tier=\"session_idle\"}",
                             "recurve_sessions{tier=\"slot\"}",
                             "recurve_sessions{tier=\"host\"}",
                             "recurve_sessions{tier=\"empty\"}",
                             "recurve_session_host_bytes",
                             "recurve_queue_seconds_count",
                             "recurve_prefill_seconds_count",
                             "recurve_time_to_first_token_seconds_count",
                             "recurve_inter_token_seconds_count",
                             "recurve_decode_seconds_count",
                             "recurve_step_seconds_count",
                             "recurve_batch_rows_count",
                             "recurve_requests_finished_total{reason=\"length\"}",
                             "recurve_requests_finished_total{reason=\"eos\"}",
                             "recurve_requests_finished_total{reason=\"stop_id\"}",
                             "recurve_requests_finished_total{reason=\"stop_string\"}",
                             "recurve_requests_finished_total{reason=\"cancelled\"}",
                             "recurve_requests_finished_total{reason=\"deadline\"}",
                             "recurve_requests_finished_total{reason=\"stalled\"}",
                             "recurve_requests_finished_total{reason=\"shutdown\"}",
                             "recurve_requests_finished_total{reason=\"error\"}",
                             "recurve_errors_total{code=\"INVALID_ARGUMENT\"}",
                             "recurve_errors_total{code=\"RESOURCE_EXHAUSTED\"}",
                             "recurve_errors_total{code=\"UNAUTHENTICATED\"}"}) {
    EXPECT_EQ(value(text, series), 0) << series;
  }
  EXPECT_THAT(text, Not(HasSubstr("code=\"OK\"")));
  EXPECT_THAT(text, HasSubstr("# TYPE recurve_requests_total counter"));
  EXPECT_THAT(text, HasSubstr("# TYPE recurve_slots gauge"));
  EXPECT_THAT(text, HasSubstr("# TYPE recurve_inter_token_seconds histogram"));
}

TEST(Metrics, EventsReachTheirSeries) {
  Metrics metrics;
  metrics.request_received();
  metrics.request_received();
  metrics.request_finished(Metrics::Finish::kStopString);
  metrics.request_finished(Metrics::Finish::kError);
  metrics.set_requests(3, 4);
  metrics.set_slots(5, 6, 7);
  metrics.set_sessions(8, 9, 10);
  metrics.set_session_host_bytes(int64_t{1} << 40);
  metrics.add_prompt_tokens(100);
  metrics.add_prompt_tokens(-1);
  metrics.add_generated_tokens(1);
  metrics.add_generated_tokens(1);
  const std::string text = metrics.text();
  EXPECT_EQ(value(text, "recurve_requests_total"), 2);
  EXPECT_EQ(value(text, "recurve_requests_finished_total{reason=\"stop_string\"}"), 1);
  EXPECT_EQ(value(text, "recurve_requests_finished_total{reason=\"error\"}"), 1);
  EXPECT_EQ(value(text, "recurve_requests_finished_total{reason=\"eos\"}"), 0);
  EXPECT_EQ(value(text, "recurve_requests_running"), 3);
  EXPECT_EQ(value(text, "recurve_requests_waiting"), 4);
  EXPECT_EQ(value(text, "recurve_slots{tier=\"free\"}"), 5);
  EXPECT_EQ(value(text, "recurve_slots{tier=\"running\"}"), 6);
  EXPECT_EQ(value(text, "recurve_slots{tier=\"session_idle\"}"), 7);
  EXPECT_EQ(value(text, "recurve_sessions{tier=\"slot\"}"), 8);
  EXPECT_EQ(value(text, "recurve_sessions{tier=\"host\"}"), 9);
  EXPECT_EQ(value(text, "recurve_sessions{tier=\"empty\"}"), 10);
  EXPECT_EQ(value(text, "recurve_session_host_bytes"), 1099511627776.0);
  EXPECT_EQ(value(text, "recurve_prompt_tokens_total"), 100);
  EXPECT_EQ(value(text, "recurve_generated_tokens_total"), 2);
}

TEST(Metrics, ErrorsAreCountedByTheNameOfTheirCode) {
  Metrics metrics;
  metrics.request_failed(3);
  metrics.request_failed(8);
  metrics.request_failed(8);
  metrics.request_failed(16);
  metrics.request_failed(2);
  metrics.request_failed(17);
  metrics.request_failed(-5);
  const std::string text = metrics.text();
  EXPECT_EQ(value(text, "recurve_errors_total{code=\"INVALID_ARGUMENT\"}"), 1);
  EXPECT_EQ(value(text, "recurve_errors_total{code=\"RESOURCE_EXHAUSTED\"}"), 2);
  EXPECT_EQ(value(text, "recurve_errors_total{code=\"UNAUTHENTICATED\"}"), 1);
  EXPECT_EQ(value(text, "recurve_errors_total{code=\"UNKNOWN\"}"), 3);
}

TEST(Metrics, TimesGoIntoTheirHistograms) {
  Metrics metrics;
  metrics.observe_queue(0.5);
  metrics.observe_prefill(0.25);
  metrics.observe_ttft(0.75);
  metrics.observe_inter_token(0.01);
  metrics.observe_inter_token(0.03);
  metrics.observe_decode(1000);
  metrics.observe_step(0.004, 65);
  const std::string text = metrics.text();
  EXPECT_EQ(value(text, "recurve_queue_seconds_sum"), 0.5);
  EXPECT_EQ(value(text, "recurve_prefill_seconds_sum"), 0.25);
  EXPECT_EQ(value(text, "recurve_time_to_first_token_seconds_sum"), 0.75);
  EXPECT_EQ(value(text, "recurve_inter_token_seconds_count"), 2);
  EXPECT_EQ(value(text, "recurve_inter_token_seconds_bucket{le=\"0.005\"}"), 0);
  EXPECT_EQ(value(text, "recurve_inter_token_seconds_bucket{le=\"0.02\"}"), 1);
  EXPECT_EQ(value(text, "recurve_decode_seconds_bucket{le=\"500\"}"), 0);
  EXPECT_EQ(value(text, "recurve_decode_seconds_bucket{le=\"+Inf\"}"), 1);
  EXPECT_EQ(value(text, "recurve_step_seconds_sum"), 0.004);
  EXPECT_EQ(value(text, "recurve_batch_rows_bucket{le=\"64\"}"), 0);
  EXPECT_EQ(value(text, "recurve_batch_rows_bucket{le=\"128\"}"), 1);
}

// The log's own count, of the whole process.
TEST(Metrics, LinesThatTheLogLostAreCounted) {
  const Metrics metrics;
  ASSERT_TRUE(flush_log(std::chrono::seconds(30)));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(value(metrics.text(), "recurve_log_lines_dropped_total"), log_lines_dropped());
  }
}

TEST(Metrics, ThreadsLoseNothing) {
  Metrics metrics;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&metrics] {
      for (int i = 0; i < 1000; ++i) {
        metrics.request_received();
        metrics.add_generated_tokens(2);
        metrics.observe_inter_token(0.01);
        metrics.set_requests(i, i);
      }
    });
  }
  for (int i = 0; i < 10; ++i) (void)metrics.text();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(value(metrics.text(), "recurve_requests_total"), 4000);
  EXPECT_EQ(value(metrics.text(), "recurve_generated_tokens_total"), 8000);
  EXPECT_EQ(value(metrics.text(), "recurve_inter_token_seconds_count"), 4000);
}

// A plain socket on the loopback interface; -1 where nobody takes the connection.
int connect_to(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
  close(fd);
  return -1;
}

void say(int fd, const std::string& bytes) {
  EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

// What it gets for `request`, to the end of the stream.
std::string ask(int port, const std::string& request) {
  const int fd = connect_to(port);
  std::string answer;
  if (fd >= 0) {
    say(fd, request);
    char buffer[4096];
    for (ssize_t n; (n = recv(fd, buffer, sizeof buffer, 0)) > 0;) {
      answer.append(buffer, static_cast<size_t>(n));
    }
  }
  close(fd);
  return answer;
}

constexpr char kGet[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

TEST(MetricsServer, AnswersAGetAndStopsWithItsObject) {
  Metrics metrics;
  metrics.add_generated_tokens(42);
  int port = 0;
  {
    const MetricsServer server("127.0.0.1:0", metrics);
    port = server.port();
    ASSERT_GT(port, 0);
    const std::string answer = ask(port, kGet);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK"));
    EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain"));
    EXPECT_THAT(answer, HasSubstr("\nrecurve_generated_tokens_total 42\n"));
    metrics.add_generated_tokens(1);
    EXPECT_THAT(ask(port, kGet), HasSubstr("\nrecurve_generated_tokens_total 43\n"));
  }
  EXPECT_EQ(ask(port, kGet), "");
}

// The rows that deploy/README.md's table should have after a scrape answered `text`: name, type,
// the values of the label if there is one, help.
std::vector<std::string> table_rows(const std::string& text) {
  struct Metric {
    std::string type, help, label;
    std::set<std::string> values;
  };
  std::map<std::string, Metric> metrics;
  const std::regex about("# (HELP|TYPE) (\\w+) (.*)"), sample("(\\w+)\\{(\\w+)=\"(.*)\"\\} .*");
  std::istringstream lines(text);
  std::smatch found;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_match(line, found, about)) {
      Metric& metric = metrics[found[2]];
      (found[1] == "HELP" ? metric.help : metric.type) = found[3];
    } else if (std::regex_match(line, found, sample) && found[2] != "le" &&
               found[2] != "quantile") {  // which belong to the type
      metrics[found[1]].label = found[2];
      metrics[found[1]].values.insert(found[3]);
    }
  }
  std::vector<std::string> rows;
  for (const auto& [name, metric] : metrics) {
    const std::string label = metric.label.empty() ? "" : "`" + metric.label + "`: ";
    const std::string values = fmt::format("{}{}", label, fmt::join(metric.values, ", "));
    rows.push_back(fmt::format("| `{}` | {} | {} |{}{} |", name, metric.type, metric.help,
                               values.empty() ? "" : " ", values));
  }
  return rows;
}

TEST(MetricsServer, AnswersWithWhatTheTableInTheDocumentsLists) {
  const Metrics metrics;
  const MetricsServer server("127.0.0.1:0", metrics);
  std::ifstream document(RECURVE_SOURCE_DIR "/deploy/README.md");
  std::vector<std::string> listed;
  for (std::string line; std::getline(document, line);) {
    if (line.starts_with("| `recurve_") || line.starts_with("| `exposer_")) listed.push_back(line);
  }
  EXPECT_FALSE(listed.empty());
  EXPECT_THAT(listed, UnorderedElementsAreArray(table_rows(ask(server.port(), kGet))));
}

// As many as there are threads, and more than that: each has a second, and they take turns.
TEST(MetricsServer, HalfARequestDoesNotKeepTheOthersOut) {
  const Metrics metrics;
  const MetricsServer server("127.0.0.1:0", metrics);
  std::vector<int> half;
  for (int i = 0; i < 6; ++i) {
    half.push_back(connect_to(server.port()));
    say(half.back(), std::string(kGet).substr(0, 40));
  }
  const auto began = std::chrono::steady_clock::now();
  EXPECT_THAT(ask(server.port(), kGet), StartsWith("HTTP/1.1 200 OK"));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
  for (const int fd : half) close(fd);
}

// A byte now and then is no reason to wait on.
TEST(MetricsServer, ARequestThatTricklesInIsEnded) {
  const Metrics metrics;
  const MetricsServer server("127.0.0.1:0", metrics);
  const int fd = connect_to(server.port());
  const auto began = std::chrono::steady_clock::now();
  const auto passed = [&] { return std::chrono::steady_clock::now() - began; };
  for (const char byte : std::string(1000, 'G')) {
    pollfd entry{fd, POLLIN, 0};
    if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1 || poll(&entry, 1, 50) > 0) break;
    if (passed() > std::chrono::seconds(20)) break;
  }
  EXPECT_LT(passed(), std::chrono::seconds(10));
  close(fd);
}

std::string error_of(const std::string& address) {
  const Metrics metrics;
  try {
    const MetricsServer server(address, metrics);
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "";
}

TEST(MetricsServer, ATakenPortIsOneSentence) {
  const Metrics metrics;
  const MetricsServer first("127.0.0.1:0", metrics);
  const std::string address = "127.0.0.1:" + std::to_string(first.port());
  EXPECT_EQ(error_of(address), "cannot serve metrics on " + address +
                                   ": no such address on this machine, or its port is taken");
}

TEST(MetricsServer, RefusesWhatIsNoHostAndPort) {
  for (const char* address :
       {"", ":", "9090", ":9090", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000",
        "127.0.0.1:443s", "127.0.0.1:1,127.0.0.1:2", "127.0.0.1:-1", "127.0.0.1:000000"}) {
    EXPECT_EQ(error_of(address), std::string("metrics address must be HOST:PORT, PORT in "
                                             "[0, 65535], got '") +
                                     address + "'");
  }
}

}  // namespace recurve::metrics_test
