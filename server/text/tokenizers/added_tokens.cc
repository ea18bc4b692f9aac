#include "server/text/tokenizers/added_tokens.h"

#include <algorithm>

#include "server/text/characters.h"
#include "server/text/pre_tokenizers/regex.h"
#include "server/text/utf8.h"

namespace recurve {
namespace {

std::string_view first_character(std::string_view text) {
  size_t n = text.empty() ? 0 : 1;
  while (n < text.size() && is_continuation(text[n])) ++n;
  return text.substr(0, n);
}

std::string_view last_character(std::string_view text) {
  size_t n = text.empty() ? 0 : 1;
  while (n < text.size() && is_continuation(text[text.size() - n])) ++n;
  return text.substr(text.size() - n);
}

// Rust's regex crate, UTS #18: \w has the join controls too, \s is White_Space.
bool is_word(std::string_view character) {
  static const Regex word(R"([\w\x{200C}\x{200D}])");
  return !character.empty() && word.matches_all(character);
}

bool is_space(std::string_view character) {
  return !character.empty() && is_white_space(to_utf32(character)[0]);
}

size_t spaces_at_end(std::string_view text) {
  size_t n = 0;
  for (;;) {
    const std::string_view c = last_character(text.substr(0, text.size() - n));
    if (!is_space(c)) return n;
    n += c.size();
  }
}

size_t spaces_at_start(std::string_view text) {
  size_t n = 0;
  for (;;) {
    const std::string_view c = first_character(text.substr(n));
    if (!is_space(c)) return n;
    n += c.size();
  }
}

}  // namespace

void AddedTokenFinder::add(const AddedToken& token, std::string_view content) {
  if (content.empty()) return;
  if (!trie_.add(content, static_cast<int32_t>(tokens_.size()))) return;
  tokens_.push_back(token);
  can_start_[static_cast<unsigned char>(content[0])] = true;
  has_lstrip_ |= token.lstrip;
}

AddedTokenFinder::Match AddedTokenFinder::longest_at(std::string_view text, size_t at) const {
  Match best;
  if (!can_start_[static_cast<unsigned char>(text[at])]) return best;
  int32_t node = Trie::kRoot;
  for (size_t i = at; i < text.size(); ++i) {
    node = trie_.next(node, text[i]);
    if (node == Trie::kNone) return best;
    const int32_t token = trie_.number(node);
    if (token != Trie::kNone) best = {&tokens_[static_cast<size_t>(token)], i + 1 - at};
  }
  best.open = true;
  return best;
}

std::vector<AddedSpan> AddedTokenScanner::push(std::string_view utf8, bool trusted, bool last) {
  forget();
  if (trusted && !utf8.empty()) {
    const bool touches = !trusted_.empty() && trusted_.back().end == text_.size();
    if (!touches) trusted_.push_back({text_.size(), text_.size()});
    trusted_.back().end += utf8.size();
  }
  text_.append(utf8);
  std::vector<AddedSpan> spans;
  while (at_ < text_.size()) {
    const AddedTokenFinder::Match longest = finder_->longest_at(text_, at_);
    if (!last && longest.open) break;
    size_t next = at_ + std::max<size_t>(longest.length, 1);
    const AddedTokenFinder::Match match = without_strangers(longest, &next);
    if (!last && undecided(match)) break;
    if (match.token != nullptr) cut(match, spans);
    at_ = next;
  }
  size_t certain = at_;
  if (!last && finder_->has_lstrip_) {  // a token that follows may take these spaces
    certain -= spaces_at_end(std::string_view(text_).substr(0, at_));
  }
  emit_text(certain, spans);
  return spans;
}

// Whether what follows the text could change what the match means.
bool AddedTokenScanner::undecided(const AddedTokenFinder::Match& match) const {
  if (match.token == nullptr) return false;
  const std::string_view behind = std::string_view(text_).substr(at_ + match.length);
  return (match.token->single_word && behind.empty()) ||
         (match.token->rstrip && spaces_at_start(behind) == behind.size());
}

// The match itself unless it is a control token that is not all trusted. Then a shorter one that
// is, so that what a stranger writes behind a control token cannot undo it; else none, and the
// search goes on behind what it covers (`next`), unless some of that is trusted.
AddedTokenFinder::Match AddedTokenScanner::without_strangers(const AddedTokenFinder::Match& match,
                                                             size_t* next) const {
  if (match.token == nullptr || !match.token->special) return match;
  const ByteRange* around = trusted_around(at_);
  const size_t end = at_ + match.length;
  if (around != nullptr && end <= around->end) return match;
  AddedTokenFinder::Match shorter;
  if (around != nullptr) {
    shorter = finder_->longest_at(std::string_view(text_).substr(0, around->end), at_);
  }
  const bool apart = around == nullptr && trusted_around(end - 1) == nullptr;
  if (!apart) *next = at_ + std::max<size_t>(shorter.length, 1);
  return shorter;
}

const ByteRange* AddedTokenScanner::trusted_around(size_t at) const {
  const auto range =
      std::lower_bound(trusted_.begin(), trusted_.end(), at,
                       [](const ByteRange& r, size_t byte) { return r.end <= byte; });
  return range != trusted_.end() && range->begin <= at ? &*range : nullptr;
}

void AddedTokenScanner::cut(const AddedTokenFinder::Match& match, std::vector<AddedSpan>& spans) {
  const std::string_view text = text_;
  size_t begin = at_;
  size_t end = at_ + match.length;
  if (match.token->single_word && (is_word(last_character(text.substr(0, begin))) ||
                                   is_word(first_character(text.substr(end))))) {
    return;
  }
  if (match.token->lstrip) {
    begin = std::max(begin - spaces_at_end(text.substr(0, begin)), done_);
  }
  if (match.token->rstrip) end += spaces_at_start(text.substr(end));
  emit_text(begin, spans);
  spans.push_back({{}, match.token->id});
  done_ = end;
}

void AddedTokenScanner::emit_text(size_t end, std::vector<AddedSpan>& spans) {
  while (done_ < end) {
    const auto range =
        std::lower_bound(trusted_.begin(), trusted_.end(), done_,
                         [](const ByteRange& r, size_t byte) { return r.end <= byte; });
    const bool trusted = range != trusted_.end() && range->begin <= done_;
    const size_t border = range == trusted_.end() ? end : trusted ? range->end : range->begin;
    const size_t to = std::min(end, border);
    spans.push_back({std::string_view(text_).substr(done_, to - done_), -1, trusted});
    done_ = to;
  }
}

// Drops all but the last character of what has been given out and searched.
void AddedTokenScanner::forget() {
  const size_t seen = std::min(at_, done_);
  const size_t drop = seen - last_character(std::string_view(text_).substr(0, seen)).size();
  text_.erase(0, drop);
  at_ -= drop;
  done_ -= drop;
  std::erase_if(trusted_, [&](const ByteRange& range) { return range.end <= drop; });
  for (ByteRange& range : trusted_) {
    range = {std::max(range.begin, drop) - drop, range.end - drop};
  }
}

}  // namespace recurve
