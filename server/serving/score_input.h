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

// Converts the pieces of a text to be scored to ids. Holds one piece of text or ids, the ids that
// were read, and the text that waits for a token boundary. Refusals are kInvalid. One thread at a
// time.
class ScoreInput {
 public:
  // `model` and `unwanted` outlive it. `max_held`: bytes that may wait for a token boundary.
  ScoreInput(const ModelText& model, size_t max_held, const std::atomic<bool>* unwanted)
      : model_(model), max_held_(max_held), limits_{.unwanted = unwanted} {}

  // The next piece, once hungry().
  Refused add(ScorePiece piece);
  void end() { ended_ = true; }  // there are no further pieces
  // Reads until there are `wanted` ids or everything that was added is read. Throws WorkUnwanted.
  Refused read(size_t wanted);

  bool hungry() const { return !ended_ && all_read(); }
  bool complete() const { return complete_; }  // all ids of the text have been read
  std::vector<int32_t> take_ids() { return std::exchange(ids_, {}); }
  size_t ids() const { return ids_.size(); }
  const ScoreOptions& options() const { return options_; }
  bool is_text() const { return kind_ == Kind::kText; }
  int64_t bytes() const { return bytes_; }  // of the text that was read, or of the text of its ids

 private:
  enum class Kind { kNone, kText, kIds };

  Refused add_ids(std::vector<int32_t> ids);
  bool all_read() const { return read_ == text_.size() && read_ids_ == piece_ids_.size(); }
  void read_ids(size_t wanted);
  Refused read_text(std::string_view part);
  Refused read_end();

  const ModelText& model_;
  const size_t max_held_;
  const WorkLimits limits_;  // without a limit of tokens
  bool begun_ = false, ended_ = false, complete_ = false;
  ScoreOptions options_;
  Kind kind_ = Kind::kNone;  // of all pieces
  std::string text_;         // of the last piece
  size_t read_ = 0;          // bytes of it
  std::vector<int32_t> piece_ids_;
  size_t read_ids_ = 0;
  std::string character_;  // incomplete
  std::unique_ptr<TextEncoder> encoder_;
  std::vector<int32_t> ids_;
  int64_t bytes_ = 0;
  int64_t checked_ids_ = 0;
};

}  // namespace recurve
