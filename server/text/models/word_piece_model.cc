#include "server/text/models/word_piece_model.h"

#include <fmt/core.h>

#include "server/text/utf8.h"

namespace recurve {

WordPieceModel::WordPieceModel(const Parts& parts)
    : unknown_(parts.unknown),
      continuing_(Trie::kRoot),
      prefix_(parts.continuing_prefix),
      most_characters_(parts.most_characters) {
  for (const auto& [name, id] : parts.vocabulary) trie_.add(name, id);
  for (const char c : prefix_) {
    if (continuing_ != Trie::kNone) continuing_ = trie_.next(continuing_, c);
  }
}

class WordPieceModel::Encoder final : public WordEncoder {
 public:
  explicit Encoder(const WordPieceModel& model) : model_(model) {}

  void encode(std::string_view word, const WorkLimits& limits, std::vector<int32_t>& ids) override {
    const size_t begin = ids.size();
    const bool fits = count_characters(word) <= model_.most_characters_;
    if (!fits || !split(word, ids)) {
      ids.resize(begin);
      ids.push_back(model_.unknown_);
    }
    limits.check(ids.size());
  }

 private:
  bool split(std::string_view word, std::vector<int32_t>& ids) const {
    for (size_t at = 0; at < word.size();) {
      const int32_t node = at > 0 ? model_.continuing_ : Trie::kRoot;
      if (node == Trie::kNone) return false;
      const Trie::Match token = model_.trie_.longest(word.substr(at), node);
      if (token.bytes == 0) return false;
      ids.push_back(token.number);
      at += token.bytes;
    }
    return true;
  }

  const WordPieceModel& model_;
};

std::unique_ptr<WordEncoder> WordPieceModel::encoder() const {
  return std::make_unique<Encoder>(*this);
}

std::string WordPieceModel::details() const { return fmt::format("continued by {}", prefix_); }

}  // namespace recurve
