#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace recurve {

// Finds stop strings in a text that arrives in parts.
//
// The match is the one that ends first; of several that end at the same byte, the longest. The
// output ends before it. The result does not depend on how the text is divided into parts, and
// generation ends with the token that completes a stop string.
//
// One Knuth-Morris-Pratt automaton per stop string: amortised O(kMaxStops) per byte. For one stream
// in one thread. Copies share the automata: a copy takes a few bytes per stop string.
class StopMatcher {
 public:
  static constexpr size_t kMaxStops = 16;
  static constexpr size_t kMaxStopBytes = 1024;

  // Throws std::invalid_argument on more than kMaxStops strings, an empty one, or one longer than
  // kMaxStopBytes.
  explicit StopMatcher(std::vector<std::string> stops);

  // The text that can be sent now: all but the longest suffix that may be the beginning of a stop
  // string. Takes and returns whole characters (if the stop strings are valid UTF-8). Empty after a
  // match.
  std::string feed(std::string_view text);

  // The text held back when the input ends without a match. Empty after a match.
  std::string finish();

  bool matched() const { return match_.has_value(); }
  // Index of the stop string that matched, in the order given to the constructor.
  std::optional<size_t> match() const { return match_; }
  // Its text. Requires matched().
  const std::string& matched_text() const { return (*stops_)[*match_].text; }

 private:
  struct Stop {
    std::string text;
    std::vector<uint16_t> border;  // [i]: longest proper border of text[0..i]
  };

  static uint16_t advance(const Stop& stop, uint16_t state, char byte);
  std::optional<size_t> longest_complete() const;
  size_t longest_partial() const;

  std::shared_ptr<const std::vector<Stop>> stops_;
  std::vector<uint16_t> states_;  // per stop string: bytes of it that the input ends with
  std::string held_;
  std::optional<size_t> match_;
};

}  // namespace recurve
