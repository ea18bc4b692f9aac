#include "server/text/models/word_piece_model.h"

#include <fmt/core.h>

#include <algorithm>

namespace recurve {

WordPieceModel::WordPieceModel(const Parts& parts)
    : unknown_(parts.unknown),
      continuing_(Trie::kRoot),
      prefix_(parts.continuing_prefix),
      most_characters_(parts.most_characters),
      tokens_(parts.vocabulary.size()) {
  for (const auto& [name, id] : parts.vocabulary) trie_.add(name, id);
  for (const char c : prefix_) {
    if (continuing_ != Trie::kNone) continuing_ = trie_.next(continuing_, c);
  }
}

class WordPieceModel::Encoder final : public WordEncoder {
 public:
  explicit Encoder(const WordPieceModel& model) : model_(model) {}

  void encode(std::string_view word, const WorkLimits& limits, std::vector<int32_t>& ids) override {
    const auto characters =
        std::count_if(word.begin(), word.end(), [](char byte) { return (byte & 0xC0) != 0x80; });
    const size_t begin = ids.size();
    const bool fits = static_cast<size_t>(characters) <= model_.most_characters_;
    if (!fits || !cut(word, ids)) {
      ids.resize(begin);
      ids.push_back(model_.unknown_);
    }
    limits.check(ids.size());
  }

 private:
  bool cut(std::string_view word, std::vector<int32_t>& ids) const {
    for (size_t at = 0; at < word.size();) {
      int32_t id = Trie::kNone;
      const size_t size = longest(word.substr(at), at > 0, &id);
      if (size == 0) return false;
      ids.push_back(id);
      at += size;
    }
    return true;
  }

  // Bytes of the longest token that `text` begins with, 0 if there is none.
  size_t longest(std::string_view text, bool continuing, int32_t* id) const {
    size_t best = 0;
    int32_t node = continuing ? model_.continuing_ : Trie::kRoot;
    for (size_t i = 0; i < text.size() && node != Trie::kNone; ++i) {
      node = model_.trie_.next(node, text[i]);
      if (node == Trie::kNone || model_.trie_.number(node) == Trie::kNone) continue;
      *id = model_.trie_.number(node);
      best = i + 1;
    }
    return best;
  }

  const WordPieceModel& model_;
};

std::unique_ptr<WordEncoder> WordPieceModel::encoder() const {
  return std::make_unique<Encoder>(*this);
}

std::string WordPieceModel::details() const { return fmt::format("continued by {}", prefix_); }

}  // namespace recurve
