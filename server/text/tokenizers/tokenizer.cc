#include "server/text/tokenizers/tokenizer.h"

#include "server/text/utf8.h"

namespace recurve {
namespace {

// Long texts are passed to an encoder in parts of this size, so that its memory does not grow with
// them.
constexpr size_t kPartBytes = 64 << 10;

void push_in_parts(TextEncoder& encoder, std::string_view utf8, bool last,
                   std::vector<int32_t>* ids) {
  while (utf8.size() > kPartBytes) {
    const size_t size = whole_characters(utf8, kPartBytes);
    encoder.push(utf8.substr(0, size), false, ids);
    utf8.remove_prefix(size);
  }
  encoder.push(utf8, last, ids);
}

// Makes no ids, as there is no text.
class NoText final : public TextEncoder {
 public:
  void push(std::string_view, bool, std::vector<int32_t>*) override {}
  void set_special(SpecialTokens, std::vector<int32_t>*) override {}
  size_t held() const override { return 0; }
};

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view utf8, SpecialTokens special,
                                       TextPosition position, const WorkLimits& limits) const {
  std::string repaired;
  if (!is_valid_utf8(utf8)) utf8 = repaired = to_valid_utf8(utf8);
  std::vector<int32_t> ids;
  push_in_parts(*encoder(special, position, limits), utf8, /*last=*/true, &ids);
  return ids;
}

std::vector<int32_t> Tokenizer::encode(const RangedText& text, TextPosition position,
                                       const WorkLimits& limits) const {
  std::vector<int32_t> ids;
  const auto encoding = encoder(SpecialTokens::kAsText, position, limits);
  const std::string_view utf8 = text.text;
  size_t done = 0;
  for (const ByteRange& range : text.ranges) {
    push_in_parts(*encoding, utf8.substr(done, range.begin - done), false, &ids);
    encoding->set_special(SpecialTokens::kParse, &ids);
    push_in_parts(*encoding, utf8.substr(range.begin, range.end - range.begin), false, &ids);
    encoding->set_special(SpecialTokens::kAsText, &ids);
    done = range.end;
  }
  push_in_parts(*encoding, utf8.substr(done), /*last=*/true, &ids);
  return ids;
}

std::unique_ptr<TextEncoder> IdTokenizer::encoder(SpecialTokens, TextPosition,
                                                  const WorkLimits&) const {
  return std::make_unique<NoText>();
}

}  // namespace recurve
