#include "server/text/tokenizers/added_tokens.h"

#include <algorithm>

#include "server/text/characters.h"
#include "server/text/pre_tokenizers/regex.h"
#include "server/text/utf8.h"

namespace recurve {
namespace {

std::string_view first_character(std::string_view text) {
  return text.substr(0, text.empty() ? 0 : next_character(text, 0));
}

std::string_view last_character(std::string_view text) {
  return text.substr(characters_before(text, text.size(), 1));
}

// As in Rust's regex crate (UTS #18): \w includes the join controls, \s is White_Space.
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
  const Trie::Match found = trie_.longest(text.substr(at));
  if (found.bytes > 0) best = {&tokens_[static_cast<size_t>(found.number)], found.bytes};
  best.open = found.open;
  return best;
}

std::vector<AddedSpan> AddedTokenScanner::push(std::string_view utf8, bool trusted, bool last) {
  drop_finished();
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
    const AddedTokenFinder::Match match = trusted_match(longest, &next);
    if (!last && undecided(match)) break;
    if (match.token != nullptr) add_token(match, spans);
    at_ = next;
  }
  size_t certain = at_;
  if (!last && finder_->has_lstrip_) {  // a later token may include these spaces
    certain -= spaces_at_end(std::string_view(text_).substr(0, at_));
  }
  emit_text(certain, spans);
  return spans;
}

// Whether later text could change the match.
bool AddedTokenScanner::undecided(const AddedTokenFinder::Match& match) const {
  if (match.token == nullptr) return false;
  const std::string_view after = std::string_view(text_).substr(at_ + match.length);
  return (match.token->single_word && after.empty()) ||
         (match.token->rstrip && spaces_at_start(after) == after.size());
}

// The match itself, unless it is a control token that is not entirely trusted. Then a shorter one
// that is, so that untrusted text after a control token cannot change it; else none. Sets `next` to
// where the search continues: after the text of the match, unless some of it is trusted.
AddedTokenFinder::Match AddedTokenScanner::trusted_match(const AddedTokenFinder::Match& match,
                                                         size_t* next) const {
  if (match.token == nullptr || !match.token->special) return match;
  const ByteRange* around = trusted_at(at_);
  const size_t end = at_ + match.length;
  if (around != nullptr && end <= around->end) return match;
  AddedTokenFinder::Match shorter;
  if (around != nullptr) {
    shorter = finder_->longest_at(std::string_view(text_).substr(0, around->end), at_);
  }
  const bool apart = around == nullptr && trusted_at(end - 1) == nullptr;
  if (!apart) *next = at_ + std::max<size_t>(shorter.length, 1);
  return shorter;
}

// The first trusted range that ends after byte `at`.
std::vector<ByteRange>::const_iterator AddedTokenScanner::trusted_from(size_t at) const {
  return std::ranges::upper_bound(trusted_, at, {}, &ByteRange::end);
}

// The trusted range that contains byte `at`; null: none.
const ByteRange* AddedTokenScanner::trusted_at(size_t at) const {
  const auto range = trusted_from(at);
  return range != trusted_.end() && range->begin <= at ? &*range : nullptr;
}

void AddedTokenScanner::add_token(const AddedTokenFinder::Match& match,
                                  std::vector<AddedSpan>& spans) {
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
    const auto range = trusted_from(done_);
    const bool trusted = range != trusted_.end() && range->begin <= done_;
    const size_t border = range == trusted_.end() ? end : trusted ? range->end : range->begin;
    const size_t to = std::min(end, border);
    spans.push_back({std::string_view(text_).substr(done_, to - done_), -1, trusted});
    done_ = to;
  }
}

// Drops the text that has been returned and searched, except its last character.
void AddedTokenScanner::drop_finished() {
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

ControlTokenEncoder::ControlTokenEncoder(const AddedTokenFinder& controls, SpecialTokens special,
                                         const WorkLimits& limits)
    : limits_(limits), controls_(controls) {
  set_special(special, nullptr);
}

void ControlTokenEncoder::push(std::string_view utf8, bool last, std::vector<int32_t>* ids) {
  limits_.check();
  if (!scanner_) return add_text(utf8, last, ids);
  for (const AddedSpan& span : scanner_->push(utf8, trusted_, last)) {
    if (span.id < 0) {
      add_text(span.text, false, ids);
    } else {
      add_text({}, true, ids);
      ids->push_back(span.id);
    }
  }
  if (last) add_text({}, true, ids);
}

void ControlTokenEncoder::set_special(SpecialTokens special, std::vector<int32_t>*) {
  trusted_ = special == SpecialTokens::kParse;
  if (trusted_ && !scanner_) scanner_.emplace(controls_);
}

}  // namespace recurve
