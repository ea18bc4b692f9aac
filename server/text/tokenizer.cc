#include "server/text/tokenizer.h"

#include "server/text/utf8.h"

namespace recurve {

std::vector<int32_t> Tokenizer::encode(std::string_view utf8, SpecialTokens special,
                                       TextPosition position) const {
  std::string repaired;
  if (!is_valid_utf8(utf8)) utf8 = repaired = to_valid_utf8(utf8);
  std::vector<int32_t> ids;
  encoder(special, position)->push(utf8, /*last=*/true, &ids);
  return ids;
}

std::vector<int32_t> Tokenizer::encode(const RangedText& text, TextPosition position) const {
  std::vector<int32_t> ids;
  const auto encoding = encoder(SpecialTokens::kAsText, position);
  const std::string_view utf8 = text.text;
  size_t done = 0;
  for (const ByteRange& range : text.ranges) {
    encoding->push(utf8.substr(done, range.begin - done), false, &ids);
    encoding->set_special(SpecialTokens::kParse, &ids);
    encoding->push(utf8.substr(range.begin, range.end - range.begin), false, &ids);
    encoding->set_special(SpecialTokens::kAsText, &ids);
    done = range.end;
  }
  encoding->push(utf8.substr(done), /*last=*/true, &ids);
  return ids;
}

}  // namespace recurve
