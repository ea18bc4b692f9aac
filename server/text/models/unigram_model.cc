#include "server/text/models/unigram_model.h"

#include <algorithm>
#include <set>

#include "server/text/characters.h"
#include "server/text/utf8.h"

namespace recurve {
namespace {

// Bytes of a word after which the pieces that are certain are emitted.
constexpr size_t kBlockBytes = 16 << 10;
// Bytes of a word after which the sum of the current position is subtracted from all, because sums
// in single precision lose the scores otherwise. SentencePiece itself has no such long words.
constexpr size_t kRebaseBytes = 256 << 10;

}  // namespace

UnigramModel::UnigramModel(const std::vector<Piece>& pieces, const Unknown& unknown,
                           Precision precision)
    : unknown_(unknown),
      has_all_bytes_(std::count(unknown.byte_ids.begin(), unknown.byte_ids.end(), -1) == 0),
      precision_(precision) {
  for (const Piece& piece : pieces) {
    const auto id = static_cast<int32_t>(scores_.size());
    scores_.push_back(piece.score);
    lengths_.push_back(static_cast<uint32_t>(piece.text.size()));
    if (piece.control || piece.text.empty()) continue;
    trie_.add(piece.text, id);
    longest_ = std::max(longest_, piece.text.size());
  }
}

// One word at a time. last_pieces_[i] is the last piece of the best path to byte begin_ + i of the
// word, and the pieces before begin_ have been emitted. A position takes four bytes, because in
// some words of megabytes nothing is certain before the end; scores are stored only for the
// positions that one piece can reach.
class UnigramModel::Encoder final : public WordEncoder {
 public:
  explicit Encoder(const UnigramModel& model) : model_(model), scores_(model.longest_ + 1) {}

  void encode(std::string_view word, const WorkLimits& limits, std::vector<int32_t>& ids) override {
    word_ = word;
    begin_ = rebased_at_ = 0;
    unknown_begin_ = unknown_end_ = 0;
    last_pieces_.assign(1, kNone);
    score(0) = 0;
    size_t check = kBlockBytes;
    for (size_t at = 0; at < word.size();) {
      if (at - begin_ >= check) {
        limits.check(ids.size());
        emit(last_common(at), ids);
        if (model_.precision_ == Precision::kSingle) rebase(at);
        check = std::max(kBlockBytes, 2 * (at - begin_));
      }
      at += extend(at);
    }
    emit(word.size(), ids);
    flush_unknown(ids);
    limits.check(ids.size());
  }

 private:
  static constexpr int32_t kNone = -1;

  int32_t& last_piece(size_t at) { return last_pieces_[at - begin_]; }
  // Of the best path to byte `at`, which is within longest_ of the current position.
  double& score(size_t at) { return scores_[at % scores_.size()]; }
  // Of the last piece of the best path to byte `at`, in bytes.
  size_t length(size_t at) {
    if (last_piece(at) != model_.unknown_.id)
      return model_.lengths_[static_cast<size_t>(last_piece(at))];
    return at - characters_before(word_, at, 1);
  }

  // Extends the best path to byte `at` by every piece that begins there. Returns the size of the
  // character there.
  size_t extend(size_t at) {
    const size_t character = first_code_point(word_.substr(at)).bytes;
    const size_t most = std::min(word_.size() - at, model_.longest_);
    if (last_pieces_.size() <= at + most - begin_)
      last_pieces_.resize(at + most - begin_ + 1, kNone);
    const double here = score(at);
    bool single = false;
    int32_t node = Trie::kRoot;
    for (size_t length = 1; length <= most; ++length) {
      node = model_.trie_.next(node, word_[at + length - 1]);
      if (node == Trie::kNone) break;
      const int32_t id = model_.trie_.number(node);
      if (id == Trie::kNone) continue;
      add_path(at + length, here + model_.scores_[static_cast<size_t>(id)], id);
      single |= length == character;
    }
    if (!single) {
      add_path(at + character, rounded(here + model_.unknown_.score), model_.unknown_.id);
    }
    return character;
  }

  // A path to byte `end` whose last piece is `id`. SentencePiece compares a sum before rounding
  // with a rounded one, except for unknown characters.
  void add_path(size_t end, double sum, int32_t id) {
    if (last_piece(end) != kNone && sum <= score(end)) return;
    last_piece(end) = id;
    score(end) = rounded(sum);
  }

  double rounded(double sum) const {
    return model_.precision_ == Precision::kSingle ? static_cast<float>(sum) : sum;
  }

  // The last position that all best paths to byte `at` and beyond have in common.
  size_t last_common(size_t at) {
    std::set<size_t> positions;
    for (size_t end = at; end < begin_ + last_pieces_.size(); ++end) {
      if (end == begin_ || last_piece(end) != kNone) positions.insert(end);
    }
    while (positions.size() > 1) {
      const size_t last = *positions.rbegin();
      positions.erase(last);
      if (last > begin_) positions.insert(last - length(last));
    }
    return *positions.begin();
  }

  // Emits the pieces of the best path to byte `end`.
  void emit(size_t end, std::vector<int32_t>& ids) {
    path_.clear();
    for (size_t at = end; at > begin_; at -= length(at)) path_.push_back(last_piece(at));
    size_t at = begin_;
    for (auto id = path_.rbegin(); id != path_.rend(); ++id) at += emit_piece(*id, at, ids);
    last_pieces_.erase(last_pieces_.begin(),
                       last_pieces_.begin() + static_cast<ptrdiff_t>(end - begin_));
    last_pieces_[0] = kNone;  // its piece has been emitted
    begin_ = end;
  }

  // Subtracts the sum of the current position from those that follow.
  void rebase(size_t at) {
    if (at - rebased_at_ < kRebaseBytes) return;
    rebased_at_ = at;
    const double sum = score(at);
    for (double& one : scores_) one = rounded(one - sum);
  }

  // Emits the piece that begins at byte `at`. Returns its size.
  size_t emit_piece(int32_t id, size_t at, std::vector<int32_t>& ids) {
    if (id != model_.unknown_.id) {
      flush_unknown(ids);
      ids.push_back(id);
      return model_.lengths_[static_cast<size_t>(id)];
    }
    const size_t bytes = first_code_point(word_.substr(at)).bytes;
    if (model_.has_all_bytes_) {
      for (const char byte : word_.substr(at, bytes)) ids.push_back(byte_id(byte));
      return bytes;
    }
    if (unknown_begin_ == unknown_end_) unknown_begin_ = at;
    unknown_end_ = at + bytes;
    return bytes;
  }

  // Adjacent unknown characters become one id, or all their bytes.
  void flush_unknown(std::vector<int32_t>& ids) {
    const std::string_view text = word_.substr(unknown_begin_, unknown_end_ - unknown_begin_);
    unknown_begin_ = unknown_end_;
    if (text.empty()) return;
    if (std::all_of(text.begin(), text.end(), [&](char byte) { return byte_id(byte) >= 0; })) {
      for (const char byte : text) ids.push_back(byte_id(byte));
    } else {
      ids.push_back(model_.unknown_.id);
    }
  }

  int32_t byte_id(char byte) const {
    return model_.unknown_.byte_ids[static_cast<unsigned char>(byte)];
  }

  const UnigramModel& model_;
  std::string_view word_;
  size_t begin_ = 0;
  size_t rebased_at_ = 0;             // the position whose sum is 0
  std::vector<int32_t> last_pieces_;  // [byte - begin_], an id
  std::vector<double> scores_;        // [byte modulo its size]
  std::vector<int32_t> path_;         // scratch
  size_t unknown_begin_ = 0;          // of unknown characters, to which more may be added
  size_t unknown_end_ = 0;
};

std::unique_ptr<WordEncoder> UnigramModel::encoder() const {
  return std::make_unique<Encoder>(*this);
}

std::string UnigramModel::details() const {
  return std::to_string(scores_.size()) + " pieces" +
         (has_all_bytes_ ? ", falls back to bytes" : "");
}

}  // namespace recurve
