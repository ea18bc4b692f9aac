#include "server/text/bpe_tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "server/text/byte_level.h"
#include "server/text/utf8.h"

namespace recurve {

BpeTokenizer::BpeTokenizer(Parts parts) : parts_(std::move(parts)) {
  const auto size = static_cast<size_t>(parts_.size);
  bytes_.resize(size);
  special_.resize(size);
  for (const auto& [name, id] : parts_.vocabulary) {
    bytes_[static_cast<size_t>(id)] =
        parts_.byte_level ? undo_byte_level(name).value_or(name) : name;
  }
  // Control tokens first: they win where two tokens look the same.
  std::stable_sort(parts_.added.begin(), parts_.added.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.special > b.special; });
  for (const AddedToken& token : parts_.added) {
    bytes_[static_cast<size_t>(token.id)] = token.special ? "" : token.content;
    special_[static_cast<size_t>(token.id)] = token.special;
    if (token.normalized) {
      in_normal_text_.add(token, normalize_text(token.content));
    } else {
      in_raw_text_.add(token, token.content);
    }
  }
}

// The stages of a text's way to ids, each of which gives on what has become certain.
class BpeEncoder final : public TextEncoder {
 public:
  BpeEncoder(const BpeTokenizer& tokenizer, SpecialTokens special, TextPosition position,
             const WorkLimits& limits)
      : tokenizer_(tokenizer),
        limits_(limits),
        trusted_(special == SpecialTokens::kParse),
        in_raw_(tokenizer.in_raw_text_),
        in_normal_(tokenizer.in_normal_text_),
        words_(cutter(position)) {}

  // Small parts are read together: more of them the longer the text that waits, so that what is
  // looked at again and again (a word without end) costs no more than a few times its length.
  void push(std::string_view utf8, bool last, std::vector<int32_t>* ids) override {
    constexpr size_t kReadTogether = 4096;
    unread_.append(utf8);
    if (!last && unread_.size() < std::max(kReadTogether, behind() / 2)) return;
    read(last, ids);
  }

  void set_special(SpecialTokens special, std::vector<int32_t>* ids) override {
    read(false, ids);
    trusted_ = special == SpecialTokens::kParse;
  }

  size_t held() const override { return unread_.size() + behind(); }

 private:
  size_t behind() const {
    return in_raw_.held() + denormal_.size() + in_normal_.held() + words_.held();
  }

  void read(bool last, std::vector<int32_t>* ids) {
    for (const AddedSpan& span : in_raw_.push(std::exchange(unread_, {}), trusted_, last)) {
      if (span.id < 0) {
        add_text(span.text, span.trusted, false, ids);
      } else {
        add_text({}, denormal_trusted_, true, ids);
        ids->push_back(span.id);
      }
    }
    if (last) add_text({}, denormal_trusted_, true, ids);
  }

  // Text between two tokens, as it was written; `last`: it ends here.
  void add_text(std::string_view text, bool trusted, bool last, std::vector<int32_t>* ids) {
    if (tokenizer_.parts_.normal_forms.empty()) return add_normal_text(text, trusted, last, ids);
    if (trusted != denormal_trusted_) {
      normalise(denormal_.size(), false, ids);
      denormal_trusted_ = trusted;
    }
    denormal_.append(text);
    normalise(last ? denormal_.size() : last_normal_border(denormal_), last, ids);
  }

  void normalise(size_t certain, bool last, std::vector<int32_t>* ids) {
    const std::string normal =
        tokenizer_.normalize_text(std::string_view(denormal_).substr(0, certain));
    denormal_.erase(0, certain);
    add_normal_text(normal, denormal_trusted_, last, ids);
  }

  void add_normal_text(std::string_view text, bool trusted, bool last, std::vector<int32_t>* ids) {
    for (const AddedSpan& span : in_normal_.push(text, trusted, last)) {
      if (span.id < 0) {
        add_words(span.text, false, ids);
      } else {
        add_words({}, true, ids);
        ids->push_back(span.id);
      }
    }
    if (!last) return;
    add_words({}, true, ids);
    in_normal_ = AddedTokenScanner(tokenizer_.in_normal_text_);
  }

  void add_words(std::string_view text, bool last, std::vector<int32_t>* ids) {
    const Pieces words = words_.push(text, last);
    for (const Pieces::Range word : words.ranges) {
      tokenizer_.encode_word(words.piece(word), work_, *ids);
      limits_.check(ids->size());
    }
    if (last) words_ = cutter(TextPosition::kStart);
  }

  // Without merges a word's symbols know nothing of each other.
  WordCutter cutter(TextPosition position) const {
    const auto& parts = tokenizer_.parts_;
    return {parts.pre_tokenizer, position, parts.ignore_merges || parts.merger.rules() > 0};
  }

  const BpeTokenizer& tokenizer_;
  const WorkLimits limits_;
  std::string unread_;
  bool trusted_;  // what is unread
  AddedTokenScanner in_raw_;
  std::string denormal_;  // not normalised
  bool denormal_trusted_ = false;
  AddedTokenScanner in_normal_;
  WordCutter words_;
  BpeTokenizer::Workspace work_;
};

std::unique_ptr<TextEncoder> BpeTokenizer::encoder(SpecialTokens special, TextPosition position,
                                                   const WorkLimits& limits) const {
  return std::make_unique<BpeEncoder>(*this, special, position, limits);
}

void BpeTokenizer::encode_word(std::string_view mapped, Workspace& work,
                               std::vector<int32_t>& out) const {
  if (parts_.ignore_merges) {
    const auto whole = parts_.vocabulary.find(std::string(mapped));
    if (whole != parts_.vocabulary.end() && !is_special(whole->second)) {
      out.push_back(whole->second);
      return;
    }
  }
  if (mapped.size() > std::numeric_limits<int32_t>::max() / 4) {
    throw std::length_error(fmt::format("a word of {} bytes is too long to encode", mapped.size()));
  }
  work.word.clear();
  if (parts_.byte_level) {
    append_bytes(mapped, work.word);
  } else {
    append_characters(mapped, work.word);
  }
  parts_.merger.merge(work.word, work.merge, out);
}

void BpeTokenizer::append_bytes(std::string_view mapped, std::vector<int32_t>& ids) const {
  const std::optional<std::string> bytes = undo_byte_level(mapped);
  if (!bytes) throw std::logic_error("a word is not in the byte-level alphabet");
  for (const char byte : *bytes) {
    ids.push_back(parts_.byte_ids[static_cast<unsigned char>(byte)]);
  }
}

void BpeTokenizer::append_characters(std::string_view text, std::vector<int32_t>& ids) const {
  const auto continues = [&](size_t at) { return at < text.size() && (text[at] & 0xC0) == 0x80; };
  for (size_t begin = 0, end; begin < text.size(); begin = end) {
    for (end = begin + 1; continues(end);) ++end;
    const auto found = parts_.vocabulary.find(std::string(text.substr(begin, end - begin)));
    if (found != parts_.vocabulary.end()) ids.push_back(found->second);
  }
}

std::string BpeTokenizer::normalize_text(std::string_view text) const {
  std::string out(text);
  for (const NormalForm form : parts_.normal_forms) out = normalize(out, form);
  return out;
}

std::string_view BpeTokenizer::token_bytes(int32_t id) const {
  return valid(id) ? std::string_view(bytes_[static_cast<size_t>(id)]) : std::string_view();
}

bool BpeTokenizer::is_special(int32_t id) const {
  return valid(id) && special_[static_cast<size_t>(id)];
}

std::optional<int32_t> BpeTokenizer::id_of(std::string_view name) const {
  for (const AddedToken& token : parts_.added) {
    if (token.content == name) return token.id;
  }
  const auto found = parts_.vocabulary.find(std::string(name));
  if (found == parts_.vocabulary.end()) return std::nullopt;
  return found->second;
}

std::string BpeTokenizer::description() const {
  return fmt::format("{} BPE, {} tokens, {} merges", parts_.byte_level ? "byte-level" : "character",
                     parts_.size, parts_.merger.rules());
}

}  // namespace recurve
