#include "server/rpc/score_input.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "server/rpc/status.h"
#include "server/text/utf8.h"

namespace recurve {

using grpc::Status;

Status ScoreInput::add(v1::ScoreRequest piece) {
  if (!std::exchange(begun_, true)) {
    options_ = piece.options();
    encoder_ = rules_.tokenizer->encoder(
        options_.parse_special() ? SpecialTokens::kParse : SpecialTokens::kAsText,
        TextPosition::kStart, limits_);
  } else if (piece.has_options()) {
    return invalid("options must be in the first message only, got them in a later one");
  }
  const auto kind = piece.piece_case();
  if (kind == v1::ScoreRequest::PIECE_NOT_SET) return {};
  if (kind_ != v1::ScoreRequest::PIECE_NOT_SET && kind != kind_) {
    return invalid("pieces must all be text or all be ids, got both");
  }
  kind_ = kind;
  if (kind == v1::ScoreRequest::kIds) return add_ids(piece.ids());
  const Status status = check_text("text", piece.text(), rules_);
  if (!status.ok()) return status;
  piece_ = std::move(piece);
  read_ = 0;
  return {};
}

Status ScoreInput::add_ids(const v1::TokenIds& piece) {
  for (const int32_t id : piece.ids()) {
    if (id < 0 || id >= rules_.vocab.usable) {
      return invalid("ids must be in [0, {}), got {} at index {}", rules_.vocab.usable, id,
                     checked_ids_);
    }
    ++checked_ids_;
    bytes_ += static_cast<int64_t>(rules_.tokenizer->token_bytes(id).size());
    ids_.push_back(id);
  }
  return {};
}

Status ScoreInput::read(size_t wanted) {
  constexpr size_t kReadBytes = 16 << 10;  // so that a long message is not all ids at once
  const std::string_view text = piece_.text();
  while (ids_.size() < wanted && read_ < text.size()) {
    const std::string_view part = text.substr(read_, kReadBytes);
    read_ += part.size();
    const Status status = read_text(part);
    if (!status.ok()) return status;
  }
  const bool all_read = read_ == text.size();
  return ended_ && all_read && !complete_ ? read_end() : Status();
}

Status ScoreInput::read_text(std::string_view part) {
  character_.append(part);
  const Utf8Prefix prefix = utf8_prefix(character_);
  if (prefix.broken) {
    return invalid("text must be UTF-8, and is not at byte {}",
                   bytes_ + static_cast<int64_t>(prefix.whole));
  }
  bytes_ += static_cast<int64_t>(prefix.whole);
  encoder_->push(std::string_view(character_).substr(0, prefix.whole), /*last=*/false, &ids_);
  character_.erase(0, prefix.whole);
  if (encoder_->held() <= most_held_) return {};
  return invalid("text must have a border between tokens within {} bytes, got none in the last {}",
                 most_held_, encoder_->held());
}

Status ScoreInput::read_end() {
  complete_ = true;
  if (!character_.empty()) {
    return invalid("text must be UTF-8, and ends within the character at byte {}", bytes_);
  }
  if (is_text()) encoder_->push({}, /*last=*/true, &ids_);
  return {};
}

}  // namespace recurve
