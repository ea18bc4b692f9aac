#include "server/text/stop_matcher.h"

#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace recurve {
namespace {

std::vector<size_t> borders(std::string_view text) {
  std::vector<size_t> border(text.size(), 0);
  for (size_t i = 1; i < text.size(); ++i) {
    size_t length = border[i - 1];
    while (length > 0 && text[length] != text[i]) length = border[length - 1];
    border[i] = text[length] == text[i] ? length + 1 : 0;
  }
  return border;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  if (stops.size() > kMaxStops) {
    throw std::invalid_argument(
        fmt::format("{} stop strings, at most {} are allowed", stops.size(), kMaxStops));
  }
  for (std::string& text : stops) {
    if (text.empty() || text.size() > kMaxStopBytes) {
      throw std::invalid_argument(fmt::format("a stop string has {} bytes, it must have 1 to {}",
                                              text.size(), kMaxStopBytes));
    }
    std::vector<size_t> border = borders(text);
    stops_.push_back({std::move(text), std::move(border)});
  }
}

std::string StopMatcher::feed(std::string_view text) {
  if (matched()) return {};
  if (stops_.empty()) return std::string(text);
  for (const char c : text) {
    held_.push_back(c);
    for (Stop& stop : stops_) advance(stop, c);
    match_ = longest_complete();
    if (matched()) {
      held_.resize(held_.size() - matched_text().size());
      return std::exchange(held_, {});
    }
  }
  const size_t safe = held_.size() - longest_partial();
  std::string out = held_.substr(0, safe);
  held_.erase(0, safe);
  return out;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

// A complete stop string ends the match, so `state` is always less than the length here.
void StopMatcher::advance(Stop& stop, char byte) {
  while (stop.state > 0 && stop.text[stop.state] != byte) stop.state = stop.border[stop.state - 1];
  if (stop.text[stop.state] == byte) ++stop.state;
}

std::optional<size_t> StopMatcher::longest_complete() const {
  std::optional<size_t> best;
  for (size_t i = 0; i < stops_.size(); ++i) {
    if (stops_[i].state < stops_[i].text.size()) continue;
    if (!best || stops_[i].text.size() > stops_[*best].text.size()) best = i;
  }
  return best;
}

size_t StopMatcher::longest_partial() const {
  size_t longest = 0;
  for (const Stop& stop : stops_) longest = std::max(longest, stop.state);
  return longest;
}

}  // namespace recurve
