#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace recurve {

// Finds stop strings in a text that arrives in pieces, wherever the borders between pieces fall.
//
// The match is the one that ends first; of those that end at the same byte, the longest. It and
// everything after it is cut off. So the outcome does not depend on how the text was cut, and
// generation ends with the token that completes a stop string.
//
// One Knuth-Morris-Pratt automaton a stop string: O(kMaxStops) amortised per byte. One stream, one
// thread. Copies share the automata: a choice costs a few bytes a stop string, however long it is.
class StopMatcher {
 public:
  static constexpr size_t kMaxStops = 16;
  static constexpr size_t kMaxStopBytes = 1024;

  // Throws std::invalid_argument on more than kMaxStops strings, an empty one, or one longer than
  // kMaxStopBytes.
  explicit StopMatcher(std::vector<std::string> stops);

  // The text that may be shown now: all but the longest suffix that may yet become a stop string.
  // Whole characters in, whole characters out (if the stop strings are valid UTF-8). Empty once
  // something has matched.
  std::string feed(std::string_view text);

  // What was held back, when the text ends without a match. Empty after a match.
  std::string finish();

  bool matched() const { return match_.has_value(); }
  // Index of the stop string that matched, in the order given to the constructor.
  std::optional<size_t> match() const { return match_; }
  // Its text; matched() must be true.
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
  std::vector<uint16_t> states_;  // of each stop string: bytes of it that the input ends with
  std::string held_;
  std::optional<size_t> match_;
};

}  // namespace recurve
