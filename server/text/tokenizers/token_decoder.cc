#include "server/text/tokenizers/token_decoder.h"

#include <fmt/core.h>

#include <array>
#include <string>

#include "server/text/json/json_fields.h"
#include "server/text/models/byte_level.h"

namespace recurve {
namespace {

void replace_all(std::string_view from, std::string_view to, std::string& text) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// The replacements of WordPiece's cleanup in `tokenizers`, in its order.
void clean_up(std::string& text) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kRules = {{
      {" .", "."},
      {" ?", "?"},
      {" !", "!"},
      {" ,", ","},
      {" ' ", "'"},
      {" n't", "n't"},
      {" 'm", "'m"},
      {" do not", " don't"},
      {" 's", "'s"},
      {" 've", "'ve"},
      {" 're", "'re"},
  }};
  for (const auto& [from, to] : kRules) replace_all(from, to, text);
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

using Json = nlohmann::json;
using Kind = TokenDecoder::Kind;

// A Replace of a literal text in each token, before a Fuse.
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
  if (start != 0 && start != 1) fields.unsupported("start");
  decoder.strips_space = start == 1;
}

// `joined`: after a Fuse.
void add_step(const Json& json, bool* joined, TokenDecoder& decoder) {
  Fields fields(json, "decoder");
  const std::string type = fields.get_string("type");
  const bool of_tokens = type == "Replace" || type == "ByteFallback";
  if (decoder.strips_space || (of_tokens && (*joined || decoder.byte_fallback))) {
    throw UnsupportedTokenizer(fmt::format(
        "a decoder with a step of type {} at this position is not supported", quote(type)));
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
    fields.unsupported("type");
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
  for (const char* of_encoding : {"add_prefix_space", "trim_offsets", "use_regex"}) {
    fields.ignore(of_encoding);
  }
  return {.kind = Kind::kByteLevel};
}

}  // namespace

int byte_of_name(std::string_view name) {
  if (name.size() != 6 || !name.starts_with("<0x") || name[5] != '>') return -1;
  const int high = hex_digit(name[3]), low = hex_digit(name[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string TokenDecoder::bytes_of(std::string_view name, bool first) const {
  if (kind == Kind::kByteLevel) return decode_byte_level(name).value_or(std::string(name));
  std::string text(name);
  if (kind == Kind::kMetaspace) {
    // `tokenizers` drops all marks of the first token; SentencePiece keeps the inner ones.
    if (first && drops_first_marks && text.starts_with(mark)) text.erase(0, mark.size());
    replace_all(mark, " ", text);
  } else if (kind == Kind::kWordPiece) {
    if (!first) text = name.starts_with(mark) ? text.substr(mark.size()) : " " + text;
    if (cleanup) clean_up(text);
  }
  for (const auto& [from, to] : replacements) replace_all(from, to, text);
  const int byte = byte_fallback ? byte_of_name(text) : -1;
  return byte < 0 ? text : std::string(1, static_cast<char>(byte));
}

LeadingSpace TokenDecoder::leading_space() const {
  if (kind == Kind::kMetaspace || kind == Kind::kWordPiece) return LeadingSpace::kFirstDiffers;
  return strips_space ? LeadingSpace::kStripOnce : LeadingSpace::kKeep;
}

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
