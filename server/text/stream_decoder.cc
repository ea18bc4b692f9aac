#include "server/text/stream_decoder.h"

namespace recurve {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, TextPosition position)
    : tokenizer_(&tokenizer),
      strip_(position == TextPosition::kStart ? tokenizer.leading_space() : LeadingSpace::kKeep) {}

std::string StreamDecoder::push(int32_t id) {
  std::string out;
  offset_ = characters_;
  std::string_view bytes = tokenizer_->token_bytes(id);
  if (strip_ == LeadingSpace::kFirstDiffers) {
    if (tokenizer_->is_special(id)) return out;
    bytes = tokenizer_->first_token_bytes(id);
    strip_ = LeadingSpace::kKeep;
  } else if (strip_ != LeadingSpace::kKeep && !bytes.empty()) {
    if (tokenizer_->has_space_mark(id)) bytes.remove_prefix(1);
    if (strip_ == LeadingSpace::kStripOnce || !bytes.empty()) strip_ = LeadingSpace::kKeep;
  }
  const bool begins_anew = !utf8_.empty() && !bytes.empty() && !is_continuation(bytes.front());
  utf8_.push(bytes, out);
  characters_ += count_characters(out);
  if (begins_anew) ++offset_;  // after U+FFFD for what came before
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  utf8_.finish(out);
  return out;
}

std::string decode(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                   TextPosition position) {
  StreamDecoder decoder(tokenizer, position);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

}  // namespace recurve
