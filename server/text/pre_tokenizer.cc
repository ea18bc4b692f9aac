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

// Whether a span belongs to the piece that the span before it belongs to.
bool joins(SplitBehavior behavior, bool match_before, bool match) {
  switch (behavior) {
    case SplitBehavior::kIsolated:
    case SplitBehavior::kRemoved:
      return false;
    case SplitBehavior::kContiguous:
      return match == match_before;
    case SplitBehavior::kMergedWithPrevious:
      return match && !match_before;
    case SplitBehavior::kMergedWithNext:
      return !match && match_before;
  }
  return false;
}

// Makes pieces of the spans that a split has found.
class PieceJoiner {
 public:
  // `open`: what spans before have left.
  PieceJoiner(SplitBehavior behavior, OpenPiece open, std::vector<Pieces::Range>& pieces)
      : behavior_(behavior), open_(open), pieces_(pieces) {}

  void add(size_t begin, size_t end, bool is_match) {
    if (open_.begun && joins(behavior_, open_.is_match, is_match)) {
      begin = open_.begin;
    } else {
      close();
    }
    open_ = {true, begin, end, is_match};
  }
  // Once no more spans come.
  void close() {
    const bool removed = behavior_ == SplitBehavior::kRemoved && open_.is_match;
    if (open_.begun && !removed && open_.begin < open_.end) {
      pieces_.push_back({open_.begin, open_.end});
    }
    open_ = {};
  }
  // What is left for spans that come later.
  OpenPiece leave() {
    const bool may_go_on =
        joins(behavior_, open_.is_match, true) || joins(behavior_, open_.is_match, false);
    if (!may_go_on) close();
    return open_;
  }

 private:
  const SplitBehavior behavior_;
  OpenPiece open_;
  std::vector<Pieces::Range>& pieces_;
};

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

void add_prefix_space(std::string_view piece, std::string& out) {
  if (!piece.starts_with(' ')) out.push_back(' ');
  out.append(piece);
}

void split(const PreTokenizer::Split& step, Pieces& pieces) {
  std::vector<Pieces::Range> ranges;
  for (const Pieces::Range piece : pieces.ranges) {
    PieceJoiner joiner(step.behavior, {}, ranges);
    for (const Span& span : step.pattern.find(pieces.piece(piece), step.invert)) {
      joiner.add(piece.begin + span.begin, piece.begin + span.end, span.is_match);
    }
    joiner.close();
  }
  pieces.ranges = std::move(ranges);
}

}  // namespace

void PreTokenizer::add(Step step) {
  if (const auto* level = std::get_if<ByteLevel>(&step)) {
    if (level->add_prefix_space) actions_.push_back(PrefixSpace());
    if (level->use_regex) actions_.push_back(Split{gpt2_regex(), SplitBehavior::kIsolated, false});
    actions_.push_back(ByteAlphabet());
  } else {
    actions_.push_back(std::get<Split>(step));
  }
  steps_.push_back(std::move(step));
}

size_t PreTokenizer::first_split() const {
  const auto is_split = [](const Action& action) { return std::holds_alternative<Split>(action); };
  return static_cast<size_t>(std::find_if(actions_.begin(), actions_.end(), is_split) -
                             actions_.begin());
}

bool PreTokenizer::marks_start() const {
  return std::any_of(actions_.begin(), actions_.begin() + static_cast<ptrdiff_t>(first_split()),
                     [](const Action& a) { return std::holds_alternative<PrefixSpace>(a); });
}

WordCutter::WordCutter(const PreTokenizer& chain, TextPosition position, bool whole_words)
    : chain_(&chain),
      first_split_(chain.first_split()),
      prefix_due_(position == TextPosition::kStart),
      whole_words_(whole_words) {}

Pieces WordCutter::push(std::string_view utf8, bool last) {
  append(utf8);
  Pieces pieces{{}, cut(last)};
  if (!pieces.ranges.empty()) pieces.text = text_;
  forget();
  for (size_t a = first_split_ + 1; a < chain_->actions_.size(); ++a) {
    const PreTokenizer::Action& action = chain_->actions_[a];
    if (const auto* step = std::get_if<PreTokenizer::Split>(&action)) {
      split(*step, pieces);
    } else if (std::holds_alternative<PreTokenizer::PrefixSpace>(action)) {
      rewrite(pieces, add_prefix_space);
    } else {
      rewrite(pieces, append_byte_level);
    }
  }
  return pieces;
}

// What comes before the first split works on the stretch from left to right.
void WordCutter::append(std::string_view utf8) {
  if (utf8.empty()) return;
  std::string part(utf8);
  for (size_t a = 0; a < first_split_; ++a) {
    std::string out;
    if (std::holds_alternative<PreTokenizer::ByteAlphabet>(chain_->actions_[a])) {
      append_byte_level(part, out);
    } else if (prefix_due_) {
      add_prefix_space(part, out);
    } else {
      continue;
    }
    part = std::move(out);
  }
  prefix_due_ = false;
  text_.append(part);
}

std::vector<Pieces::Range> WordCutter::cut(bool last) {
  std::vector<Pieces::Range> pieces;
  if (first_split_ == chain_->actions_.size()) {  // the stretch is one word
    if ((last || !whole_words_) && !text_.empty()) pieces.push_back({0, text_.size()});
    search_.done = search_.from = pieces.empty() ? 0 : text_.size();
    return pieces;
  }
  const auto& step = std::get<PreTokenizer::Split>(chain_->actions_[first_split_]);
  std::vector<Span> spans;
  step.pattern.find_on(text_, last, step.invert, &search_, &spans);
  PieceJoiner joiner(step.behavior, open_, pieces);
  for (const Span& span : spans) joiner.add(span.begin, span.end, span.is_match);
  if (last) joiner.close();
  open_ = joiner.leave();
  return pieces;
}

// Drops what no piece begins in and the pattern does not look back at.
void WordCutter::forget() {
  size_t keep = open_.begun ? open_.begin : search_.done;
  if (first_split_ < chain_->actions_.size()) {
    const auto& step = std::get<PreTokenizer::Split>(chain_->actions_[first_split_]);
    for (size_t c = step.pattern.lookbehind(); c > 0 && keep > 0; --c) {
      do --keep;
      while (keep > 0 && (static_cast<unsigned char>(text_[keep]) & 0xC0) == 0x80);
    }
  }
  text_.erase(0, keep);
  search_.done -= keep;
  search_.from -= keep;
  open_.begin -= keep;
  open_.end -= keep;
}

}  // namespace recurve
