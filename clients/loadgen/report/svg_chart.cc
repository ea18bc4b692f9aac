#include "clients/loadgen/report/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace recurve::loadgen {
namespace {

constexpr double kWidth = 760, kHeight = 300;
constexpr double kLeft = 70, kRight = 20, kTop = 52, kBottom = 50;
constexpr std::array<double, 3> kRoundSteps = {1, 2, 5};

// The largest of 1, 2, 5 times a power of ten that is at most `value`, or the smallest at least.
double round_down(double value) {
  const double power = std::pow(10, std::floor(std::log10(value)));
  double best = power;
  for (const double step : kRoundSteps) {
    if (step * power <= value * (1 + 1e-9)) best = step * power;
  }
  return best;
}
double round_up(double value) {
  const double below = round_down(value);
  if (below >= value * (1 - 1e-9)) return below;
  const double leading = below / std::pow(10, std::floor(std::log10(below) + 1e-9));
  return below * (leading < 1.5 ? 2 : leading < 3 ? 2.5 : 2);
}

std::string tick_text(double value) {
  if (value >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:g}", value);
}

}  // namespace

Axis Axis::linear(std::string label, double high) {
  Axis axis{.label = std::move(label)};
  const double step = round_up(std::max(high, 1e-9) / 5);
  axis.high = step * std::ceil(high / step - 1e-9);
  if (axis.high <= 0) axis.high = 1;
  return axis;
}

Axis Axis::log(std::string label, double low, double high) {
  low = std::max(low, 1e-6);
  return {std::move(label), round_down(low), std::max(round_up(high), round_down(low) * 10), true};
}

double Axis::position(double value) const {
  const double share = logarithmic ? std::log(std::max(value, low) / low) / std::log(high / low)
                                   : (value - low) / (high - low);
  return std::clamp(share, 0.0, 1.0);
}

std::vector<double> Axis::ticks() const {
  std::vector<double> ticks;
  if (!logarithmic) {
    const double step = round_up((high - low) / 6);
    for (double value = low; value <= high + step * 1e-6; value += step) ticks.push_back(value);
    return ticks;
  }
  const bool all_steps = high / low <= 2000;
  for (double power = std::pow(10, std::floor(std::log10(low) + 1e-9)); power <= high * 1.001;
       power *= 10) {
    for (const double step : kRoundSteps) {
      const double value = step * power;
      if (value < low * 0.999 || value > high * 1.001 || (step > 1 && !all_steps)) continue;
      ticks.push_back(value);
    }
  }
  return ticks;
}

std::string html_escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

SvgChart::SvgChart(std::string title, Axis x, Axis y)
    : title_(std::move(title)), x_(std::move(x)), y_(std::move(y)), legend_at_(kLeft) {}

double SvgChart::px(double x) const { return kLeft + x_.position(x) * (kWidth - kLeft - kRight); }
double SvgChart::py(double y) const {
  return kHeight - kBottom - y_.position(y) * (kHeight - kTop - kBottom);
}

void SvgChart::name(const std::string& style, const std::string& text) {
  if (text.empty()) return;
  legend_ += fmt::format(
      "<rect class=\"{} key\" x=\"{:.0f}\" y=\"30\" width=\"12\" height=\"8\"/>"
      "<text x=\"{:.0f}\" y=\"38\">{}</text>\n",
      style, legend_at_, legend_at_ + 17, html_escape(text));
  legend_at_ += 40 + 6.4 * static_cast<double>(text.size());
}

void SvgChart::line(const std::vector<XY>& points, const std::string& style,
                    const std::string& text) {
  if (points.empty()) return;
  std::string path;
  for (const XY& point : points) {
    path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "M" : "L", px(point.x), py(point.y));
  }
  marks_ += fmt::format("<path class=\"{} line\" d=\"{}\"/>\n", style, path);
  name(style, text);
}

void SvgChart::steps(const std::vector<XY>& points, const std::string& style,
                     const std::string& text) {
  std::vector<XY> corners;
  for (const XY& point : points) {
    if (!corners.empty()) corners.push_back({point.x, corners.back().y});
    corners.push_back(point);
  }
  line(corners, style, text);
}

void SvgChart::dots(const std::vector<XY>& points, double radius, const std::string& style,
                    const std::string& text) {
  if (points.empty()) return;
  marks_ += fmt::format("<g class=\"{} dot\">", style);
  for (const XY& point : points) {
    marks_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:g}\"/>", px(point.x),
                          py(point.y), radius);
  }
  marks_ += "</g>\n";
  name(style, text);
}

void SvgChart::bar(double low, double high, double y, const std::string& style) {
  const double left = px(low), right = px(high), top = py(y);
  marks_ += fmt::format(
      "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n", style,
      left, top, std::max(right - left - 0.5, 0.5), std::max(kHeight - kBottom - top, 0.5));
}

void SvgChart::shade(double low, double high, const std::string& text) {
  const bool at_right = px(low) > kWidth / 2;
  marks_ += fmt::format(
      "<rect class=\"shade\" x=\"{:.1f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"{:.0f}\"/>"
      "<text class=\"note\" x=\"{:.1f}\" y=\"{:.0f}\" text-anchor=\"{}\">{}</text>\n",
      px(low), kTop, px(high) - px(low), kHeight - kTop - kBottom,
      at_right ? px(high) - 4 : px(low) + 4, kTop + 12, at_right ? "end" : "start",
      html_escape(text));
}

void SvgChart::vertical(double x, const std::string& style, const std::string& text) {
  const double at = px(x), y = kTop + 11 + 13 * (texts_above_++ % 4);
  const bool at_right = at > kWidth - 150;  // the text goes to the other side there
  marks_ += fmt::format(
      "<path class=\"{} line\" d=\"M{:.1f},{:.0f}V{:.0f}\"/>"
      "<text class=\"{} note\" x=\"{:.1f}\" y=\"{:.0f}\" text-anchor=\"{}\">{}</text>\n",
      style, at, kTop, kHeight - kBottom, style, at_right ? at - 4 : at + 4, y,
      at_right ? "end" : "start", html_escape(text));
}

void SvgChart::horizontal(double y, const std::string& style, const std::string& text) {
  marks_ += fmt::format(
      "<path class=\"{} line\" d=\"M{:.0f},{:.1f}H{:.0f}\"/>"
      "<text class=\"{} note\" x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
      style, kLeft, py(y), kWidth - kRight, style, kWidth - kRight - 4, py(y) - 4,
      html_escape(text));
}

// Title, axes, ticks and grid.
std::string SvgChart::frame() const {
  const double bottom = kHeight - kBottom, right = kWidth - kRight;
  std::string out = fmt::format("<text class=\"title\" x=\"{}\" y=\"18\">{}</text>\n", kLeft,
                                html_escape(title_));
  for (const double tick : x_.ticks()) {
    out += fmt::format(
        "<path class=\"grid\" d=\"M{0:.1f},{1}V{2}\"/>"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>\n",
        px(tick), kTop, bottom, bottom + 17, tick_text(tick));
  }
  for (const double tick : y_.ticks()) {
    out += fmt::format(
        "<path class=\"grid\" d=\"M{0},{1:.1f}H{2}\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
        kLeft, py(tick), right, kLeft - 7, py(tick) + 4, tick_text(tick));
  }
  out += fmt::format("<path class=\"axis\" d=\"M{},{}V{}H{}\"/>\n", kLeft, kTop, bottom, right);
  out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                     (kLeft + right) / 2, kHeight - 12, html_escape(x_.label));
  const double middle = (kTop + bottom) / 2;
  out += fmt::format(
      "<text x=\"16\" y=\"{0}\" text-anchor=\"middle\" transform=\"rotate(-90 16 "
      "{0})\">{1}</text>\n",
      middle, html_escape(y_.label));
  return out;
}

std::string SvgChart::svg() const {
  return fmt::format(
      "<svg viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" "
      "aria-label=\"{2}\" xmlns=\"http://www.w3.org/2000/svg\">\n{3}{4}{5}</svg>\n",
      kWidth, kHeight, html_escape(title_), frame(), marks_, legend_);
}

}  // namespace recurve::loadgen
