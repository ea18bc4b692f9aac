#pragma once
#include <grpcpp/support/status.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "recurve/v1/inference.pb.h"
#include "server/rpc/validate.h"
#include "server/text/tokenizer.h"

namespace recurve {

// The text of one Score on its way from messages to ids. Holds one message, the ids asked for, and
// of the text what waits for a border between tokens. Refusals are INVALID_ARGUMENT. One thread at
// a time.
class ScoreInput {
 public:
  // `rules` and what `unwanted` points to outlive it. `most_held`: bytes that may wait for a
  // border.
  ScoreInput(const RequestRules& rules, size_t most_held, const std::atomic<bool>* unwanted)
      : rules_(rules), most_held_(most_held), limits_{.unwanted = unwanted} {}

  // The next message, once hungry().
  grpc::Status add(v1::ScoreRequest piece);
  void end() { ended_ = true; }  // there are no further messages
  // Throws WorkUnwanted once that is so. Reads until there are `wanted` ids, or all that was added
  // has been read.
  grpc::Status read(size_t wanted);

  bool hungry() const { return !ended_ && read_ == piece_.text().size(); }
  bool complete() const { return complete_; }  // all ids of the text are there, or were
  std::vector<int32_t> take_ids() { return std::exchange(ids_, {}); }
  size_t ids() const { return ids_.size(); }
  const v1::ScoreOptions& options() const { return options_; }
  bool is_text() const { return kind_ == v1::ScoreRequest::kText; }
  int64_t bytes() const { return bytes_; }  // of the text read, or of the text of its ids

 private:
  grpc::Status add_ids(const v1::TokenIds& ids);
  grpc::Status read_text(std::string_view part);
  grpc::Status read_end();

  const RequestRules& rules_;
  const size_t most_held_;
  const WorkLimits limits_;  // not of tokens: a text may have any number
  bool begun_ = false, ended_ = false, complete_ = false;
  v1::ScoreOptions options_;
  v1::ScoreRequest::PieceCase kind_ = v1::ScoreRequest::PIECE_NOT_SET;
  v1::ScoreRequest piece_;
  size_t read_ = 0;        // bytes of the piece's text
  std::string character_;  // of which the rest has not come
  std::unique_ptr<TextEncoder> encoder_;
  std::vector<int32_t> ids_;
  int64_t bytes_ = 0;
  int64_t checked_ids_ = 0;
};

}  // namespace recurve
