#include "server/constraint/pattern_positions.h"

#include <utility>

#include "server/constraint/regex_reader.h"
#include "server/constraint/work_watch.h"

namespace recurve {
namespace {

class PositionReader : RegexReader {
 public:
  explicit PositionReader(std::string_view pattern)
      : RegexReader(pattern, /*in_json=*/true, /*rewritten=*/true) {}

  PositionGraph run() {
    Part all = read_alternatives();
    graph_.first = std::move(all.first);
    graph_.last = std::move(all.last);
    graph_.takes_nothing = all.takes_nothing;
    return std::move(graph_);
  }

 private:
  struct Part {
    Positions first = {}, last = {};
    bool takes_nothing = true;
  };

  Part read_alternatives() {
    Part all = read_sequence();
    while (next_is('|')) {
      take();
      const Part other = read_sequence();
      all.first.add(other.first);
      all.last.add(other.last);
      all.takes_nothing |= other.takes_nothing;
    }
    return all;
  }

  Part read_sequence() {
    Part all;
    while (!ended() && !next_is('|') && !next_is(')')) {
      WorkWatch::check();
      Part next = read_repeated();
      link(all.last, next.first);
      if (all.takes_nothing) all.first.add(next.first);
      if (next.takes_nothing) next.last.add(all.last);
      all.last = std::move(next.last);
      all.takes_nothing &= next.takes_nothing;
    }
    return all;
  }

  Part read_repeated() {
    Part one = read_one();
    const auto [least, most] = read_repeat();
    if (most) return one;
    link(one.last, one.first);
    one.takes_nothing |= least == 0;
    return one;
  }

  Part read_one() {
    if (next_is('(')) {
      take();
      Part within = read_alternatives();
      take();
      return within;
    }
    if (next_is('[')) {
      take();
      return position_of(read_class());
    }
    const RegexUnit unit = read_unit();
    if (unit.character == '\\') return position_of(read_json_escape());
    return position_of({unit.character, unit.character});
  }

  Part position_of(CharacterSet characters) {
    const size_t position = graph_.characters.size();
    graph_.characters.push_back(std::move(characters));
    graph_.follow.emplace_back();
    Part part{.takes_nothing = false};
    part.first.add(position);
    part.last.add(position);
    return part;
  }

  void link(const Positions& from, const Positions& to) {
    from.each_in(from, [&](size_t position) { graph_.follow[position].add(to); });
  }

  PositionGraph graph_;
};

}  // namespace

PositionGraph positions_of(std::string_view pattern) { return PositionReader(pattern).run(); }

}  // namespace recurve
