#include "clients/loadgen/report/distribution.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string_view>

namespace recurve::loadgen {
namespace {

constexpr double kLogNormalCut = 16;

std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && std::isfinite(value) && value >= 0 ? std::optional(value) : std::nullopt;
}

struct Pair {
  double first, second;
};
// Two numbers with a sign between them.
std::optional<Pair> pair_of(std::string_view text, char sign) {
  const size_t at = text.find(sign);
  if (at == std::string_view::npos) return std::nullopt;
  const auto first = number_of(text.substr(0, at)), second = number_of(text.substr(at + 1));
  return first && second ? std::optional(Pair{*first, *second}) : std::nullopt;
}

}  // namespace

Distribution Distribution::parse(const std::string& text, const std::string& what) {
  constexpr std::string_view kUniform = "uniform:", kLogNormal = "lognormal:";
  const std::string_view view = text;
  Distribution result(0);
  if (const auto fixed = number_of(view)) {
    return Distribution(*fixed);
  }
  if (view.starts_with(kUniform)) {
    const auto bounds = pair_of(view.substr(kUniform.size()), '-');
    result.kind_ = Kind::kUniform;
    if (bounds && bounds->first <= bounds->second) {
      result.low_ = bounds->first, result.high_ = bounds->second;
      return result;
    }
  }
  if (view.starts_with(kLogNormal)) {
    const auto shape = pair_of(view.substr(kLogNormal.size()), ',');
    result.kind_ = Kind::kLogNormal;
    if (shape && shape->first > 0 && shape->second <= 5) {
      result.low_ = shape->first, result.high_ = shape->second;
      return result;
    }
  }
  throw std::invalid_argument(fmt::format(
      "{} is a number (64), uniform:LOW-HIGH (uniform:16-256) or lognormal:MEDIAN,SIGMA "
      "(lognormal:1024,0.5), with MEDIAN > 0 and SIGMA in [0, 5], not '{}'",
      what, text));
}

double Distribution::draw(Rng& rng) const {
  if (kind_ == Kind::kUniform) return std::uniform_real_distribution(low_, high_)(rng);
  if (kind_ == Kind::kLogNormal) {
    const double value = low_ * std::exp(high_ * std::normal_distribution()(rng));
    return std::min(value, kLogNormalCut * low_);
  }
  return low_;
}

int64_t Distribution::draw_tokens(Rng& rng, int64_t least, int64_t most) const {
  if (kind_ == Kind::kUniform) {
    std::uniform_int_distribution<int64_t> tokens(std::llround(low_), std::llround(high_));
    return std::clamp(tokens(rng), least, most);
  }
  return std::clamp<int64_t>(std::llround(draw(rng)), least, most);
}

std::string Distribution::text() const {
  if (kind_ == Kind::kUniform) return fmt::format("uniform:{}-{}", low_, high_);
  if (kind_ == Kind::kLogNormal) return fmt::format("lognormal:{},{}", low_, high_);
  return fmt::format("{}", low_);
}

}  // namespace recurve::loadgen
