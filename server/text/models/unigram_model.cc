#include "server/text/models/unigram_model.h"

#include <algorithm>
#include <set>

#include "server/text/characters.h"
#include "server/text/utf8.h"

namespace recurve {
namespace {

// Bytes of a word after which the pieces that are certain are given out.
constexpr size_t kBlockBytes = 16 << 10;
// Bytes of a word after which sums begin anew, as far as they are equal for all that follows: those
// in single precision are no longer any without it. SentencePiece itself has no such words.
constexpr size_t kSummedBytes = 256 << 10;

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

// One word at a time. ways_[i] is the last piece of the best way to its byte begin_ + i, and what
// lies before begin_ has been given out. A place takes four bytes, since there are words of
// megabytes in which nothing is certain before their end; scores are kept only as far as a piece
// may reach.
class UnigramModel::Encoder final : public WordEncoder {
 public:
  explicit Encoder(const UnigramModel& model) : model_(model), scores_(model.longest_ + 1) {}

  void encode(std::string_view word, const WorkLimits& limits, std::vector<int32_t>& ids) override {
    word_ = word;
    begin_ = summed_from_ = 0;
    unknown_begin_ = unknown_end_ = 0;
    ways_.assign(1, kNoWay);
    score(0) = 0;
    size_t check = kBlockBytes;
    for (size_t at = 0; at < word.size();) {
      if (at - begin_ >= check) {
        limits.check(ids.size());
        give_out(certain(at), ids);
        if (model_.precision_ == Precision::kSingle) begin_sums(at);
        check = std::max(kBlockBytes, 2 * (at - begin_));
      }
      at += extend(at);
    }
    give_out(word.size(), ids);
    flush_unknown(ids);
    limits.check(ids.size());
  }

 private:
  static constexpr int32_t kNoWay = -1;

  int32_t& way(size_t at) { return ways_[at - begin_]; }
  // Of the best way to byte `at`; of the places that a piece reaches from the one gone on from.
  double& score(size_t at) { return scores_[at % scores_.size()]; }
  // Of the last piece of the best way to byte `at`, in bytes.
  size_t length(size_t at) {
    if (way(at) != model_.unknown_.id) return model_.lengths_[static_cast<size_t>(way(at))];
    size_t bytes = 1;
    while (is_continuation(word_[at - bytes])) ++bytes;
    return bytes;
  }

  // Goes on from byte `at` with every piece that begins there; the bytes of the character there.
  size_t extend(size_t at) {
    const size_t character = first_code_point(word_.substr(at)).bytes;
    const size_t most = std::min(word_.size() - at, model_.longest_);
    if (ways_.size() <= at + most - begin_) ways_.resize(at + most - begin_ + 1, kNoWay);
    const double here = score(at);
    bool single = false;
    int32_t place = Trie::kRoot;
    for (size_t length = 1; length <= most; ++length) {
      place = model_.trie_.next(place, word_[at + length - 1]);
      if (place == Trie::kNone) break;
      const int32_t id = model_.trie_.number(place);
      if (id == Trie::kNone) continue;
      offer(at + length, here + model_.scores_[static_cast<size_t>(id)], id);
      single |= length == character;
    }
    if (!single) {
      offer(at + character, rounded(here + model_.unknown_.score), model_.unknown_.id);
    }
    return character;
  }

  // A way to byte `end` by a piece. SentencePiece compares a sum that is not
  // rounded yet with one that is, except for unknown characters.
  void offer(size_t end, double sum, int32_t id) {
    if (way(end) != kNoWay && sum <= score(end)) return;
    way(end) = id;
    score(end) = rounded(sum);
  }

  double rounded(double sum) const {
    return model_.precision_ == Precision::kSingle ? static_cast<float>(sum) : sum;
  }

  // The last place that every way through byte `at`, or past it, goes through.
  size_t certain(size_t at) {
    std::set<size_t> ways;
    for (size_t end = at; end < begin_ + ways_.size(); ++end) {
      if (end == begin_ || way(end) != kNoWay) ways.insert(end);
    }
    while (ways.size() > 1) {
      const size_t last = *ways.rbegin();
      ways.erase(last);
      if (last > begin_) ways.insert(last - length(last));
    }
    return *ways.begin();
  }

  // The pieces of the best way to byte `end`.
  void give_out(size_t end, std::vector<int32_t>& ids) {
    path_.clear();
    for (size_t at = end; at > begin_; at -= length(at)) path_.push_back(way(at));
    size_t at = begin_;
    for (auto id = path_.rbegin(); id != path_.rend(); ++id) at += add(*id, at, ids);
    ways_.erase(ways_.begin(), ways_.begin() + static_cast<ptrdiff_t>(end - begin_));
    ways_[0] = kNoWay;  // no piece of what is to come
    begin_ = end;
  }

  // Takes the sum of the place that is gone on from away from all that go on.
  void begin_sums(size_t at) {
    if (at - summed_from_ < kSummedBytes) return;
    summed_from_ = at;
    const double sum = score(at);
    for (double& one : scores_) one = rounded(one - sum);
  }

  // The piece that begins at byte `at`; its bytes.
  size_t add(int32_t id, size_t at, std::vector<int32_t>& ids) {
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

  // Neighbours that are unknown are one: an id, or all their bytes.
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
  size_t summed_from_ = 0;      // where the sums begin
  std::vector<int32_t> ways_;   // [byte behind begin_], an id
  std::vector<double> scores_;  // [byte, round and round]
  std::vector<int32_t> path_;   // scratch
  size_t unknown_begin_ = 0;    // of an unknown stretch that may go on
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
