// recurve-loadgen: loads a Recurve server and reports what its users would have seen.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <system_error>

#include "clients/cpp/exit_code.h"
#include "clients/cpp/same_stop.h"
#include "clients/loadgen/load_test.h"
#include "clients/loadgen/options.h"
#include "clients/loadgen/report/report_html.h"
#include "clients/loadgen/report/report_json.h"
#include "clients/loadgen/report/report_table.h"

namespace recurve::loadgen {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

std::atomic<bool> interrupted = false;
std::atomic<SteadyTime> interrupted_at = SteadyTime();
static_assert(std::atomic<SteadyTime>::is_always_lock_free);  // a signal handler uses it

void on_interrupt(int number) {
  const SteadyTime now = std::chrono::steady_clock::now();
  SteadyTime first;
  if (interrupted_at.compare_exchange_strong(first, now)) {
    interrupted = true;
  } else if (now - first >= kSameStop) {
    signal(number, SIG_DFL);
    raise(number);
  }
}

// The first Ctrl-C ends the run with a report, the second ends the process.
void catch_interrupts() {
  struct sigaction action{};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

// A line on standard error: in place on a terminal, else every few seconds.
class ProgressLine {
 public:
  explicit ProgressLine(bool quiet) : quiet_(quiet) {}

  void show(const RunProgress& progress) {
    if (quiet_ || (!terminal_ && progress.now < next_ && progress.now > next_ - kPause)) return;
    next_ = progress.now + kPause;
    if (terminal_) {
      fmt::print(stderr, "\r\033[K{}", progress_text(progress));
    } else {
      fmt::print(stderr, "{}\n", progress_text(progress));
    }
    std::fflush(stderr);
  }
  void clear() {
    if (terminal_ && !quiet_) fmt::print(stderr, "\r\033[K");
    next_ = 0;
  }

 private:
  static constexpr double kPause = 5;
  const bool quiet_;
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  double next_ = 0;
};

void write_file(const std::string& name, const std::string& text) {
  if (name == "-") {
    fmt::print("{}", text);
    return;
  }
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(name.c_str(), "w"), &std::fclose);
  if (!file || std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() ||
      std::fflush(file.get()) != 0) {
    throw std::system_error(errno, std::generic_category(), name + " cannot be written");
  }
}

// Writes each answer, from any thread.
class AnswerFile {
 public:
  explicit AnswerFile(const std::string& name) : name_(name), file_(std::fopen(name.c_str(), "w")) {
    if (!file_) throw unwritten();
  }
  ~AnswerFile() { std::fclose(file_); }
  AnswerFile(const AnswerFile&) = delete;
  AnswerFile& operator=(const AnswerFile&) = delete;

  void write(const Answered& answer) {
    const nlohmann::json line = {{"session", answer.session},
                                 {"conversation", answer.conversation},
                                 {"turn", answer.turn},
                                 {"ids", answer.ids}};
    const std::string text = line.dump() + "\n";
    std::lock_guard lock(mutex_);
    std::fwrite(text.data(), 1, text.size(), file_);
  }
  // Throws std::system_error if the file does not have all of it.
  void finish() {
    std::lock_guard lock(mutex_);
    if (std::fflush(file_) != 0 || std::ferror(file_) != 0) throw unwritten();
  }

 private:
  std::system_error unwritten() const {
    return {errno, std::generic_category(), name_ + " cannot be written"};
  }
  const std::string name_;
  FILE* const file_;
  std::mutex mutex_;
};

std::string command_line(int argc, char** argv) {
  std::string text = "recurve-loadgen";
  for (int i = 1; i < argc; ++i) text += fmt::format(" {}", argv[i]);
  return text;
}

int exit_code_of(const Report& report) {
  if (interrupted) return kExitInterrupted;
  const bool answered =
      std::any_of(report.trials.begin(), report.trials.end(), [](const Trial& trial) {
        return trial.result.records.total.count() > 0 || only_rates(trial);
      });
  return answered ? kExitOk : kExitFailed;
}

int run(Options options, const std::string& command) {
  std::optional<AnswerFile> answers;
  if (!options.answers_file.empty()) {
    answers.emplace(options.answers_file);
    options.run.on_answer = [&](const Answered& answer) { answers->write(answer); };
  }
  ProgressLine line(options.quiet);
  // Standard output is either for people or for programs.
  FILE* const out = options.json_file == "-" ? stderr : stdout;
  const LoadTestEvents events{
      .on_begin =
          [&](const Report& report) {
            fmt::print(out, "{}", head_text(report));
            std::fflush(out);
          },
      .on_progress = [&](const RunProgress& progress) { line.show(progress); },
      .on_trial =
          [&](const Trial& trial) {
            line.clear();
            fmt::print(out, "{}", trial_text(trial, options.run));
            std::fflush(out);
          }};
  const std::string date = fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::gmtime(std::time(nullptr)));
  Report report = run_load_test(options, events, interrupted);
  if (answers) answers->finish();
  report.date = date;
  report.command = command;
  if (report.highest_rate) fmt::print(out, "{}", sweep_text(report));
  if (!options.json_file.empty()) write_file(options.json_file, to_json(report).dump() + "\n");
  if (!options.html_file.empty()) write_file(options.html_file, to_html(report));
  return exit_code_of(report);
}

int run_and_report(int argc, char** argv) {
  Options options;
  const int status = parse_options(argc, argv, &options);
  if (status >= 0) return status;
  try {
    return run(options, command_line(argc, argv));
  } catch (const ClientError& error) {
    fmt::print(stderr, "recurve-loadgen: {}\n", error.what());
    if (!error.hint().empty()) fmt::print(stderr, "recurve-loadgen: {}\n", error.hint());
    return exit_code(error);
  } catch (const std::invalid_argument& error) {
    fmt::print(stderr, "recurve-loadgen: {}\n", error.what());
    return kExitUsage;
  } catch (const std::exception& error) {
    fmt::print(stderr, "recurve-loadgen: {}\n", error.what());
    return kExitFailed;
  }
}

}  // namespace
}  // namespace recurve::loadgen

int main(int argc, char** argv) {
  recurve::loadgen::catch_interrupts();
  signal(SIGPIPE, SIG_IGN);
  return recurve::loadgen::run_and_report(argc, argv);
}
