#include "server/observe/metrics.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <ctime>
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
using ::testing::UnorderedElementsAreArray;

// The value of the series, which starts a line; -1: none.
double value(const std::string& text, const std::string& series) {
  const size_t at = ("\n" + text).find("\n" + series + " ");
  if (at == std::string::npos) return -1;
  return std::stod(text.substr(at + series.size() + 1));
}

TEST(Metrics, EverySeriesExistsFromTheStart) {
  const Metrics metrics;
  const std::string text = metrics.text();
  for (const char* series : {"recurve_requests_total",
                             "recurve_requests_running",
                             "recurve_requests_waiting",
                             "recurve_prompt_tokens_total",
                             "recurve_generated_tokens_total",
                             "recurve_pages{use=\"free\"}",
                             "recurve_pages{use=\"used\"}",
                             "recurve_preemptions_total",
                             "recurve_utilization",
                             "recurve_slots{tier=\"free\"}",
                             "recurve_slots{tier=\"running\"}",
                             "recurve_slots{tier=\"session_idle\"}",
                             "recurve_sessions{tier=\"slot\"}",
                             "recurve_sessions{tier=\"host\"}",
                             "recurve_sessions{tier=\"disk\"}",
                             "recurve_sessions{tier=\"empty\"}",
                             "recurve_session_moves_total{to=\"disk\"}",
                             "recurve_state_dir_seconds_count{call=\"commit\"}",
                             "recurve_state_dir_seconds_count{call=\"spill\"}",
                             "recurve_state_dir_seconds_count{call=\"read\"}",
                             "recurve_state_dir_failures_total{call=\"commit\"}",
                             "recurve_state_store_seconds_count{call=\"take_over\"}",
                             "recurve_state_store_failures_total{call=\"commit\"}",
                             "recurve_shared_turns_total{outcome=\"other_owner\"}",
                             "recurve_drain_marks_left_total",
                             "recurve_state_store_bytes_total{direction=\"read\"}",
                             "recurve_state_dir_syncs_total",
                             "recurve_state_dir_written_bytes_total",
                             "recurve_state_dir_set_aside",
                             "recurve_prefix_tokens_total{of=\"replayed\"}",
                             "recurve_constraints_total{outcome=\"compiled\"}",
                             "recurve_constraints_total{outcome=\"turned_away\"}",
                             "recurve_constraints_waiting",
                             "recurve_constraint_bytes",
                             "recurve_constraint_seconds_count",
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
  metrics.request_finished(EndReason::kStopString);
  metrics.request_finished(EndReason::kInternal);
  metrics.set_waiting(4);
  metrics.set_expected_queue_seconds(0.5);
  metrics.set_slots({.free = 5, .running = 6, .session_idle = 7});
  metrics.set_sessions({.in_slot = 8, .in_host = 9, .on_disk = 11, .empty = 10, .to_disk = 3});
  metrics.set_sessions({.in_slot = 8, .in_host = 9, .on_disk = 11, .empty = 10, .to_disk = 4});
  metrics.set_state_dir({.bytes = 1000, .set_aside = 2, .syncs = 7, .written = 4000});
  metrics.set_constraints({.compiled = 3, .from_cache = 4, .waiting = 2, .cached_bytes = 100});
  metrics.observe_constraint(0.1);
  metrics.observe_state_dir(0, 0.002, false);
  metrics.observe_state_dir(2, 0.002, true);
  metrics.add_prefix(7, 100, 20, 3);
  metrics.set_prefixes({.states = 3, .bytes = 300, .disk_states = 5, .disk_bytes = 500});
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
  EXPECT_EQ(value(text, "recurve_requests_running"), 6);
  EXPECT_EQ(value(text, "recurve_requests_waiting"), 4);
  EXPECT_EQ(value(text, "recurve_expected_queue_seconds"), 0.5);
  EXPECT_EQ(value(text, "recurve_slots{tier=\"free\"}"), 5);
  EXPECT_EQ(value(text, "recurve_slots{tier=\"running\"}"), 6);
  EXPECT_EQ(value(text, "recurve_slots{tier=\"session_idle\"}"), 7);
  EXPECT_EQ(value(text, "recurve_sessions{tier=\"slot\"}"), 8);
  EXPECT_EQ(value(text, "recurve_sessions{tier=\"host\"}"), 9);
  EXPECT_EQ(value(text, "recurve_sessions{tier=\"empty\"}"), 10);
  EXPECT_EQ(value(text, "recurve_sessions{tier=\"disk\"}"), 11);
  EXPECT_EQ(value(text, "recurve_session_moves_total{to=\"disk\"}"), 4);
  EXPECT_EQ(value(text, "recurve_state_dir_bytes"), 1000);
  EXPECT_EQ(value(text, "recurve_state_dir_set_aside"), 2);
  EXPECT_EQ(value(text, "recurve_state_dir_syncs_total"), 7);
  EXPECT_EQ(value(text, "recurve_state_dir_written_bytes_total"), 4000);
  EXPECT_EQ(value(text, "recurve_constraints_total{outcome=\"compiled\"}"), 3);
  EXPECT_EQ(value(text, "recurve_constraints_total{outcome=\"cached\"}"), 4);
  EXPECT_EQ(value(text, "recurve_constraints_waiting"), 2);
  EXPECT_EQ(value(text, "recurve_constraint_bytes"), 100);
  EXPECT_EQ(value(text, "recurve_constraint_seconds_count"), 1);
  EXPECT_EQ(value(text, "recurve_state_dir_seconds_count{call=\"commit\"}"), 1);
  EXPECT_EQ(value(text, "recurve_state_dir_failures_total{call=\"commit\"}"), 0);
  EXPECT_EQ(value(text, "recurve_state_dir_failures_total{call=\"read\"}"), 1);
  EXPECT_EQ(value(text, "recurve_prefix_prompts_total{begin=\"on_disk\"}"), 1);
  EXPECT_EQ(value(text, "recurve_prefix_tokens_total{of=\"replayed\"}"), 20);
  EXPECT_EQ(value(text, "recurve_prefix_states"), 3);
  EXPECT_EQ(value(text, "recurve_prefix_bytes"), 300);
  EXPECT_EQ(value(text, "recurve_prefix_states_on_disk"), 5);
  EXPECT_EQ(value(text, "recurve_prefix_bytes_on_disk"), 500);
  EXPECT_EQ(value(text, "recurve_session_host_bytes"), 1099511627776.0);
  EXPECT_EQ(value(text, "recurve_prompt_tokens_total"), 100);
  EXPECT_EQ(value(text, "recurve_generated_tokens_total"), 2);
}

TEST(Metrics, ErrorsAreCountedByTheNameOfTheirCode) {
  Metrics metrics;
  metrics.request_failed(Code::kInvalidArgument);
  metrics.request_failed(Code::kResourceExhausted);
  metrics.request_failed(Code::kResourceExhausted);
  metrics.request_failed(Code::kUnauthenticated);
  const std::string text = metrics.text();
  EXPECT_EQ(value(text, "recurve_errors_total{code=\"INVALID_ARGUMENT\"}"), 1);
  EXPECT_EQ(value(text, "recurve_errors_total{code=\"RESOURCE_EXHAUSTED\"}"), 2);
  EXPECT_EQ(value(text, "recurve_errors_total{code=\"UNAUTHENTICATED\"}"), 1);
  EXPECT_EQ(value(text, "recurve_errors_total{code=\"UNKNOWN\"}"), 0);
}

TEST(Metrics, TimesReachTheirHistograms) {
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

TEST(Metrics, CallsToTheStoreReachTheirSeries) {
  Metrics metrics;
  metrics.observe_store(Metrics::StoreCall::kTakeOver, 0.1, true);
  metrics.shared_turn(Metrics::TurnEnd::kRecorded);
  metrics.leave_marks(3);
  const std::string text = metrics.text();
  EXPECT_EQ(value(text, "recurve_state_store_seconds_count{call=\"take_over\"}"), 1);
  EXPECT_EQ(value(text, "recurve_state_store_failures_total{call=\"take_over\"}"), 1);
  EXPECT_EQ(value(text, "recurve_state_store_failures_total{call=\"commit\"}"), 0);
  EXPECT_EQ(value(text, "recurve_shared_turns_total{outcome=\"recorded\"}"), 1);
  EXPECT_EQ(value(text, "recurve_shared_turns_total{outcome=\"committed\"}"), 0);
  EXPECT_EQ(value(text, "recurve_drain_marks_left_total"), 3);
}

TEST(Metrics, ThoseOfAModelCarryItsName) {
  Metrics metrics({.models = {"books"}, .version = "1.2", .commit = "abc"});
  metrics.set_waiting(4);
  metrics.observe_step(0.004, 65);
  const std::string text = metrics.text();
  EXPECT_EQ(value(text, "recurve_requests_waiting{model=\"books\"}"), 4);
  EXPECT_EQ(value(text, "recurve_step_seconds_count{model=\"books\"}"), 1);
  EXPECT_EQ(value(text, "recurve_slots{model=\"books\",tier=\"free\"}"), 0);
  EXPECT_EQ(value(text, "recurve_requests_total"), 0);
  EXPECT_EQ(value(text, "recurve_build_info{commit=\"abc\",version=\"1.2\"}"), 1);
}

TEST(Metrics, ThoseOfAModelGoWithIt) {
  Metrics metrics({.models = {"books"}});
  const std::string before = metrics.text();
  for (int i = 0; i < 2; ++i) {
    const std::shared_ptr<ModelMetrics> model = metrics.of_model("new");
    model->set_waiting(2);
    model->observe_step(0.004, 65);
    metrics.of_model("books")->set_waiting(1);
    const std::string text = metrics.text();
    EXPECT_EQ(value(text, "recurve_requests_waiting{model=\"books\"}"), 1);
    EXPECT_EQ(value(text, "recurve_requests_waiting{model=\"new\"}"), 2);
    EXPECT_EQ(value(text, "recurve_step_seconds_count{model=\"new\"}"), 1) << "from nothing";
    metrics.remove_model("new");
    EXPECT_THAT(metrics.text(), HasSubstr("model=\"new\"")) << "it is used";
  }
  metrics.remove_model("books");
  metrics.set_waiting(0);
  const std::string after = metrics.text();
  EXPECT_THAT(after, Not(HasSubstr("model=\"new\"")));
  EXPECT_EQ(std::ranges::count(after, '\n'), std::ranges::count(before, '\n'));
}

TEST(Metrics, UtilizationIsThatOfSlotsOrPages) {
  Metrics metrics;
  const auto utilization = [&] { return value(metrics.text(), "recurve_utilization"); };
  EXPECT_EQ(utilization(), 0);
  metrics.set_slots({.free = 2, .running = 1, .session_idle = 1});  // idle ones make room
  EXPECT_EQ(utilization(), 0.25);
  metrics.set_pages({.total = 10, .free = 1, .running = 5});
  EXPECT_EQ(utilization(), 0.5);
  metrics.set_pages({.total = 10, .free = 1, .running = 15});  // many share their pages
  EXPECT_EQ(utilization(), 1);
}

TEST(Metrics, TheProcessIsMeasured) {
  const Metrics metrics;
  const auto now = [&](const char* series) { return value(metrics.text(), series); };
  const double opened = now("process_open_fds");
  const std::ifstream file("/proc/self/stat");
  EXPECT_EQ(now("process_open_fds"), opened + 1);
  EXPECT_GT(now("process_max_fds"), opened);
  const auto clock = std::chrono::system_clock::now().time_since_epoch();
  const double seconds = std::chrono::duration<double>(clock).count();
  EXPECT_NEAR(now("process_start_time_seconds"), seconds, 3600);
  EXPECT_LE(now("process_start_time_seconds"), seconds + 1);
  const std::vector<char> memory(64 << 20, 1);
  EXPECT_GT(now("process_resident_memory_bytes"), memory.size());
  EXPECT_GT(now("process_virtual_memory_bytes"), now("process_resident_memory_bytes"));
  const double used = now("process_cpu_seconds_total");
  while (std::clock() < (used + 0.1) * CLOCKS_PER_SEC) {
  }
  EXPECT_GE(now("process_cpu_seconds_total"), used + 0.09);
}

// The log's count, of the whole process.
TEST(Metrics, LostLogLinesAreCounted) {
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
        metrics.set_waiting(i);
      }
    });
  }
  for (int i = 0; i < 10; ++i) (void)metrics.text();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(value(metrics.text(), "recurve_requests_total"), 4000);
  EXPECT_EQ(value(metrics.text(), "recurve_generated_tokens_total"), 8000);
  EXPECT_EQ(value(metrics.text(), "recurve_inter_token_seconds_count"), 4000);
}

// A scrape while the gauges change has those that one call set.
TEST(Metrics, AScrapeShowsSlotsThatAddUp) {
  constexpr int kSlots = 8;
  Metrics metrics;
  metrics.set_slots({.free = kSlots});
  std::atomic<bool> done = false;
  std::thread engine([&] {
    for (int64_t i = 0; !done; ++i) {
      metrics.set_slots(
          {.free = kSlots - i % 8, .running = i % 8 / 2, .session_idle = (i % 8 + 1) / 2});
    }
  });
  for (int i = 0; i < 100; ++i) {
    const std::string text = metrics.text();
    const double running = value(text, "recurve_slots{tier=\"running\"}");
    EXPECT_EQ(value(text, "recurve_slots{tier=\"free\"}") + running +
                  value(text, "recurve_slots{tier=\"session_idle\"}"),
              kSlots);
    EXPECT_EQ(value(text, "recurve_requests_running"), running);
  }
  done = true;
  engine.join();
}

TEST(Metrics, LimitsTheNumberOfTenants) {
  Metrics metrics;
  using Of = Metrics::Of;
  for (int i = 0; i < 1000; ++i) metrics.count_for(fmt::format("t{}", i), Of::kRequests);
  for (int i = 0; i < 1000; ++i) metrics.count_for(fmt::format("t{}", i), Of::kGeneratedTokens, 3);
  const std::string text = metrics.text();
  EXPECT_EQ(value(text, "recurve_tenant_requests_total{tenant=\"t0\"}"), 1);
  EXPECT_EQ(value(text, "recurve_tenant_requests_total{tenant=\"other\"}"), 900);
  EXPECT_EQ(value(text, "recurve_tenant_generated_tokens_total{tenant=\"other\"}"), 2700);
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("\"t100\"")));
}

// The rows that deploy/README.md's table should have for a scrape: name, type, help, label values.
std::vector<std::string> table_rows(const std::string& text) {
  struct Metric {
    std::string type, help, label;
    std::set<std::string> values;
  };
  std::map<std::string, Metric> metrics;
  // A histogram's samples have suffixes and another label.
  const std::regex about("# (HELP|TYPE) (\\w+) (.*)"),
      sample("(\\w+?)(?:_bucket|_sum|_count)?\\{(\\w+)=\"([^\"]*)\"(?:,le=.*)?\\} .*");
  std::istringstream lines(text);
  std::smatch found;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_match(line, found, about)) {
      Metric& metric = metrics[found[2]];
      (found[1] == "HELP" ? metric.help : metric.type) = found[3];
    } else if (std::regex_match(line, found, sample) && found[2] != "le") {
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

TEST(Metrics, MatchTheTableInTheDocuments) {
  Metrics metrics;
  using Of = Metrics::Of;
  for (const Of of : {Of::kRequests, Of::kRefused, Of::kPromptTokens, Of::kGeneratedTokens}) {
    metrics.count_for("NAME", of);
  }
  metrics.add_initial_state("NAME");
  metrics.add_adapter("NAME");
  std::ifstream document(RECURVE_SOURCE_DIR "/deploy/README.md");
  std::vector<std::string> listed;
  for (std::string line; std::getline(document, line);) {
    if (line.starts_with("| `recurve_") || line.starts_with("| `process_")) listed.push_back(line);
  }
  EXPECT_FALSE(listed.empty());
  EXPECT_THAT(listed, UnorderedElementsAreArray(table_rows(metrics.text())));
}

}  // namespace recurve::metrics_test
