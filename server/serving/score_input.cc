#include "server/serving/score_input.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "server/text/utf8.h"

namespace recurve {

Refused ScoreInput::add(ScorePiece piece) {
  if (!std::exchange(begun_, true)) {
    options_ = std::move(piece.options).value_or(ScoreOptions());
    encoder_ = model_.tokenizer->encoder(
        options_.parse_special ? SpecialTokens::kParse : SpecialTokens::kAsText,
        TextPosition::kStart, limits_);
  } else if (piece.options) {
    return invalid("options", "options must be in the first message only, got them in a later one");
  }
  const auto kind = static_cast<Kind>(piece.content.index());
  if (kind == Kind::kNone) return {};
  if (kind_ != Kind::kNone && kind != kind_) {
    return invalid("piece", "pieces must all be text or all be ids, got both");
  }
  kind_ = kind;
  if (kind == Kind::kIds) return add_ids(std::get<std::vector<int32_t>>(std::move(piece.content)));
  std::string& text = std::get<std::string>(piece.content);
  if (Refused refused = check_text("text", text, model_)) return refused;
  text_ = std::move(text);
  read_ = 0;
  return {};
}

Refused ScoreInput::add_ids(std::vector<int32_t> ids) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= model_.vocab.usable) {
      return invalid("ids", "ids must be in [0, {}), got {} at index {}", model_.vocab.usable, id,
                     checked_ids_);
    }
    ++checked_ids_;
    bytes_ += static_cast<int64_t>(model_.tokenizer->token_bytes(id).size());
  }
  piece_ids_ = std::move(ids);
  read_ids_ = 0;
  return {};
}

void ScoreInput::read_ids(size_t wanted) {
  if (ids_.size() >= wanted) return;
  const std::span rest = std::span(piece_ids_).subspan(read_ids_);
  const auto part = rest.first(std::min(wanted - ids_.size(), rest.size()));
  ids_.insert(ids_.end(), part.begin(), part.end());
  read_ids_ += part.size();
}

Refused ScoreInput::read(size_t wanted) {
  constexpr size_t kReadBytes = 16 << 10;  // so that a long piece does not become ids all at once
  const std::string_view text = text_;
  while (ids_.size() < wanted && read_ < text.size()) {
    const std::string_view part = text.substr(read_, kReadBytes);
    read_ += part.size();
    if (Refused refused = read_text(part)) return refused;
  }
  read_ids(wanted);
  return ended_ && all_read() && !complete_ ? read_end() : Refused();
}

Refused ScoreInput::read_text(std::string_view part) {
  character_.append(part);
  const Utf8Prefix prefix = utf8_prefix(character_);
  if (prefix.broken) {
    return invalid("text", "text must be valid UTF-8, the error is at byte {}",
                   bytes_ + static_cast<int64_t>(prefix.whole));
  }
  bytes_ += static_cast<int64_t>(prefix.whole);
  encoder_->push(std::string_view(character_).substr(0, prefix.whole), /*last=*/false, &ids_);
  character_.erase(0, prefix.whole);
  if (encoder_->held() <= max_held_) return {};
  return invalid("text", "text must have a token boundary within {} bytes, got none in the last {}",
                 max_held_, encoder_->held());
}

Refused ScoreInput::read_end() {
  complete_ = true;
  if (!character_.empty()) {
    return invalid("text", "text must be valid UTF-8, and ends within the character at byte {}",
                   bytes_);
  }
  if (is_text()) encoder_->push({}, /*last=*/true, &ids_);
  return {};
}

}  // namespace recurve
