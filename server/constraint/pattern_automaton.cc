#include "server/constraint/pattern_automaton.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "server/constraint/constraint.h"
#include "server/constraint/pattern_positions.h"
#include "server/constraint/work_watch.h"

namespace recurve {
namespace {

constexpr size_t kNone = SIZE_MAX;

[[noreturn]] void refuse_as_large() {
  throw ConstraintRefused(
      fmt::format("with minLength or maxLength its automaton has more than {} states: write "
                  "the length into it, {{m,n}}, or reduce it",
                  kMostPatternStates));
}

// Sets of characters, each once.
class SetTable {
 public:
  size_t index_of(const CharacterSet& set) {
    const auto [found, is_new] = indexes_.try_emplace(set.sorted(), sets_.size());
    if (is_new) sets_.push_back(set);
    return found->second;
  }
  const CharacterSet& operator[](size_t index) const { return sets_[index]; }
  std::vector<CharacterSet> take() { return std::move(sets_); }

 private:
  std::map<CharacterSet::Ranges, size_t> indexes_;
  std::vector<CharacterSet> sets_;
};

// Characters that all positions treat alike, and the positions that take them.
struct Alike {
  CharacterSet characters;
  Positions taken_by;
};

std::vector<Alike> alike_characters(const PositionGraph& graph, const CharacterSet& allowed) {
  std::map<CharacterSet::Ranges, Positions> takers;  // positions by what they take
  std::set<uint32_t> begins;
  for (size_t position = 0; position < graph.characters.size(); ++position) {
    WorkWatch::check();
    const CharacterSet::Ranges ranges = graph.characters[position].within(allowed).sorted();
    if (!takers.contains(ranges)) {
      for (const auto& [first, last] : ranges) begins.insert({first, last + 1});
    }
    takers[ranges].add(position);
  }
  std::map<Positions, CharacterSet> alike;
  for (auto begin = begins.begin(); begin != begins.end() && std::next(begin) != begins.end();
       ++begin) {
    WorkWatch::check();
    Positions taken_by;
    bool is_taken = false;
    for (const auto& [ranges, positions] : takers) {
      const auto after =
          std::ranges::upper_bound(ranges, *begin, {}, &CharacterSet::Ranges::value_type::first);
      if (after == ranges.begin() || std::prev(after)->second < *begin) continue;
      taken_by.add(positions);
      is_taken = true;
    }
    if (is_taken) alike[taken_by].add(*begin, *std::next(begin) - 1);
  }
  std::vector<Alike> all;
  for (auto& [taken_by, characters] : alike) all.push_back({std::move(characters), taken_by});
  return all;
}

using State = PatternAutomaton::State;

// The deterministic automaton of a pattern. Its first state is that of the empty text.
class Determinizer {
 public:
  Determinizer(const PositionGraph& graph, const CharacterSet& allowed, SetTable* sets)
      : graph_(graph), alike_(alike_characters(graph, allowed)), sets_(sets) {}

  std::vector<State> run() {
    state_of(graph_.first, graph_.takes_nothing);
    for (size_t at = 0; at < pending_.size(); ++at) read_edges(at);
    return std::move(states_);
  }

 private:
  void read_edges(size_t at) {
    const Positions next = pending_[at];
    std::map<size_t, CharacterSet> edges;
    for (const Alike& alike : alike_) {
      WorkWatch::check();
      if (!next.meets(alike.taken_by)) continue;
      Positions follow, taken;
      next.each_in(alike.taken_by, [&](size_t position) {
        taken.add(position);
        follow.add(graph_.follow[position]);
      });
      edges[state_of(follow, taken.meets(graph_.last))].add(alike.characters);
    }
    for (const auto& [to, set] : edges) states_[at].edges.push_back({sets_->index_of(set), to});
  }

  size_t state_of(const Positions& next, bool may_end) {
    const auto [found, is_new] = indexes_.try_emplace({next, may_end}, states_.size());
    if (!is_new) return found->second;
    if (states_.size() == kMostPatternStates) refuse_as_large();
    states_.push_back({.may_end = may_end});
    pending_.push_back(next);
    return found->second;
  }

  const PositionGraph& graph_;
  const std::vector<Alike> alike_;
  SetTable* const sets_;
  std::map<std::pair<Positions, bool>, size_t> indexes_;
  std::vector<Positions> pending_;  // of each state, the positions that may come
  std::vector<State> states_;
};

// The automaton of the strings that another one accepts and whose lengths are bounded: for each
// number of characters so far the states that can be reached, from the last number on, equal ones
// once.
class LengthProduct {
 public:
  LengthProduct(std::vector<State> states, const TextLengths& lengths, SetTable* sets)
      : of_pattern_(std::move(states)),
        lengths_(lengths),
        last_(static_cast<size_t>(lengths.most.value_or(lengths.least))),
        sets_(sets) {}

  PatternAutomaton run() {
    const std::vector<std::vector<bool>> reached = reached_states();
    std::vector<size_t> after(of_pattern_.size(), kNone);  // of each state, one character later
    if (!lengths_.most) after = add_unbounded(reached.back());
    for (size_t count = lengths_.most ? last_ + 1 : last_; count-- > 0;) {
      std::vector<size_t> here(of_pattern_.size(), kNone);
      for (size_t state = 0; state < of_pattern_.size(); ++state) {
        if (!reached[count][state]) continue;
        WorkWatch::check();
        here[state] = index_of(product_of(state, count, after));
      }
      after = std::move(here);
    }
    if (after[0] == kNone) return {};
    return {.sets = sets_->take(), .states = std::move(states_), .start = after[0]};
  }

 private:
  // By number of characters.
  std::vector<std::vector<bool>> reached_states() const {
    std::vector<std::vector<bool>> reached(last_ + 1, std::vector<bool>(of_pattern_.size()));
    reached[0][0] = true;
    for (size_t count = 0; count < last_; ++count) {
      for (size_t state = 0; state < of_pattern_.size(); ++state) {
        if (!reached[count][state]) continue;
        WorkWatch::check();
        for (const auto& edge : of_pattern_[state].edges) reached[count + 1][edge.to] = true;
      }
    }
    return reached;
  }

  // Without a bound, the states of the pattern from the shortest length on, and those behind them.
  std::vector<size_t> add_unbounded(std::vector<bool> used) {
    for (bool changed = true; std::exchange(changed, false);) {
      for (size_t state = 0; state < used.size(); ++state) {
        if (!used[state]) continue;
        WorkWatch::check();
        for (const auto& edge : of_pattern_[state].edges) {
          changed |= !used[edge.to];
          used[edge.to] = true;
        }
      }
    }
    const std::vector<bool> live = live_states();
    std::vector<size_t> indexes(used.size(), kNone);
    for (size_t state = 0; state < used.size(); ++state) {
      if (used[state] && live[state]) indexes[state] = add({.may_end = of_pattern_[state].may_end});
    }
    for (size_t state = 0; state < used.size(); ++state) {
      if (indexes[state] == kNone) continue;
      states_[indexes[state]].edges = product_of(state, last_, indexes).edges;
    }
    return indexes;
  }

  // Those from which a string can be completed.
  std::vector<bool> live_states() const {
    std::vector<bool> live(of_pattern_.size());
    for (bool changed = true; std::exchange(changed, false);) {
      for (size_t state = live.size(); state-- > 0;) {
        if (live[state]) continue;
        WorkWatch::check();
        const auto& [may_end, edges] = of_pattern_[state];
        live[state] =
            may_end || std::ranges::any_of(edges, [&](const auto& edge) { return live[edge.to]; });
        changed |= live[state];
      }
    }
    return live;
  }

  // `after`: the indexes of the states one character later.
  State product_of(size_t state, size_t count, const std::vector<size_t>& after) {
    State product{.may_end =
                      of_pattern_[state].may_end && static_cast<int64_t>(count) >= lengths_.least};
    std::map<size_t, std::vector<size_t>> sets_to;
    for (const auto& edge : of_pattern_[state].edges) {
      if (after[edge.to] != kNone) sets_to[after[edge.to]].push_back(edge.characters);
    }
    for (const auto& [to, sets] : sets_to) {
      size_t set = sets.front();
      for (size_t i = 1; i < sets.size(); ++i) {
        CharacterSet joined = (*sets_)[set];
        joined.add((*sets_)[sets[i]]);
        set = sets_->index_of(joined);
      }
      product.edges.push_back({set, to});
    }
    return product;
  }

  size_t index_of(State state) {
    if (!state.may_end && state.edges.empty()) return kNone;
    std::vector<std::pair<size_t, size_t>> edges;
    for (const auto& [characters, to] : state.edges) edges.emplace_back(to, characters);
    const auto found = indexes_.find({state.may_end, edges});
    if (found != indexes_.end()) return found->second;
    indexes_.emplace(std::pair(state.may_end, std::move(edges)), states_.size());
    return add(std::move(state));
  }

  size_t add(State state) {
    if (states_.size() == kMostPatternStates) refuse_as_large();
    states_.push_back(std::move(state));
    return states_.size() - 1;
  }

  const std::vector<State> of_pattern_;
  const TextLengths lengths_;
  const size_t last_;
  SetTable* const sets_;
  std::map<std::pair<bool, std::vector<std::pair<size_t, size_t>>>, size_t> indexes_;
  std::vector<State> states_;
};

}  // namespace

PatternAutomaton counted_pattern(std::string_view pattern, const TextLengths& lengths,
                                 const CharacterSet& allowed) {
  const PositionGraph graph = positions_of(pattern);
  SetTable sets;
  std::vector<State> states = Determinizer(graph, allowed, &sets).run();
  return LengthProduct(std::move(states), lengths, &sets).run();
}

std::string ebnf_of(const PatternAutomaton& automaton) {
  std::string rules = fmt::format("root ::= s{}\n", automaton.start);
  for (size_t i = 0; i < automaton.states.size(); ++i) {
    const PatternAutomaton::State& state = automaton.states[i];
    std::string body = state.may_end ? "\"\"" : "";
    for (const auto& [characters, to] : state.edges) {
      if (!body.empty()) body += " | ";
      body += fmt::format("{} s{}", automaton.sets[characters].to_class(), to);
    }
    rules += fmt::format("s{} ::= {}\n", i, body);
  }
  return rules;
}

}  // namespace recurve
