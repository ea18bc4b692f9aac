#include "server/text/pre_tokenizer.h"

#include <algorithm>

#include "server/text/byte_level.h"

namespace recurve {
namespace {

// openai/gpt-2, encoder.py
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

const Regex& gpt2_regex() {
  static const Regex regex(kGpt2Pattern);
  return regex;
}

// Joins neighbours as `behavior` says; `joins(before, span)` decides for a span and the one before.
template <class Joins>
std::vector<Span> join(const std::vector<Span>& spans, Joins joins) {
  std::vector<Span> out;
  bool before = false;
  for (const Span& span : spans) {
    if (!out.empty() && joins(before, span.is_match)) {
      out.back().end = span.end;
    } else {
      out.push_back(span);
    }
    before = span.is_match;
  }
  return out;
}

std::vector<Span> join_with_next(const std::vector<Span>& spans) {
  std::vector<Span> out;
  bool after = false;
  for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
    if (!out.empty() && span->is_match && !after) {
      out.back().begin = span->begin;
    } else {
      out.push_back(*span);
    }
    after = span->is_match;
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<Span> apply(SplitBehavior behavior, std::vector<Span> spans) {
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return spans;
    case SplitBehavior::kRemoved:
      std::erase_if(spans, [](const Span& span) { return span.is_match; });
      return spans;
    case SplitBehavior::kContiguous:
      return join(spans, [](bool before, bool now) { return before == now; });
    case SplitBehavior::kMergedWithPrevious:
      return join(spans, [](bool before, bool now) { return now && !before; });
    case SplitBehavior::kMergedWithNext:
      return join_with_next(spans);
  }
  return spans;
}

void run_split(const Regex& pattern, SplitBehavior behavior, bool invert, Pieces& pieces) {
  std::vector<Pieces::Range> ranges;
  for (const Pieces::Range piece : pieces.ranges) {
    for (const Span& span : apply(behavior, pattern.find(pieces.piece(piece), invert))) {
      if (span.begin == span.end) continue;
      ranges.push_back({piece.begin + span.begin, piece.begin + span.end});
    }
  }
  pieces.ranges = std::move(ranges);
}

// Rebuilds the text piece by piece; write(piece, out) appends what takes a piece's place.
template <class Write>
void rewrite(Pieces& pieces, Write write) {
  std::string text;
  text.reserve(pieces.text.size() * 5 / 4);
  for (Pieces::Range& range : pieces.ranges) {
    const size_t begin = text.size();
    write(pieces.piece(range), text);
    range = {begin, text.size()};
  }
  pieces.text = std::move(text);
}

void run_step(const PreTokenizer::Split& step, Pieces& pieces) {
  run_split(step.pattern, step.behavior, step.invert, pieces);
}

void run_step(const PreTokenizer::ByteLevel& step, Pieces& pieces) {
  if (step.add_prefix_space) {
    rewrite(pieces, [](std::string_view piece, std::string& out) {
      if (!piece.starts_with(' ')) out.push_back(' ');
      out.append(piece);
    });
  }
  if (step.use_regex) run_split(gpt2_regex(), SplitBehavior::kIsolated, false, pieces);
  rewrite(pieces, append_byte_level);
}

}  // namespace

Pieces PreTokenizer::run(std::string_view text) const {
  Pieces pieces{std::string(text), {}};
  if (!text.empty()) pieces.ranges.push_back({0, text.size()});
  for (const Step& step : steps_) {
    std::visit([&](const auto& s) { run_step(s, pieces); }, step);
  }
  return pieces;
}

}  // namespace recurve
