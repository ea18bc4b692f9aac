#include "server/text/pre_tokenizers/pre_tokenizer.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include "server/text/characters.h"
#include "server/text/models/byte_level.h"
#include "server/text/utf8.h"

namespace recurve {
namespace {

// openai/gpt-2, encoder.py
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr size_t kLongPiece = 64 << 10;  // bytes of a piece that is processed in parts

const Regex& gpt2_regex() {
  static const Regex regex(kGpt2Pattern);
  return regex;
}

// Whether a span is added to the piece of the span before it.
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

// Joins the spans of a split to pieces.
class PieceJoiner {
 public:
  // `open`: the last piece of the spans before.
  PieceJoiner(SplitBehavior behavior, OpenPiece open, std::vector<ByteRange>& pieces)
      : behavior_(behavior), open_(open), pieces_(pieces) {}

  void add(size_t begin, size_t end, bool is_match) {
    if (open_.begun && joins(behavior_, open_.is_match, is_match)) {
      begin = open_.begin;
    } else {
      close();
    }
    open_ = {true, begin, end, is_match};
  }
  // Ends the last piece.
  void close() {
    const bool removed = behavior_ == SplitBehavior::kRemoved && open_.is_match;
    if (open_.begun && !removed && open_.begin < open_.end) {
      pieces_.push_back({open_.begin, open_.end});
    }
    open_ = {};
  }
  // The piece to which later spans may be added.
  OpenPiece open_piece() {
    const bool open =
        joins(behavior_, open_.is_match, true) || joins(behavior_, open_.is_match, false);
    if (!open) close();
    return open_;
  }

 private:
  const SplitBehavior behavior_;
  OpenPiece open_;
  std::vector<ByteRange>& pieces_;
};

// Rewrites the text piece by piece: write(piece, out) appends the replacement of a piece.
template <class Write>
void rewrite(Pieces& pieces, Write write) {
  std::string text;
  text.reserve(pieces.text.size() * 5 / 4);
  for (ByteRange& range : pieces.ranges) {
    const size_t begin = text.size();
    write(pieces.piece(range), text);
    range = {begin, text.size()};
  }
  pieces.text = std::move(text);
}

void append_with_marks(std::string_view piece, std::string_view mark, std::string& out) {
  for (const char c : piece) {
    if (c == ' ') {
      out.append(mark);
    } else {
      out.push_back(c);
    }
  }
}

void append_decoded(std::string_view characters, std::string& out) {
  if (!decode_byte_level(characters, out)) {
    throw std::logic_error("a word is not in the byte-level alphabet");
  }
}

// Passes the spans of a text that begins at `begin` to a joiner, and checks the limits regularly.
class JoinSpans {
 public:
  JoinSpans(PieceJoiner& joiner, size_t begin, const WorkLimits& limits)
      : joiner_(joiner), begin_(begin), limits_(limits) {}

  void operator()(const Span& span) {
    constexpr size_t kCheckEvery = 1024;
    if (++spans_ % kCheckEvery == 0) limits_.check();
    joiner_.add(begin_ + span.begin, begin_ + span.end, span.is_match);
  }

 private:
  PieceJoiner& joiner_;
  const size_t begin_;
  const WorkLimits& limits_;
  size_t spans_ = 0;
};

}  // namespace

void PreTokenizer::add(Step step) {
  if (const auto* level = std::get_if<ByteLevel>(&step)) {
    if (level->add_prefix_space) actions_.push_back(Prefix{" ", false});
    if (level->use_regex) actions_.push_back(Split{gpt2_regex(), SplitBehavior::kIsolated, false});
    actions_.push_back(ByteAlphabet());
  } else if (const auto* space = std::get_if<Metaspace>(&step)) {
    actions_.push_back(MarkSpaces{space->mark});
    if (space->prepend != Metaspace::Prepend::kNever) {
      actions_.push_back(Prefix{space->mark, space->prepend == Metaspace::Prepend::kFirst});
    }
    if (space->split) {
      const Regex mark(space->mark);
      actions_.push_back(Split{mark, SplitBehavior::kMergedWithNext, false});
    }
  } else {
    actions_.push_back(std::get<Split>(step));
  }
  steps_.push_back(std::move(step));
}

size_t PreTokenizer::next_split(size_t from) const {
  const auto is_split = [](const Action& action) { return std::holds_alternative<Split>(action); };
  const auto begin = actions_.begin() + static_cast<ptrdiff_t>(from);
  return static_cast<size_t>(std::find_if(begin, actions_.end(), is_split) - actions_.begin());
}

bool PreTokenizer::decodes_words() const {
  const auto writes_it = [](const Action& a) { return std::holds_alternative<ByteAlphabet>(a); };
  return !actions_.empty() && !writes_it(actions_.back()) &&
         std::any_of(actions_.begin(), actions_.end(), writes_it);
}

bool PreTokenizer::marks_start() const {
  return std::any_of(actions_.begin(), actions_.begin() + static_cast<ptrdiff_t>(first_split()),
                     [](const Action& a) { return std::holds_alternative<Prefix>(a); });
}

WordSplitter::WordSplitter(const PreTokenizer& chain, size_t from, const WordModel& model,
                           const WorkLimits& limits, TextPosition position, bool first)
    : chain_(&chain),
      model_(&model),
      limits_(limits),
      from_(from),
      first_split_(chain.next_split(from)),
      prefix_due_(position == TextPosition::kStart),
      first_(first) {}

void WordSplitter::push(std::string_view utf8, bool last, const Sink& sink) {
  append(utf8);
  Pieces pieces = take_pieces(last);
  const size_t after_split = std::min(first_split_ + 1, chain_->actions_.size());
  const bool is_split_again = chain_->next_split(after_split) < chain_->actions_.size();
  const auto is_long = [&](const ByteRange& r) {
    return is_split_again && r.end - r.begin > kLongPiece;
  };
  std::vector<ByteRange> ranges = std::move(pieces.ranges);
  for (auto begin = ranges.begin(); begin != ranges.end();) {
    const auto end = std::find_if(begin, ranges.end(), is_long);
    if (begin == ranges.begin() && end == ranges.end()) {
      return finish({std::move(pieces.text), std::move(ranges)}, sink);
    }
    for (auto piece = begin; piece != end; ++piece) {
      finish({std::string(pieces.piece(*piece)), {{0, piece->end - piece->begin}}}, sink);
    }
    if (end == ranges.end()) return;
    push_long(pieces.piece(*end), sink);
    begin = end + 1;
  }
}

// The pieces of the first split that are complete.
Pieces WordSplitter::take_pieces(bool last) {
  Pieces pieces{{}, next_pieces(last)};
  const size_t drop = first_needed();
  if (pieces.ranges.empty()) {
    text_.erase(0, drop);
  } else {  // copies the few bytes that remain rather than the pieces
    pieces.text = std::exchange(text_, text_.substr(drop));
  }
  searched_ -= std::min(searched_, drop);
  search_.done -= drop;
  search_.from -= drop;
  open_.begin -= drop;
  open_.end -= drop;
  return pieces;
}

// Passes a long piece through the steps after the first split, in parts. They grow with the text
// that these steps hold back.
void WordSplitter::push_long(std::string_view piece, const Sink& sink) const {
  WordSplitter rest(*chain_, first_split_ + 1, *model_, limits_, TextPosition::kStart,
                    /*first=*/true);
  while (!piece.empty()) {
    const size_t size = whole_characters(piece, std::max(kLongPiece, rest.held() / 2));
    rest.push(piece.substr(0, size), size == piece.size(), sink);
    piece.remove_prefix(size);
    limits_.check();
  }
}

// Passes pieces through the steps after the first split.
void WordSplitter::finish(Pieces pieces, const Sink& sink) const {
  for (size_t a = first_split_ + 1; a < chain_->actions_.size(); ++a) {
    run(chain_->actions_[a], pieces);
  }
  if (chain_->decodes_words()) rewrite(pieces, append_decoded);
  for (const ByteRange word : pieces.ranges) sink(pieces.piece(word));
}

// Passes text through the steps before the first split, which work from left to right.
void WordSplitter::append(std::string_view utf8) {
  if (utf8.empty()) return;
  std::string part(utf8);
  for (size_t a = from_; a < first_split_; ++a) {
    const PreTokenizer::Action& action = chain_->actions_[a];
    std::string out;
    if (const auto* prefix = std::get_if<PreTokenizer::Prefix>(&action)) {
      const bool due = prefix_due_ && (first_ || !prefix->first_only);
      if (due && !part.starts_with(prefix->mark)) out = prefix->mark;
      out += part;
    } else if (const auto* spaces = std::get_if<PreTokenizer::MarkSpaces>(&action)) {
      append_with_marks(part, spaces->mark, out);
    } else if (a + 1 < chain_->actions_.size()) {
      encode_byte_level(part, out);
    } else {
      continue;  // the model works on bytes
    }
    part = std::move(out);
  }
  prefix_due_ = false;
  text_.append(part);
}

void WordSplitter::run(const PreTokenizer::Action& action, Pieces& pieces) const {
  if (const auto* step = std::get_if<PreTokenizer::Split>(&action)) {
    split(*step, pieces);
  } else if (const auto* prefix = std::get_if<PreTokenizer::Prefix>(&action)) {
    rewrite(pieces, [&](std::string_view piece, std::string& out) {
      if (!piece.starts_with(prefix->mark)) out += prefix->mark;
      out += piece;
    });
  } else if (const auto* spaces = std::get_if<PreTokenizer::MarkSpaces>(&action)) {
    rewrite(pieces, [&](std::string_view piece, std::string& out) {
      append_with_marks(piece, spaces->mark, out);
    });
  } else if (&action != &chain_->actions_.back()) {  // else the model works on bytes
    rewrite(pieces, encode_byte_level);
  }
}

void WordSplitter::split(const PreTokenizer::Split& step, Pieces& pieces) const {
  std::vector<ByteRange> ranges;
  for (const ByteRange piece : pieces.ranges) {
    PieceJoiner joiner(step.behavior, {}, ranges);
    Regex::Search search;
    step.pattern.find_on(pieces.piece(piece), /*last=*/true, step.invert, limits_, &search,
                         JoinSpans(joiner, piece.begin, limits_));
    joiner.close();
  }
  pieces.ranges = std::move(ranges);
}

std::vector<ByteRange> WordSplitter::next_pieces(bool last) {
  if (first_split_ == chain_->actions_.size()) return next_unsplit(last);
  // A match that does not end is searched again each time the text has grown by half.
  if (!last && text_.size() - searched_ < searched_ / 2) return {};
  const auto& step = std::get<PreTokenizer::Split>(chain_->actions_[first_split_]);
  std::vector<ByteRange> pieces;
  PieceJoiner joiner(step.behavior, open_, pieces);
  step.pattern.find_on(text_, last, step.invert, limits_, &search_, JoinSpans(joiner, 0, limits_));
  if (last) joiner.close();
  open_ = joiner.open_piece();
  searched_ = text_.size();
  return pieces;
}

// Without a split the text is one word. A long one is passed on up to a boundary of the model.
std::vector<ByteRange> WordSplitter::next_unsplit(bool last) {
  constexpr size_t kLong = 16 << 10;
  size_t end = text_.size();
  if (!last && model_->joins_symbols()) {
    end = end > kLong ? last_boundary() : 0;
    if (text_.size() > kLong) searched_ = text_.size();
  }
  search_.done = search_.from = end;
  if (end == 0) return {};
  return {{0, end}};
}

// The last position at which the model allows a word to be split, 0 if there is none. The text that
// has been searched before has none, except at its end.
size_t WordSplitter::last_boundary() const {
  const std::string_view text = text_;
  std::optional<char32_t> after;
  size_t boundary = text.size();
  for (size_t at = text.size(); at-- > 0;) {
    if (is_continuation(text[at])) continue;
    const char32_t c = first_code_point(text.substr(at)).code_point;
    if (after && model_->is_boundary(c, *after)) return boundary;
    if (at < searched_) return 0;
    after = c;
    boundary = at;
  }
  return 0;
}

// The first byte that a piece or the pattern's lookbehind needs.
size_t WordSplitter::first_needed() const {
  const size_t begin = open_.begun ? open_.begin : search_.done;
  if (first_split_ == chain_->actions_.size()) return begin;
  const auto& step = std::get<PreTokenizer::Split>(chain_->actions_[first_split_]);
  return characters_before(text_, begin, step.pattern.lookbehind());
}

}  // namespace recurve
