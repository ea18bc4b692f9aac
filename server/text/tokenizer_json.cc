#include "server/text/tokenizer_json.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "server/text/bpe_tokenizer.h"
#include "server/text/byte_level.h"
#include "server/text/json_fields.h"
#include "server/text/pre_tokenizer_json.h"
#include "server/text/unsupported.h"

namespace recurve {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 32;  // of nesting; real files have 6

Json parse_json(std::string_view text) {
  return Json::parse(text, [](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) {
      throw std::runtime_error(fmt::format("the JSON is nested more than {} deep", kMaxDepth));
    }
    return true;
  });
}

int32_t vocabulary_id(const std::string& name, const Json& value) {
  constexpr uint64_t kMax = std::numeric_limits<int32_t>::max() - 1;
  if (!value.is_number_unsigned() || value.get<uint64_t>() > kMax) {
    throw std::runtime_error(fmt::format("the id of {} in model.vocab must be a token id, found {}",
                                         quote(name), brief(value)));
  }
  return value.get<int32_t>();
}

BpeTokenizer::Vocabulary read_vocabulary(Fields& model) {
  const Json& json = model.require("vocab");
  if (!json.is_object() || json.empty()) model.bad("vocab", "an object of tokens and ids");
  BpeTokenizer::Vocabulary vocabulary;
  vocabulary.reserve(json.size());
  for (const auto& [name, id] : json.items()) vocabulary.emplace(name, vocabulary_id(name, id));
  return vocabulary;
}

// "a b" or ["a", "b"].
std::pair<std::string, std::string> read_merge(const Json& json) {
  if (json.is_string()) {
    const auto& text = json.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != text.npos && text.find(' ', space + 1) == text.npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  } else if (json.is_array() && json.size() == 2 && json[0].is_string() && json[1].is_string()) {
    return {json[0].get<std::string>(), json[1].get<std::string>()};
  }
  throw std::runtime_error(
      fmt::format("an entry of model.merges must be two tokens, found {}", brief(json)));
}

int32_t known_token(const BpeTokenizer::Vocabulary& vocabulary, const std::string& name) {
  const auto found = vocabulary.find(name);
  if (found == vocabulary.end()) {
    throw std::runtime_error(
        fmt::format("model.merges needs the token {}, which is not in model.vocab", quote(name)));
  }
  return found->second;
}

void read_merges(Fields& model, BpeTokenizer::Parts& parts) {
  int32_t rank = 0;
  for (const Json& json : model.get_array("merges")) {
    if (json.is_string() && json.get_ref<const std::string&>().starts_with("#version")) continue;
    const auto [left, right] = read_merge(json);
    const int32_t left_id = known_token(parts.vocabulary, left);
    const int32_t right_id = known_token(parts.vocabulary, right);
    parts.merger.add_rule(left_id, right_id, rank++, known_token(parts.vocabulary, left + right));
  }
}

void read_model(const Json& json, BpeTokenizer::Parts& parts) {
  Fields model(json, "model");
  if (model.find("type") != nullptr && model.get_string("type") != "BPE") {
    throw UnsupportedTokenizer(
        fmt::format("model.type = {} is not supported", brief(model.require("type"))));
  }
  model.must_be_neutral("dropout", 0.0);
  model.must_be_neutral("continuing_subword_prefix", "");
  model.must_be_neutral("end_of_word_suffix", "");
  model.must_be_neutral("byte_fallback", false);
  if (parts.byte_level) {
    model.ignore("unk_token");  // every byte is a token (read_bytes): nothing is ever unknown
  } else {
    model.must_be_neutral("unk_token", nullptr);
  }
  model.ignore("fuse_unk");
  parts.ignore_merges = model.get_bool("ignore_merges", false);
  parts.vocabulary = read_vocabulary(model);
  read_merges(model, parts);
  model.finish();
}

// Every byte that occurs in UTF-8 needs its token; C0, C1 and F5-FF do not occur.
void read_bytes(BpeTokenizer::Parts& parts) {
  for (int byte = 0; byte < 256; ++byte) {
    std::string name;
    const char c = static_cast<char>(byte);
    append_byte_level({&c, 1}, name);
    const auto found = parts.vocabulary.find(name);
    const bool needed = byte < 0xC0 || (byte > 0xC1 && byte < 0xF5);
    if (found == parts.vocabulary.end() && needed) {
      throw UnsupportedTokenizer(fmt::format(
          "model.vocab has no token for byte 0x{:02X}, written {}; only vocabularies with all "
          "bytes are supported",
          byte, quote(name)));
    }
    parts.byte_ids[static_cast<size_t>(byte)] =
        found == parts.vocabulary.end() ? -1 : found->second;
  }
}

AddedToken read_added_token(const Json& json) {
  Fields fields(json, "added_tokens[]");
  AddedToken token;
  token.id = fields.get_id("id");
  token.content = fields.get_string("content");
  token.special = fields.get_bool("special");
  token.normalized = fields.get_bool("normalized");
  token.single_word = fields.get_bool("single_word");
  token.lstrip = fields.get_bool("lstrip");
  token.rstrip = fields.get_bool("rstrip");
  fields.finish();
  if (token.content.empty() || token.content.size() > AddedTokenFinder::kMaxBytes) {
    throw std::runtime_error(fmt::format("the content of added token {} must have 1 to {} bytes",
                                         token.id, AddedTokenFinder::kMaxBytes));
  }
  return token;
}

void read_added_tokens(const Json* json, BpeTokenizer::Parts& parts) {
  if (json == nullptr) return;
  if (!json->is_array()) {
    throw std::runtime_error("added_tokens must be an array, found " + brief(*json));
  }
  for (const Json& token : *json) parts.added.push_back(read_added_token(token));
}

// One name for each id, ids from 0 without large holes. Sets parts.size.
void check_ids(BpeTokenizer::Parts& parts) {
  std::vector<std::pair<int32_t, std::string_view>> names;
  for (const auto& [name, id] : parts.vocabulary) names.emplace_back(id, name);
  for (const AddedToken& token : parts.added) {
    const auto same = parts.vocabulary.find(token.content);
    if (same == parts.vocabulary.end()) {
      names.emplace_back(token.id, token.content);
    } else if (same->second != token.id) {
      throw std::runtime_error(fmt::format("{} has id {} in added_tokens and {} in model.vocab",
                                           quote(token.content), token.id, same->second));
    }
  }
  std::sort(names.begin(), names.end());
  for (size_t i = 1; i < names.size(); ++i) {
    if (names[i].first != names[i - 1].first) continue;
    throw std::runtime_error(fmt::format("id {} is given to both {} and {}", names[i].first,
                                         quote(names[i - 1].second), quote(names[i].second)));
  }
  const size_t size = static_cast<size_t>(names.back().first) + 1;
  if (size > 2 * names.size() + 1024) {
    throw std::runtime_error(fmt::format("the largest of {} ids is {}: too many are missing",
                                         names.size(), names.back().first));
  }
  parts.size = static_cast<int32_t>(size);
}

void check_unique_contents(const BpeTokenizer::Parts& parts) {
  std::vector<std::string_view> contents;
  for (const AddedToken& token : parts.added) contents.push_back(token.content);
  std::sort(contents.begin(), contents.end());
  const auto twice = std::adjacent_find(contents.begin(), contents.end());
  if (twice == contents.end()) return;
  throw std::runtime_error(fmt::format("added_tokens has {} twice", quote(*twice)));
}

bool is_of_type(const Json* json, const char* type) {
  return json != nullptr && json->is_object() && json->contains("type") && (*json)["type"] == type;
}

void check_decoder(const Json* json) {
  if (is_of_type(json, "ByteLevel")) return;
  throw UnsupportedTokenizer(fmt::format("the decoder must be of type ByteLevel, found {}",
                                         json == nullptr ? "null" : brief(*json)));
}

std::optional<int32_t> named_id(const BpeTokenizer::Parts& parts, std::string_view name) {
  for (const AddedToken& token : parts.added) {
    if (token.content == name) return token.id;
  }
  const auto found = parts.vocabulary.find(std::string(name));
  if (found == parts.vocabulary.end()) return std::nullopt;
  return found->second;
}

std::optional<int32_t> control_id(const BpeTokenizer::Parts& parts,
                                  const std::optional<std::string>& name, std::string_view usual) {
  if (name) {
    const auto id = named_id(parts, *name);
    if (id) return id;
    throw std::runtime_error(fmt::format(
        "tokenizer_config.json names the token {}, which does not exist", quote(*name)));
  }
  for (const std::string_view fallback : {std::string_view("<|endoftext|>"), usual}) {
    for (const AddedToken& token : parts.added) {
      if (token.special && token.content == fallback) return token.id;
    }
  }
  return std::nullopt;
}

BpeTokenizer::Parts read_parts(std::string_view text, const SpecialNames& names) {
  const Json json = parse_json(text);
  Fields fields(json, "tokenizer");
  BpeTokenizer::Parts parts;
  fields.ignore("version");
  fields.ignore("post_processor");
  fields.must_be_neutral("truncation", nullptr);
  fields.must_be_neutral("padding", nullptr);
  const Json* added = fields.find("added_tokens");
  const Json* normalizer = fields.find("normalizer");
  const Json* pre_tokenizer = fields.find("pre_tokenizer");
  const Json* decoder = fields.find("decoder");
  // Nothing cuts the text, and tokens are joined as they are: BPE of characters.
  parts.byte_level = pre_tokenizer != nullptr || !is_of_type(decoder, "Fuse");
  read_model(fields.require("model"), parts);
  fields.finish();
  read_added_tokens(added, parts);
  check_ids(parts);
  check_unique_contents(parts);
  parts.normal_forms = read_normalizer(normalizer);
  if (parts.byte_level) {
    parts.pre_tokenizer = read_pre_tokenizer(pre_tokenizer);
    check_decoder(decoder);
    read_bytes(parts);
  }
  parts.bos = control_id(parts, names.bos, "<s>");
  parts.eos = control_id(parts, names.eos, "</s>");
  return parts;
}

}  // namespace

std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view json, const std::string& file,
                                                const SpecialNames& names) {
  try {
    return std::make_unique<BpeTokenizer>(read_parts(json, names));
  } catch (const Json::parse_error& e) {
    throw std::runtime_error(
        fmt::format("{}: not valid JSON at byte {} of {}", file, e.byte, json.size()));
  } catch (const UnsupportedTokenizer& e) {
    throw UnsupportedTokenizer(fmt::format("{}: {}", file, e.what()));
  } catch (const std::runtime_error& e) {
    throw std::runtime_error(fmt::format("{}: {}", file, e.what()));
  }
}

}  // namespace recurve
