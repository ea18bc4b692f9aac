#include "clients/loadgen/report/report_html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "clients/loadgen/report/svg_chart.h"

namespace recurve::loadgen {
namespace {

constexpr const char* kStyle = R"(
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; background: #fff; max-width: 800px;
       margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.6em; margin-bottom: 0.2em; } h2 { font-size: 1.25em; margin-top: 2em; }
table { border-collapse: collapse; margin: 0.8em 0; }
th, td { padding: 3px 12px 3px 0; text-align: left; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
thead th { border-bottom: 1px solid #9aa5b1; } .quiet { color: #616e7c; }
.cards { display: flex; flex-wrap: wrap; gap: 12px; margin: 1em 0; }
.card { border: 1px solid #cbd2d9; border-radius: 6px; padding: 8px 14px; min-width: 130px; }
.card b { display: block; font-size: 1.5em; } .card span { color: #616e7c; font-size: 0.9em; }
.bad b, .bad { color: #b91c1c; } .held b { color: #15803d; }
.warning { border-left: 4px solid #d97706; padding-left: 10px; margin: 6px 0; }
code { background: #f0f2f4; padding: 1px 4px; border-radius: 3px; word-break: break-all; }
svg { max-width: 100%; height: auto; margin-top: 1em; }
svg text { font: 12px system-ui, sans-serif; fill: #3e4c59; }
svg text.title { font-size: 14px; font-weight: 600; fill: #1f2933; }
svg text.note { font-size: 11px; stroke: none; paint-order: stroke; }
.grid { stroke: #e4e7eb; fill: none; } .axis { stroke: #7b8794; fill: none; }
.line { fill: none; stroke-width: 2; } .shade { fill: #eef1f4; }
.blue.line { stroke: #2563eb; } .blue.dot, rect.blue { fill: #2563eb; }
.orange.line { stroke: #d97706; } .orange.dot, rect.orange { fill: #d97706; }
.red.line { stroke: #b91c1c; } .red.dot, rect.red { fill: #b91c1c; } text.red { fill: #b91c1c; }
.gray.line { stroke: #7b8794; stroke-dasharray: 4 3; stroke-width: 1.2; }
rect.gray { fill: #7b8794; }
.level.line { stroke: #b91c1c; stroke-dasharray: 6 3; stroke-width: 1.4; }
text.level { fill: #b91c1c; } rect.level { fill: #b91c1c; }
)";

constexpr size_t kMostDots = 4000;  // of a timeline; more would only make the page heavy

std::string cell(const std::string& text) { return fmt::format("<td class=\"n\">{}</td>", text); }

std::string card(const std::string& value, const std::string& what, const char* style = "") {
  return fmt::format("<div class=\"card {}\"><b>{}</b><span>{}</span></div>\n", style, value, what);
}

// What was measured, and of what.
std::string head(const Report& report) {
  const auto row = [](const char* name, const std::string& value) {
    return fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", name, html_escape(value));
  };
  const RunOptions& o = report.options;
  std::string out =
      fmt::format("<h1>Load test of {}</h1>\n<table>\n", html_escape(report.server.model));
  out += row("Server", fmt::format("{}, Recurve {}: {}", report.server.address,
                                   report.server.version, describe(report.server)));
  out += row("Requests", report.workload);
  out += row("Time", fmt::format("{} UTC; {:g} s measured after {:g} s of warm-up", report.date,
                                 o.measured_seconds, o.warmup_seconds));
  out += row("Service level",
             fmt::format("the first token within {} ms (TTFT), each further one within {} ms on "
                         "average over the answer (TPOT)",
                         ms(o.level.ttft_seconds), ms(o.level.tpot_seconds)));
  out += fmt::format("<tr><th>Command</th><td><code>{}</code></td></tr>\n</table>\n",
                     html_escape(report.command));
  return out;
}

std::string cards(const Trial& trial, const ServiceLevel& level) {
  const Records& records = trial.result.records;
  const double ttft = records.ttft.quantile(0.99), tpot = records.tpot.quantile(0.99);
  return "<div class=\"cards\">\n" + card(fmt::format("{:.2f}/s", request_rate(trial)), "answers") +
         card(fmt::format("{:.0f}/s", token_rate(trial)), "tokens generated") +
         card(ms(ttft) + " ms", "to the first token, p99",
              ttft <= level.ttft_seconds ? "held" : "bad") +
         card(ms(tpot) + " ms", "per further token, p99",
              tpot <= level.tpot_seconds ? "held" : "bad") +
         card(fmt::format("{:.1f} %", 100 * good_share(trial)), "of requests within the level") +
         card(fmt::format("{}", error_count(trial)), "requests failed",
              error_count(trial) > 0 ? "bad" : "") +
         "</div>\n";
}

std::string latency_table(const Records& records) {
  std::string out =
      "<table><thead><tr><th>milliseconds</th><th class=\"n\">mean</th><th class=\"n\">p50</th>"
      "<th class=\"n\">p90</th><th class=\"n\">p99</th><th class=\"n\">max</th><th>what it is</th>"
      "</tr></thead>\n";
  for (const Metric& metric : kMetrics) {
    const Histogram& h = records.*metric.histogram;
    if (h.count() == 0) continue;
    out += fmt::format("<tr><th>{}</th>{}{}{}{}{}<td class=\"quiet\">{}</td></tr>\n", metric.title,
                       cell(ms(h.mean())), cell(ms(h.quantile(0.5))), cell(ms(h.quantile(0.9))),
                       cell(ms(h.quantile(0.99))), cell(ms(h.max())), metric.meaning);
  }
  return out + "</table>\n";
}

std::string notes(const Trial& trial) {
  std::string out;
  for (const auto& [code, count] : trial.result.records.errors) {
    out += fmt::format("<p class=\"warning bad\">{} requests failed with {}: {}</p>\n", count, code,
                       html_escape(trial.result.records.error_examples.at(code)));
  }
  for (const std::string& warning : warnings(trial)) {
    out += fmt::format("<p class=\"warning\">{}</p>\n", html_escape(warning));
  }
  const ClientCost& client = trial.result.client;
  out += fmt::format(
      "<p class=\"quiet\">The load generator itself: requests went out {} ms late (p99), answers "
      "waited {} ms for it (p99), {:.2f} cores used, busiest thread {:.0f} %.</p>\n",
      ms(trial.result.records.send_delay.quantile(0.99)), ms(client.handling_delay.quantile(0.99)),
      client.cpu_cores, 100 * client.busiest_worker);
  return out;
}

// Bars of equal width on a logarithmic axis, as high as their share of all.
std::string histogram_chart(const Metric& metric, const Histogram& histogram,
                            std::optional<double> limit) {
  constexpr int kBars = 60;
  constexpr double kHeadroom = 1.4;  // for the texts of the lines
  const double least = histogram.quantile(0.5) / 100;
  const char* cut = histogram.min() < least ? "; smaller ones are in the first bar" : "";
  const double low = std::max({histogram.quantile(0.001), least, 1e-6}) * 1e3;
  const double high = std::max(histogram.max() * 1e3, low * 1.5);
  const Axis x = Axis::log(fmt::format("{}, milliseconds{}", metric.title, cut), low,
                           limit ? std::max(high, *limit * 1e3) : high);
  std::vector<double> shares(kBars);
  for (const auto& bucket : histogram.buckets()) {
    const double middle = (bucket.low + bucket.high) / 2 * 1e3;
    const int bar = std::min(static_cast<int>(x.position(middle) * kBars), kBars - 1);
    shares[static_cast<size_t>(bar)] +=
        100 * static_cast<double>(bucket.count) / static_cast<double>(histogram.count());
  }
  SvgChart chart(fmt::format("{}: {}", metric.title, metric.meaning), x,
                 Axis::linear("share of all, percent",
                              kHeadroom * *std::max_element(shares.begin(), shares.end())));
  const double width = std::pow(x.high / x.low, 1.0 / kBars);
  for (int bar = 0; bar < kBars; ++bar) {
    const double left = x.low * std::pow(width, bar), share = shares[static_cast<size_t>(bar)];
    if (share > 0) chart.bar(left, left * width, share, "blue");
  }
  for (const double q : {0.5, 0.9, 0.99}) {
    const double value = histogram.quantile(q);
    chart.vertical(value * 1e3, "gray", fmt::format("p{:g} {} ms", q * 100, ms(value)));
  }
  if (limit) chart.vertical(*limit * 1e3, "level", fmt::format("limit {} ms", ms(*limit)));
  return chart.svg();
}

// A dot a request: when it was due and how long its first token took.
std::string requests_chart(const Trial& trial, const ServiceLevel& level) {
  const Records& records = trial.result.records;
  const size_t stride = records.points.size() / kMostDots + 1;
  std::vector<XY> good, late, failed;
  double low = level.ttft_seconds * 1e3, high = low, end = trial.result.window.end;
  for (size_t i = 0; i < records.points.size(); i += stride) {
    const Point& point = records.points[i];
    const double ttft = std::max(static_cast<double>(point.ttft) * 1e3, 1e-3);
    (point.failed ? failed : point.good ? good : late).push_back({point.due, ttft});
    low = std::min(low, ttft), high = std::max(high, ttft);
    end = std::max(end, static_cast<double>(point.due));
  }
  SvgChart chart(stride == 1 ? "Requests by the time they were due"
                             : fmt::format("Requests by the time they were due, one in {}", stride),
                 Axis::linear("seconds since the start", end),
                 Axis::log("TTFT, milliseconds", low, high));
  if (trial.result.window.begin > 0) chart.shade(0, trial.result.window.begin, "warm-up");
  if (end > trial.result.window.end) chart.shade(trial.result.window.end, end, "not measured");
  chart.dots(good, 2, "blue", "within the service level");
  chart.dots(late, 2, "orange", "too slow");
  chart.dots(failed, 2.5, "red", "failed (its time until then)");
  chart.horizontal(level.ttft_seconds * 1e3, "level", "service level");
  return chart.svg();
}

std::string rate_chart(const Trial& trial, const char* title, const char* label,
                       const std::function<void(SvgChart&, const std::vector<Second>&)>& draw,
                       const std::function<uint64_t(const Second&)>& highest) {
  const std::vector<Second>& seconds = trial.result.records.seconds;
  uint64_t high = 0;
  for (const Second& second : seconds) high = std::max(high, highest(second));
  SvgChart chart(title,
                 Axis::linear("seconds since the start", static_cast<double>(seconds.size())),
                 Axis::linear(label, static_cast<double>(high)));
  if (trial.result.window.begin > 0) chart.shade(0, trial.result.window.begin, "warm-up");
  if (trial.result.window.end < static_cast<double>(seconds.size())) {
    chart.shade(trial.result.window.end, static_cast<double>(seconds.size()), "not measured");
  }
  draw(chart, seconds);
  return chart.svg();
}

std::vector<XY> each_second(const std::vector<Second>& seconds, uint64_t Second::* count) {
  std::vector<XY> points;
  for (size_t s = 0; s < seconds.size(); ++s) {
    points.push_back({static_cast<double>(s), static_cast<double>(seconds[s].*count)});
  }
  if (!points.empty()) points.push_back({points.back().x + 1, points.back().y});
  return points;
}

std::string timeline(const Trial& trial, const ServiceLevel& level) {
  std::string out = requests_chart(trial, level);
  out += rate_chart(
      trial, "Tokens generated in each second", "tokens a second",
      [](SvgChart& chart, const std::vector<Second>& seconds) {
        chart.steps(each_second(seconds, &Second::tokens), "blue", "");
      },
      [](const Second& second) { return second.tokens; });
  out += rate_chart(
      trial, "Requests in each second", "requests a second",
      [](SvgChart& chart, const std::vector<Second>& seconds) {
        chart.steps(each_second(seconds, &Second::due), "orange", "due");
        chart.steps(each_second(seconds, &Second::ended), "blue", "answered");
        const auto failed = each_second(seconds, &Second::failed);
        const bool any =
            std::any_of(failed.begin(), failed.end(), [](const XY& point) { return point.y > 0; });
        if (any) chart.steps(failed, "red", "failed");
      },
      [](const Second& second) { return std::max({second.due, second.ended, second.failed}); });
  return out;
}

std::optional<double> limit_of(const Metric& metric, const ServiceLevel& level) {
  if (metric.histogram == &Records::ttft) return level.ttft_seconds;
  if (metric.histogram == &Records::tpot) return level.tpot_seconds;
  return std::nullopt;
}

std::string trial_section(const Trial& trial, const ServiceLevel& level) {
  const Records& records = trial.result.records;
  std::string out = cards(trial, level) + notes(trial) + latency_table(records);
  out += "<h3>Over time</h3>\n" + timeline(trial, level);
  out += "<h3>How the latencies are distributed</h3>\n";
  for (const Metric& metric : kMetrics) {
    const Histogram& histogram = records.*metric.histogram;
    if (histogram.count() == 0) continue;
    out += histogram_chart(metric, histogram, limit_of(metric, level));
  }
  return out;
}

std::vector<const Trial*> by_rate(const Report& report) {
  std::vector<const Trial*> trials;
  for (const Trial& trial : report.trials) trials.push_back(&trial);
  std::sort(trials.begin(), trials.end(),
            [](const Trial* a, const Trial* b) { return a->rate < b->rate; });
  return trials;
}

std::vector<XY> curve(const std::vector<const Trial*>& trials,
                      const std::function<double(const Trial&)>& y) {
  std::vector<XY> points;
  for (const Trial* trial : trials) points.push_back({trial->rate.value_or(0), y(*trial)});
  return points;
}

// The 99th percentile of a latency over the offered rate.
std::string latency_curve(const Report& report, const Metric& metric, double limit) {
  const auto trials = by_rate(report);
  const auto p99 = curve(trials, [&](const Trial& trial) {
    return std::max((trial.result.records.*metric.histogram).quantile(0.99) * 1e3, 1e-3);
  });
  double low = limit * 1e3, high = low;
  for (const XY& point : p99) low = std::min(low, point.y), high = std::max(high, point.y);
  SvgChart chart(fmt::format("{} p99 over the rate that was offered", metric.title),
                 Axis::linear("conversations that begin a second", p99.back().x),
                 Axis::log(fmt::format("{} p99, milliseconds", metric.title), low, high));
  chart.line(p99, "blue", "");
  chart.dots(p99, 4, "blue", "");
  chart.horizontal(limit * 1e3, "level", fmt::format("service level {} ms", ms(limit)));
  if (*report.highest_rate > 0) {
    chart.vertical(*report.highest_rate, "gray",
                   fmt::format("highest that held: {:.3g}/s", *report.highest_rate));
  }
  return chart.svg();
}

std::string throughput_curve(const Report& report) {
  const auto trials = by_rate(report);
  const auto due = curve(trials, [](const Trial& trial) {
    return static_cast<double>(trial.result.records.requests) /
           (trial.result.window.end - trial.result.window.begin);
  });
  double high = 0;
  for (const XY& point : due) high = std::max(high, point.y);
  SvgChart chart("What becomes of the requests",
                 Axis::linear("conversations that begin a second", due.back().x),
                 Axis::linear("requests a second", high));
  chart.line(due, "gray", "due");
  const auto answered = curve(trials, request_rate);
  chart.line(answered, "orange", "answered (when they ended)");
  chart.dots(answered, 4, "orange", "");
  const auto good = curve(trials, goodput);
  chart.line(good, "blue", "of those due, answered within the service level (goodput)");
  chart.dots(good, 4, "blue", "");
  return chart.svg();
}

std::string sweep_table(const Report& report) {
  std::string out =
      "<table><thead><tr><th class=\"n\">rate/s</th><th class=\"n\">answers/s</th>"
      "<th class=\"n\">good/s</th><th class=\"n\">tokens/s</th><th class=\"n\">TTFT p99</th>"
      "<th class=\"n\">TPOT p99</th><th class=\"n\">failed</th><th>held</th></tr></thead>\n";
  for (const Trial* trial : by_rate(report)) {
    const Records& records = trial->result.records;
    const bool held = holds(*trial, report.options.level);
    out += fmt::format("<tr>{}{}{}{}{}{}{}<td{}>{}</td></tr>\n",
                       cell(fmt::format("{:.2f}", trial->rate.value_or(0))),
                       cell(fmt::format("{:.2f}", request_rate(*trial))),
                       cell(fmt::format("{:.2f}", goodput(*trial))),
                       cell(fmt::format("{:.0f}", token_rate(*trial))),
                       cell(ms(records.ttft.quantile(0.99)) + " ms"),
                       cell(ms(records.tpot.quantile(0.99)) + " ms"),
                       cell(fmt::format("{}", error_count(*trial))), held ? "" : " class=\"bad\"",
                       held ? "yes" : "no");
  }
  return out + "</table>\n";
}

std::string sweep_section(const Report& report) {
  const ServiceLevel& level = report.options.level;
  std::string out = "<h2>Which rate holds the service level?</h2>\n";
  out += *report.highest_rate > 0
             ? fmt::format(
                   "<p><b>{:.2f} conversations a second</b> is the highest rate that was "
                   "tried at which 99 % of the requests held it.</p>\n",
                   *report.highest_rate)
             : std::string("<p class=\"bad\">None of those that were tried.</p>\n");
  return out + latency_curve(report, kMetrics[0], level.ttft_seconds) +
         latency_curve(report, kMetrics[1], level.tpot_seconds) + throughput_curve(report) +
         sweep_table(report);
}

// Trials of a sweep are folded, but for the one that answers its question.
std::string trials_section(const Report& report) {
  std::string out;
  for (const Trial& trial : report.trials) {
    const std::string section = trial_section(trial, report.options.level);
    if (report.trials.size() == 1) {
      out += fmt::format("<h2>{}</h2>\n{}", html_escape(trial.load), section);
    } else {
      out += fmt::format("<details{}><summary><b>{}</b></summary>\n{}</details>\n",
                         trial.rate == report.highest_rate ? " open" : "", html_escape(trial.load),
                         section);
    }
  }
  return out;
}

}  // namespace

std::string to_html(const Report& report) {
  std::string body = head(report);
  if (report.highest_rate && !report.trials.empty()) {
    body += sweep_section(report) + "<h2>The runs</h2>\n";
  }
  body += trials_section(report);
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width\"><title>Load test of {}</title>\n"
      "<style>{}</style></head>\n<body>\n{}</body></html>\n",
      html_escape(report.server.model), kStyle, body);
}

}  // namespace recurve::loadgen
