#include "server/text/tokenizers/decoder_json.h"

#include <fmt/core.h>

#include <string>

#include "server/text/json/json_fields.h"
#include "server/text/pre_tokenizers/pattern_json.h"
#include "server/text/unsupported.h"

namespace recurve {
namespace {

using Json = nlohmann::json;
using Kind = TokenDecoder::Kind;

// A Replace of a literal text, before the tokens are joined.
void add_replacement(Fields& fields, TokenDecoder& decoder) {
  Fields pattern(fields.require("pattern"), "decoder.pattern");
  const std::string from = pattern.get_string("String");
  pattern.finish();
  if (from.empty()) pattern.bad("String", "a text that is not empty");
  decoder.replacements.emplace_back(from, fields.get_string("content"));
}

void add_strip(Fields& fields, TokenDecoder& decoder) {
  fields.must_be_neutral("content", " ");
  fields.must_be_neutral("stop", 0);
  const Json& start = fields.require("start");
  if (start != 0 && start != 1) {
    throw UnsupportedTokenizer(fmt::format("decoder.start = {} is not supported", brief(start)));
  }
  decoder.strips_space = start == 1;
}

// `joined`: a Fuse came before.
void add_step(const Json& json, bool* joined, TokenDecoder& decoder) {
  Fields fields(json, "decoder");
  const std::string type = fields.get_string("type");
  const bool of_tokens = type == "Replace" || type == "ByteFallback";
  if (decoder.strips_space || (of_tokens && (*joined || decoder.byte_fallback))) {
    throw UnsupportedTokenizer(fmt::format(
        "a decoder with a step of type {} in this place is not supported", quote(type)));
  }
  if (type == "Replace") {
    add_replacement(fields, decoder);
  } else if (type == "ByteFallback") {
    decoder.byte_fallback = true;
  } else if (type == "Fuse") {
    *joined = true;
  } else if (type == "Strip" && *joined) {
    add_strip(fields, decoder);
  } else {
    refuse_type(fields, type);
  }
  fields.finish();
}

TokenDecoder read_metaspace(Fields& fields) {
  TokenDecoder decoder{.kind = Kind::kMetaspace};
  fields.ignore("str_rep");
  fields.ignore("split");
  decoder.mark = fields.get_string("replacement");
  if (decoder.mark.empty()) fields.bad("replacement", "a character");
  decoder.drops_first_marks = fields.get_bool("add_prefix_space", true);
  if (fields.find("prepend_scheme") != nullptr) {
    decoder.drops_first_marks = fields.get_string("prepend_scheme") != "never";
  }
  return decoder;
}

TokenDecoder read_word_piece(Fields& fields) {
  TokenDecoder decoder{.kind = Kind::kWordPiece};
  decoder.mark = fields.get_string("prefix");
  decoder.cleanup = fields.get_bool("cleanup");
  return decoder;
}

TokenDecoder read_byte_level(Fields& fields) {
  for (const char* about_words : {"add_prefix_space", "trim_offsets", "use_regex"}) {
    fields.ignore(about_words);
  }
  return {.kind = Kind::kByteLevel};
}

}  // namespace

TokenDecoder read_decoder(const Json* json) {
  if (json == nullptr) {
    throw UnsupportedTokenizer("a tokenizer without a decoder is not supported");
  }
  Fields fields(*json, "decoder");
  const std::string type = fields.get_string("type");
  TokenDecoder decoder{.kind = Kind::kReplace};
  bool joined = false;
  if (type == "ByteLevel") {
    decoder = read_byte_level(fields);
  } else if (type == "Metaspace") {
    decoder = read_metaspace(fields);
  } else if (type == "WordPiece") {
    decoder = read_word_piece(fields);
  } else if (type == "Sequence") {
    for (const Json& step : fields.get_array("decoders")) add_step(step, &joined, decoder);
  } else {
    add_step(*json, &joined, decoder);
    return decoder;
  }
  fields.finish();
  return decoder;
}

}  // namespace recurve
