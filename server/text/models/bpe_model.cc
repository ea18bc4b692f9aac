#include "server/text/models/bpe_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "server/text/characters.h"

namespace recurve {

BpeModel::BpeModel(Parts parts) : parts_(std::move(parts)) {
  if (parts_.byte_level) id_of_.assign(parts_.byte_ids.begin(), parts_.byte_ids.end());
  for (const auto& [c, id] : parts_.character_ids) {
    if (c >= id_of_.size()) id_of_.resize(c + 1, -1);
    id_of_[c] = id;
  }
  for (const auto& [word, id] : parts_.whole_words) {
    longest_whole_word_ = std::max(longest_whole_word_, word.size());
  }
}

int32_t BpeModel::id_of(char32_t c) const { return c < id_of_.size() ? id_of_[c] : -1; }

// Appends the tokens of a character's bytes if each has one.
bool BpeModel::append_fallback(std::string_view character, std::vector<int32_t>* symbols) const {
  if (parts_.byte_level) return false;
  const auto id = [&](char byte) { return parts_.byte_ids[static_cast<unsigned char>(byte)]; };
  if (!std::all_of(character.begin(), character.end(), [&](char c) { return id(c) >= 0; })) {
    return false;
  }
  for (const char byte : character) symbols->push_back(id(byte));
  return true;
}

// A word's symbols before any merge, in the order of BPE::merge_word of `tokenizers`: an unknown
// symbol is added before the next known one, after the fallback bytes of characters between them.
class BpeModel::Symbols final : public SymbolSource {
 public:
  Symbols(const BpeModel& model, std::string_view word) : model_(model), word_(word) {}

  bool read(size_t size, std::vector<int32_t>* symbols) override {
    while (at_ < word_.size() && symbols->size() < size) add_next(symbols);
    if (at_ < word_.size()) return true;
    if (unknown_) symbols->push_back(*std::exchange(unknown_, {}));
    return false;
  }
  void rewind() override {
    at_ = 0;
    unknown_.reset();
  }

 private:
  void add_next(std::vector<int32_t>* symbols) {
    const Character c = model_.parts_.byte_level
                            ? Character{static_cast<unsigned char>(word_[at_]), 1}
                            : first_code_point(word_.substr(at_));
    const std::string_view character = word_.substr(at_, c.bytes);
    at_ += c.bytes;
    const int32_t id = model_.id_of(c.code_point);
    if (id >= 0) {
      if (unknown_) symbols->push_back(*std::exchange(unknown_, {}));
      symbols->push_back(id);
    } else if (!model_.append_fallback(character, symbols)) {
      if (unknown_ && !model_.parts_.fuse_unknown) symbols->push_back(*unknown_);
      unknown_ = model_.parts_.unknown;
    }
  }

  const BpeModel& model_;
  std::string_view word_;
  size_t at_ = 0;
  std::optional<int32_t> unknown_;
};

class BpeModel::Encoder final : public WordEncoder {
 public:
  explicit Encoder(const BpeModel& model) : model_(model) {}

  void encode(std::string_view word, const WorkLimits& limits, std::vector<int32_t>& ids) override {
    if (word.size() <= model_.longest_whole_word_) {
      const auto whole = model_.parts_.whole_words.find(std::string(word));
      if (whole != model_.parts_.whole_words.end()) return ids.push_back(whole->second);
    }
    Symbols symbols(model_, word);
    model_.parts_.merger.merge(symbols, work_, limits, ids);
  }

 private:
  const BpeModel& model_;
  BpeMerger::Workspace work_;
};

std::unique_ptr<WordEncoder> BpeModel::encoder() const { return std::make_unique<Encoder>(*this); }

bool BpeModel::joins_symbols() const {
  return parts_.merger.rules() > 0 || !parts_.whole_words.empty() || parts_.unknown.has_value();
}

// Merges join characters that are adjacent in a token. There is no boundary at characters that are
// not tokens: if one is dropped, the characters around it become adjacent.
bool BpeModel::is_boundary(char32_t before, char32_t here) const {
  return !parts_.byte_level && id_of(before) >= 0 && id_of(here) >= 0 &&
         !parts_.neighbours.contains(uint64_t{before} << 32 | here);
}

// The bytes without a token, of those that occur in UTF-8: C0, C1 and F5-FF do not.
int BpeModel::missing_bytes() const {
  int missing = 0;
  for (size_t byte = 0; byte < 0xF5; ++byte) {
    missing += parts_.byte_ids[byte] < 0 && byte != 0xC0 && byte != 0xC1;
  }
  return missing;
}

std::string BpeModel::kind() const {
  return parts_.byte_level ? "byte-level BPE" : "character BPE";
}

std::string BpeModel::details() const {
  std::string text = fmt::format("{} merges", parts_.merger.rules());
  const int missing = missing_bytes();
  if (!parts_.byte_level && missing == 0) text += ", falls back to bytes";
  if (parts_.byte_level && missing > 0) {
    text += fmt::format(", {} byte{} without a token: {}", missing, missing == 1 ? "" : "s",
                        parts_.unknown ? "read as unknown" : "left out of texts");
  }
  return text;
}

}  // namespace recurve
