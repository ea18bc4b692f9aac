#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/serving/text_request.h"
#include "server/serving/validate.h"
#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// The text of one Score on its way from pieces to ids. Holds one piece, of text or of ids, the ids
// asked for, and of the text what waits for a border between tokens. Refusals are kInvalid. One
// thread at a time.
class ScoreInput {
 public:
  // `model` and what `unwanted` points to outlive it. `most_held`: bytes that may wait for a
  // border.
  ScoreInput(const ModelText& model, size_t most_held, const std::atomic<bool>* unwanted)
      : model_(model), most_held_(most_held), limits_{.unwanted = unwanted} {}

  // The next piece, once hungry().
  Refused add(ScorePiece piece);
  void end() { ended_ = true; }  // there are no further pieces
  // Throws WorkUnwanted once that is so. Reads until there are `wanted` ids, or all that was added
  // has been read.
  Refused read(size_t wanted);

  bool hungry() const { return !ended_ && all_read(); }
  bool complete() const { return complete_; }  // all ids of the text are there, or were
  std::vector<int32_t> take_ids() { return std::exchange(ids_, {}); }
  size_t ids() const { return ids_.size(); }
  const ScoreOptions& options() const { return options_; }
  bool is_text() const { return kind_ == Kind::kText; }
  int64_t bytes() const { return bytes_; }  // of the text read, or of the text of its ids

 private:
  enum class Kind { kNone, kText, kIds };

  Refused add_ids(std::vector<int32_t> ids);
  bool all_read() const { return read_ == text_.size() && read_ids_ == piece_ids_.size(); }
  void read_ids(size_t wanted);
  Refused read_text(std::string_view part);
  Refused read_end();

  const ModelText& model_;
  const size_t most_held_;
  const WorkLimits limits_;  // not of tokens: a text may have any number
  bool begun_ = false, ended_ = false, complete_ = false;
  ScoreOptions options_;
  Kind kind_ = Kind::kNone;  // of all pieces
  std::string text_;         // of the last piece
  size_t read_ = 0;          // bytes of it
  std::vector<int32_t> piece_ids_;
  size_t read_ids_ = 0;
  std::string character_;  // of which the rest has not come
  std::unique_ptr<TextEncoder> encoder_;
  std::vector<int32_t> ids_;
  int64_t bytes_ = 0;
  int64_t checked_ids_ = 0;
};

}  // namespace recurve
