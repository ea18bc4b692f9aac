#include <string>

#include "server/text/json/json_fields.h"
#include "server/text/normalizers/normalizer_chain.h"
#include "server/text/pre_tokenizers/regex.h"

namespace recurve {
namespace {

using Json = nlohmann::json;
using Map = NormalizerChain::Map;

void add_bert(Fields& fields, NormalizerChain& chain) {
  const bool lowercase = fields.get_bool("lowercase", true);
  if (fields.get_bool("clean_text", true)) chain.add(Map::kCleanText);
  if (fields.get_bool("handle_chinese_chars", true)) chain.add(Map::kSpaceChinese);
  if (fields.get_bool("strip_accents", lowercase)) {
    chain.add(NormalForm::kNfd);
    chain.add(Map::kStripNonspacingMarks);
  }
  if (lowercase) chain.add(Map::kLowercase);
}

void add_steps(const Json& json, NormalizerChain& chain) {
  Fields fields(json, "normalizer");
  const std::string type = fields.get_string("type");
  fields.check_chain(chain.steps().size());
  if (type == "Sequence") {
    for (const Json& part : fields.get_array("normalizers")) add_steps(part, chain);
  } else if (type == "NFC") {
    chain.add(NormalForm::kNfc);
  } else if (type == "NFD") {
    chain.add(NormalForm::kNfd);
  } else if (type == "NFKC") {
    chain.add(NormalForm::kNfkc);
  } else if (type == "NFKD") {
    chain.add(NormalForm::kNfkd);
  } else if (type == "Lowercase") {
    chain.add(Map::kLowercase);
  } else if (type == "StripAccents") {
    chain.add(Map::kStripMarks);
  } else if (type == "Nmt") {
    chain.add(Map::kNmt);
  } else if (type == "Precompiled") {
    chain.add(CharsMap(fields.get_string("precompiled_charsmap")));
  } else if (type == "BertNormalizer") {
    add_bert(fields, chain);
  } else if (type == "Prepend") {
    chain.add(NormalizerChain::Prepend{fields.get_string("prepend")});
  } else if (type == "Replace") {
    chain.add(NormalizerChain::Replace{read_pattern(fields), fields.get_string("content")});
  } else if (type == "Strip") {
    chain.add(
        NormalizerChain::Strip{fields.get_bool("strip_left"), fields.get_bool("strip_right")});
  } else {
    fields.unsupported("type");
  }
  fields.finish();
}

}  // namespace

NormalizerChain read_normalizer(const Json* normalizer) {
  NormalizerChain chain;
  if (normalizer != nullptr) add_steps(*normalizer, chain);
  return chain;
}

}  // namespace recurve
