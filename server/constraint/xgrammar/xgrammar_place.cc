#include "server/constraint/xgrammar/xgrammar_place.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "earley_parser.h"

namespace xgrammar {
// Defined by deploy/xgrammar.sh in the source that defines the matcher.
const EarleyParser& ParserOf(const GrammarMatcher& matcher);
}  // namespace xgrammar

namespace recurve {
namespace {

using xgrammar::EarleyParser;
using xgrammar::ParserState;

// Access to protected members of a parser.
class Parser : public EarleyParser {
 public:
  static auto states(const EarleyParser& parser) {
    const auto& history = parser.*(&Parser::scanable_state_history_);
    return history[history.size() - 1];
  }
  static auto waiting_at(const EarleyParser& parser, int32_t position) {
    return (parser.*(&Parser::rule_id_to_completable_states_))[position];
  }
  static bool counts_tokens(const EarleyParser& parser) {
    return parser.*(&Parser::has_budget_rules_) || parser.*(&Parser::has_char_budget_rules_);
  }
};

// Writes the states that read the next byte, then those that wait for the end of their rules, then
// those that wait for these, and so on. The position at which a rule began only determines which
// states wait for its end, so rules are numbered in the order in which they are found.
class Place {
 public:
  explicit Place(const EarleyParser& parser) : parser_(parser) {
    for (const ParserState& state : Parser::states(parser_)) add(state);
    for (size_t next = 0; next < begun_.size() && !is_long(); ++next) {
      const auto [position, rule] = begun_[next];
      put(-2);
      for (const auto& [awaited, state] : Parser::waiting_at(parser_, position)) {
        if (awaited == rule) add(state);
        if (++waiting_ > kMostWaiting || is_long()) return;
      }
    }
  }

  // Empty if there are too many states.
  std::string bytes() const {
    if (waiting_ > kMostWaiting || is_long()) return "";
    return std::string(reinterpret_cast<const char*>(words_.data()),
                       words_.size() * sizeof(int32_t));
  }

 private:
  static constexpr int kMostWaiting = 4096;  // states

  bool is_long() const { return words_.size() * sizeof(int32_t) > kMostPlaceBytes; }
  void put(int32_t word) { words_.push_back(word); }
  void add(const ParserState& state) {
    put(state.rule_id);
    put(state.sequence_id);
    put(state.element_id);
    put(state.sub_element_id);
    put(state.repeat_count);
    put(state.partial_codepoint);
    put(state.active_temperature_rule_id);
    put(number(state));
  }
  // The number of the state's rule and its beginning; -1: the text ends with it.
  int32_t number(const ParserState& state) {
    if (state.rule_start_pos == ParserState::kNoPrevInputPos) return -1;
    const std::pair<int32_t, int32_t> one(state.rule_start_pos, state.rule_id);
    const auto number = std::find(begun_.begin(), begun_.end(), one) - begun_.begin();
    if (number == static_cast<std::ptrdiff_t>(begun_.size())) begun_.push_back(one);
    return static_cast<int32_t>(number);
  }

  const EarleyParser& parser_;
  std::vector<std::pair<int32_t, int32_t>> begun_;  // (where in the text, rule)
  std::vector<int32_t> words_;
  int waiting_ = 0;
};

}  // namespace

std::string place_of(const xgrammar::GrammarMatcher& matcher) {
  const EarleyParser& parser = xgrammar::ParserOf(matcher);
  return Parser::counts_tokens(parser) ? std::string() : Place(parser).bytes();
}

}  // namespace recurve
