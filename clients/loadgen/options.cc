#include "clients/loadgen/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <stdexcept>
#include <thread>

#include "clients/cpp/tls_flags.h"
#include "server/command_line/program_page.h"
#include "server/startup/flag_values.h"
#include "server/startup/usage.h"
#include "server/startup/version.h"

namespace recurve::loadgen {
namespace {

constexpr const char* kAbout =
    "Send load to a Recurve server, and report the latencies and rates that its users see.\n\n"
    "  recurve-loadgen                      8 streams; each sends its next request after its "
    "answer\n"
    "  recurve-loadgen --streams 64         64 streams, for the highest throughput\n"
    "  recurve-loadgen --rate 5             5 requests a second, Poisson: latency as users see it\n"
    "  recurve-loadgen --sweep --html r.html  the highest rate that holds the service level\n"
    "  recurve-loadgen --trace day.csv      the arrivals and lengths in a file\n\n"
    "Prompts are random token ids, unless --prompts gives texts. Answers have exactly the "
    "length\nthat was drawn. Latency is measured from the time at which a request was due to be "
    "sent, so it\nincludes every stall of the server and of the load generator.";

constexpr const char* kFooter =
    "A LENGTH is a number (64), uniform:LOW-HIGH, or lognormal:MEDIAN,SIGMA (lognormal:1024,0.5).\n"
    "A trace has a request a line: ARRIVAL_SECONDS,PROMPT_TOKENS,OUTPUT_TOKENS, or JSON:\n"
    "{\"arrival\": 0.25, \"prompt_tokens\": 374, \"output_tokens\": 44}.\n"
    "The format of --json is documented in clients/loadgen/report/report_json.h.\n\n"
    "Exit codes: 0 done; 1 no request was answered, or the server failed; 2 wrong use; 3 no "
    "server\n"
    "can be reached; 4 it is loading its model or draining; 130 interrupted (the report covers the "
    "time until then).\n";

// A check that does not crowd the help with its bounds; what it refuses names them.
template <class T>
CLI::Validator within(T low, T high) {
  return CLI::Range(low, high).description("");
}

void add_load(CLI::App& app, Options* o) {
  const auto streams =
      app.add_option("--streams", o->streams, "Run a closed loop of this many streams [8]");
  const auto rate = app.add_option("--rate", o->rate,
                                   "Run an open loop with this many new conversations a "
                                   "second");
  const auto sweep = app.add_flag("--sweep", o->sweep,
                                  "Run open loops at several rates: find the highest that meets "
                                  "the service level, then run one at twice that rate");
  streams->check(within(1, 100'000))->excludes(rate)->excludes(sweep)->group("Load");
  rate->check(within(1e-3, 1e6))->excludes(sweep)->group("Load");
  sweep->group("Load");
  takes_names<ArrivalKind>(
      app.add_option("--arrivals", o->arrivals, "Arrival process of an open loop [poisson]"),
      {{"poisson", ArrivalKind::kPoisson}, {"constant", ArrivalKind::kConstant}})
      ->group("Load");
  app.add_option(
         "--sweep-start", o->sweep_first_rate,
         "First rate of the sweep [70 % of the rate that a closed loop of all slots reaches]")
      ->check(within(1e-3, 1e6))
      ->needs(sweep)
      ->group("Load");
  app.add_option("--sweep-precision", o->sweep_precision, "Relative precision of the highest rate")
      ->check(within(0.005, 0.5))
      ->needs(sweep)
      ->capture_default_str()
      ->group("Load");
  app.add_option("--max-running", o->max_running,
                 "Open loop: maximum requests at once; further ones are not sent and count as "
                 "failed")
      ->check(within(1, 1'000'000))
      ->capture_default_str()
      ->group("Load");
}

struct Texts {
  std::string prompt = "128", output = "64", think = "0";
};

void add_workload(CLI::App& app, Options* o, Texts* texts) {
  WorkloadOptions& w = o->workload;
  const auto add = [&](const char* flags, auto& value, const char* what) {
    return app.add_option(flags, value, what)->capture_default_str()->group("Requests");
  };
  add("--prompt-tokens", texts->prompt, "Length of prompts, in tokens")->type_name("LENGTH");
  add("--output-tokens", texts->output, "Length of answers, in tokens")->type_name("LENGTH");
  app.add_option("--trace", o->trace_file,
                 "Use the arrivals and lengths in this file; with --streams, --rate or --sweep "
                 "only the lengths")
      ->type_name("FILE")
      ->group("Requests");
  add("--trace-speed", o->trace_speed, "Speed relative to the trace")->check(within(1e-3, 1e3));
  app.add_option("--prompts", o->prompts_file,
                 "Use the texts in this file as prompts, one a line, in "
                 "turn")
      ->type_name("FILE")
      ->group("Requests");
  add("--model", o->run.model, "Name of a model of the server [default: its first]");
  add("--turns", w.turns, "Requests of a conversation; above 1 they share a session")
      ->check(within(1, 10'000));
  takes_names<v1::Durability>(
      app.add_option(
          "--durability", o->run.durability,
          "Durability of sessions, of which each conversation has one unless none; a turn "
          "whose answer was lost or refused is repeated [none]"),
      {{"none", v1::DURABILITY_NONE},
       {"local", v1::DURABILITY_LOCAL},
       {"remote", v1::DURABILITY_REMOTE}})
      ->group("Requests");
  app.add_flag("--leave-open", o->run.leave_open, "Do not close sessions")->group("Requests");
  add("--think", texts->think, "Pause before each further turn, in seconds")->type_name("LENGTH");
  add("--forks", w.forks, "Answers to each prompt, from copies of its state")
      ->check(within(1, 1000));
  add("--temperature", o->run.temperature, "Temperature of sampling; 0: greedy")
      ->check(within(0.0, 1000.0));
  add("--seed", w.seed, "Seed; the same seed gives the same requests");
}

void add_time(CLI::App& app, Options* o) {
  const auto add = [&](const char* flags, double& value, double least, const char* what) {
    app.add_option(flags, value, what)
        ->capture_default_str()
        ->check(within(least, 1e6))
        ->type_name("SECONDS")
        ->group("Time");
  };
  add("--warmup", o->run.warmup_seconds, 0, "Load before the measured time");
  add("--duration", o->run.measured_seconds, 0.05,
      "Measured time [in a sweep: of each trial, 10 and 2 of warm-up; with a trace: its length]");
  add("--cooldown", o->run.cooldown_seconds, 0,
      "Continue the load until all measured requests have ended, at most this long; the rest is "
      "cancelled and counts as failed");
  app.add_option("--timeout", o->run.timeout_seconds, "Deadline of each request [none]")
      ->check(within(1e-3, 1e6))
      ->type_name("SECONDS")
      ->group("Time");
}

void add_output(CLI::App& app, Options* o, double* ttft_ms, double* tpot_ms) {
  app.add_option("--ttft-ms", *ttft_ms,
                 "Longest time to the first token that meets the service "
                 "level; milliseconds")
      ->capture_default_str()
      ->check(within(1e-3, 1e9))
      ->group("Service level");
  app.add_option("--tpot-ms", *tpot_ms,
                 "Longest time per further token that meets the service "
                 "level; milliseconds")
      ->capture_default_str()
      ->check(within(1e-3, 1e9))
      ->group("Service level");
  app.add_option("--html", o->html_file,
                 "Write a report with charts to this file, which needs no other files")
      ->type_name("FILE")
      ->group("Output");
  app.add_option("--json", o->json_file,
                 "Write all figures and histograms to this file; -: "
                 "standard output")
      ->type_name("FILE")
      ->group("Output");
  app.add_option("--answers", o->answers_file,
                 "Write the token ids of each answer to this file, a JSON object a line")
      ->type_name("FILE")
      ->group("Output");
  app.add_flag("--quiet", o->quiet, "Print no progress on standard error")->group("Output");
  app.add_option("--workers", o->run.workers, "Threads, each with its own connection")
      ->check(within(1, 256))
      ->capture_default_str()
      ->group("Client");
}

void read_files(Options* o, const Texts& texts) {
  o->workload.prompt_tokens = Distribution::parse(texts.prompt, "--prompt-tokens");
  o->workload.output_tokens = Distribution::parse(texts.output, "--output-tokens");
  o->workload.think_seconds = Distribution::parse(texts.think, "--think");
  if (!o->trace_file.empty()) o->workload.trace = read_trace(o->trace_file);
  if (!o->prompts_file.empty()) o->workload.prompts = read_prompts(o->prompts_file);
}

// If the trace gives the arrivals, it also sets the duration of the run; a sweep has many trials.
void choose_load(const CLI::App& app, Options* o) {
  if (o->sweep && app.count("--warmup") == 0) o->run.warmup_seconds = 2;
  if (o->sweep && app.count("--duration") == 0) o->run.measured_seconds = 10;
  if (o->streams || o->rate || o->sweep) return;
  if (o->trace_file.empty()) {
    o->streams = 8;
    return;
  }
  o->arrivals = ArrivalKind::kTrace;
  if (app.count("--warmup") == 0) o->run.warmup_seconds = 0;
  if (app.count("--duration") > 0) return;
  const auto& rows = o->workload.trace;
  o->run.measured_seconds = std::max(rows.back().arrival / o->trace_speed * 1.0001, 0.1);
}

}  // namespace

int parse_options(int argc, char** argv, Options* o) {
  CLI::App app(kAbout, "recurve-loadgen");
  app.footer(kFooter);
  app.failure_message([](const CLI::App* program, const CLI::Error& error) {
    return fmt::format("recurve-loadgen: {}\nRun with --help for more information.\n",
                       usage_text(*program, error));
  });
  app.set_version_flag("-V,--version", version_line("recurve-loadgen"),
                       "Print the version and the commit and exit");
  add_page_flag(app);
  Texts texts;
  double ttft_ms = o->run.level.ttft_seconds * 1e3, tpot_ms = o->run.level.tpot_seconds * 1e3;
  o->run.workers = std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 1, 8);
  app.add_option("--server", o->server, "Address of the server")
      ->capture_default_str()
      ->type_name("HOST:PORT")
      ->envname("RECURVE_SERVER");
  add_tls_flags(app, &o->tls);
  const KeyFlag key(app);
  add_load(app, o);
  add_workload(app, o, &texts);
  add_time(app, o);
  add_output(app, o, &ttft_ms, &tpot_ms);
  try {
    app.parse(argc, argv);
    read_files(o, texts);
    o->key = key.key();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "recurve-loadgen: {}\n", error.what());
    return 2;
  }
  o->run.level = {.ttft_seconds = ttft_ms * 1e-3, .tpot_seconds = tpot_ms * 1e-3};
  choose_load(app, o);
  return -1;
}

}  // namespace recurve::loadgen
