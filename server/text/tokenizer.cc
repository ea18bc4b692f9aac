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

}  // namespace recurve
