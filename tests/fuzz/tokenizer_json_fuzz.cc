// Any bytes as a tokenizer.json: refused with a sentence, or a tokenizer that works.
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/stream_decoder.h"
#include "server/text/tokenizers/tokenizer_json.h"
#include "server/text/utf8.h"

namespace {

constexpr std::string_view kText =
    "It's 1234 <|endoftext|>   caf\xC3\xA9!\n\n \xF0\x9F\xA6\x99 e\xCC\x81";

void require(bool holds) {
  if (!holds) std::abort();
}

// Enough text to be read before its end has come.
void require_the_same_in_parts(const recurve::Tokenizer& tokenizer,
                               recurve::SpecialTokens special) {
  std::string text;
  while (text.size() < 6000) text += kText;
  std::string_view rest = text;
  const auto encoder = tokenizer.encoder(special, recurve::TextPosition::kStart);
  std::vector<int32_t> ids;
  for (const size_t size : {4321, 17, 6000}) {
    const size_t part = recurve::utf8_prefix(rest.substr(0, size)).whole;
    encoder->push(rest.substr(0, part), part == rest.size(), &ids);
    rest.remove_prefix(part);
  }
  require(ids == tokenizer.encode(text, special));
}

void use(const recurve::Tokenizer& tokenizer) {
  for (const auto special : {recurve::SpecialTokens::kAsText, recurve::SpecialTokens::kParse}) {
    const auto ids = tokenizer.encode(kText, special);
    for (const int32_t id : ids) require(id >= 0 && id < tokenizer.size());
    require(recurve::is_valid_utf8(recurve::decode(tokenizer, ids)));
    require_the_same_in_parts(tokenizer, special);
  }
  for (int32_t id = -1; id <= tokenizer.size(); ++id) {
    require(!tokenizer.is_special(id) || tokenizer.token_bytes(id).empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  try {
    use(*recurve::parse_tokenizer_json(json, "fuzz"));
  } catch (const std::runtime_error& error) {
    require(std::string_view(error.what()).starts_with("fuzz: "));
  }
  return 0;
}
