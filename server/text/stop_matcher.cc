#include "server/text/stop_matcher.h"

#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace recurve {
namespace {

static_assert(StopMatcher::kMaxStopBytes <= UINT16_MAX);

std::vector<uint16_t> borders(std::string_view text) {
  std::vector<uint16_t> border(text.size(), 0);
  for (size_t i = 1; i < text.size(); ++i) {
    uint16_t length = border[i - 1];
    while (length > 0 && text[length] != text[i]) length = border[length - 1u];
    border[i] = text[length] == text[i] ? static_cast<uint16_t>(length + 1) : uint16_t{0};
  }
  return border;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  if (stops.size() > kMaxStops) {
    throw std::invalid_argument(
        fmt::format("{} stop strings, at most {} are allowed", stops.size(), kMaxStops));
  }
  std::vector<Stop> all;
  for (std::string& text : stops) {
    if (text.empty() || text.size() > kMaxStopBytes) {
      throw std::invalid_argument(fmt::format("a stop string has {} bytes, it must have 1 to {}",
                                              text.size(), kMaxStopBytes));
    }
    std::vector<uint16_t> border = borders(text);
    all.push_back({std::move(text), std::move(border)});
  }
  states_.resize(all.size());
  stops_ = std::make_shared<const std::vector<Stop>>(std::move(all));
}

std::string StopMatcher::feed(std::string_view text) {
  if (matched()) return {};
  if (states_.empty()) return std::string(text);
  for (const char c : text) {
    held_.push_back(c);
    for (size_t i = 0; i < states_.size(); ++i) states_[i] = advance((*stops_)[i], states_[i], c);
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
uint16_t StopMatcher::advance(const Stop& stop, uint16_t state, char byte) {
  while (state > 0 && stop.text[state] != byte) state = stop.border[state - 1u];
  if (stop.text[state] == byte) ++state;
  return state;
}

std::optional<size_t> StopMatcher::longest_complete() const {
  std::optional<size_t> best;
  for (size_t i = 0; i < states_.size(); ++i) {
    const size_t size = (*stops_)[i].text.size();
    if (states_[i] == size && (!best || size > (*stops_)[*best].text.size())) best = i;
  }
  return best;
}

size_t StopMatcher::longest_partial() const {
  return states_.empty() ? 0 : *std::max_element(states_.begin(), states_.end());
}

}  // namespace recurve
