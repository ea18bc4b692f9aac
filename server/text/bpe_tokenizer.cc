#include "server/text/bpe_tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

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

std::vector<int32_t> BpeTokenizer::encode(std::string_view utf8, SpecialTokens special) const {
  if (utf8.size() > std::numeric_limits<int32_t>::max() / 4) {
    throw std::length_error(fmt::format("a text of {} bytes is too long to encode", utf8.size()));
  }
  std::string repaired;
  if (!is_valid_utf8(utf8)) utf8 = repaired = to_valid_utf8(utf8);
  const bool skip_special = special == SpecialTokens::kAsText;
  std::vector<int32_t> ids;
  Workspace work;
  for (const AddedSpan& span : in_raw_text_.find(utf8, skip_special)) {
    if (span.id >= 0) {
      ids.push_back(span.id);
      continue;
    }
    const std::string text = normalize_text(utf8.substr(span.begin, span.end - span.begin));
    for (const AddedSpan& inner : in_normal_text_.find(text, skip_special)) {
      if (inner.id >= 0) {
        ids.push_back(inner.id);
      } else {
        const auto part = std::string_view(text).substr(inner.begin, inner.end - inner.begin);
        encode_raw(part, work, ids);
      }
    }
  }
  return ids;
}

void BpeTokenizer::encode_raw(std::string_view text, Workspace& work,
                              std::vector<int32_t>& out) const {
  const Pieces words = parts_.pre_tokenizer.run(text);
  for (const Pieces::Range word : words.ranges) encode_word(words.piece(word), work, out);
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
