#include "server/text/tokenizers/tokenizer_json.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "server/text/json/json_fields.h"
#include "server/text/normalizers/normalizer_chain.h"
#include "server/text/pre_tokenizers/pre_tokenizer.h"
#include "server/text/tokenizers/pipeline_tokenizer.h"
#include "server/text/tokenizers/token_decoder.h"

namespace recurve {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 32;  // levels of nesting; real files have 6

Json parse_json(std::string_view text) {
  return Json::parse(text, [](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) {
      throw std::runtime_error(
          fmt::format("the JSON is nested more than {} levels deep", kMaxDepth));
    }
    return true;
  });
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

void read_added_tokens(const Json* json, PipelineTokenizer::Parts& parts) {
  if (json == nullptr) return;
  if (!json->is_array()) {
    throw std::runtime_error("added_tokens must be an array, found " + brief(*json));
  }
  for (const Json& token : *json) parts.added.push_back(read_added_token(token));
}

// Checks that each id has one name, and ids begin at 0 without large gaps. Sets parts.size.
void check_ids(PipelineTokenizer::Parts& parts) {
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
    throw std::runtime_error(fmt::format("the largest of {} ids is {}: too many ids are missing",
                                         names.size(), names.back().first));
  }
  parts.size = static_cast<int32_t>(size);
}

void check_unique_contents(const PipelineTokenizer::Parts& parts) {
  std::vector<std::string_view> contents;
  for (const AddedToken& token : parts.added) contents.push_back(token.content);
  std::sort(contents.begin(), contents.end());
  const auto twice = std::adjacent_find(contents.begin(), contents.end());
  if (twice == contents.end()) return;
  throw std::runtime_error(fmt::format("added_tokens has {} twice", quote(*twice)));
}

// A byte-level tokenizer has exactly one ByteLevel in the pre-tokenizer and the decoder ByteLevel,
// and the symbols of its model are bytes.
bool is_byte_level(const PipelineTokenizer::Parts& parts) {
  const auto& steps = parts.pre_tokenizer.steps();
  const auto times = std::count_if(steps.begin(), steps.end(), [](const PreTokenizer::Step& step) {
    return std::holds_alternative<PreTokenizer::ByteLevel>(step);
  });
  const bool decodes = parts.decoder.kind == TokenDecoder::Kind::kByteLevel;
  if (times > 1 || (times == 1) != decodes) {
    throw UnsupportedTokenizer(fmt::format(
        "pre_tokenizer has {} steps of type ByteLevel, and the decoder is {}of this type; "
        "only one with such a decoder, or none with another, is supported",
        times, decodes ? "" : "not "));
  }
  return decodes;
}

// The id of a name in model.vocab, which is an object, or a list of pieces for Unigram.
std::optional<int32_t> id_in_vocabulary(const Json& model, const std::string& name) {
  const auto vocabulary = model.is_object() ? model.find("vocab") : model.end();
  if (!model.is_object() || vocabulary == model.end()) return std::nullopt;
  if (vocabulary->is_object()) {
    const auto found = vocabulary->find(name);
    const bool there = found != vocabulary->end() && found->is_number_unsigned();
    return there ? std::optional(found->get<int32_t>()) : std::nullopt;
  }
  for (size_t id = 0; vocabulary->is_array() && id < vocabulary->size(); ++id) {
    const Json& piece = (*vocabulary)[id];
    if (piece.is_array() && !piece.empty() && piece[0] == name) return static_cast<int32_t>(id);
  }
  return std::nullopt;
}

// Marks the tokens that other files name as control tokens (TokenFiles).
void mark_control_tokens(const TokenFiles& others, const Json& model,
                         PipelineTokenizer::Parts& parts) {
  for (const NamedToken& named : others.control) {
    const auto found = std::ranges::find_if(parts.added, [&](const AddedToken& token) {
      return named.id ? token.id == *named.id : token.content == named.name;
    });
    if (found != parts.added.end()) {
      found->special = true;
      continue;
    }
    const bool too_long = named.name.size() > AddedTokenFinder::kMaxBytes;
    if (named.id || is_one_character(named.name) || too_long) continue;
    const auto id = id_in_vocabulary(model, named.name);
    if (!id) continue;
    AddedToken& token = parts.added.emplace_back();
    token.id = *id;
    token.content = named.name;
    token.special = true;
  }
}

std::optional<int32_t> control_id(const PipelineTokenizer::Parts& parts,
                                  const std::optional<NamedToken>& named, std::string_view usual) {
  if (named) {
    const auto id = parts.id_of(named->name);
    if (id) return id;
    throw std::runtime_error(fmt::format("{} names the {} {}, which does not exist", named->file,
                                         named->key, quote(named->name)));
  }
  for (const std::string_view fallback : {std::string_view("<|endoftext|>"), usual}) {
    for (const AddedToken& token : parts.added) {
      if (token.special && token.content == fallback) return token.id;
    }
  }
  return std::nullopt;
}

PipelineTokenizer::Parts read_parts(std::string_view text, const TokenFiles& others) {
  const Json json = parse_json(text);
  Fields fields(json, "tokenizer");
  PipelineTokenizer::Parts parts;
  fields.ignore("version");
  fields.ignore("post_processor");
  // Of batches for training: transformers applies neither when it encodes one text.
  fields.ignore("truncation");
  fields.ignore("padding");
  const Json* added = fields.find("added_tokens");
  const Json* normalizer = fields.find("normalizer");
  const Json* pre_tokenizer = fields.find("pre_tokenizer");
  const Json* decoder = fields.find("decoder");
  const Json& model = fields.require("model");
  fields.finish();
  read_added_tokens(added, parts);
  mark_control_tokens(others, model, parts);
  parts.normalizer = read_normalizer(normalizer);
  parts.pre_tokenizer = read_pre_tokenizer(pre_tokenizer);
  parts.decoder = read_decoder(decoder);
  read_model(model, is_byte_level(parts), parts);
  check_ids(parts);
  check_unique_contents(parts);
  parts.bos = control_id(parts, others.bos, "<s>");
  parts.eos = control_id(parts, others.eos, "</s>");
  return parts;
}

}  // namespace

std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view json, const std::string& file,
                                                const TokenFiles& others) {
  try {
    return std::make_unique<PipelineTokenizer>(read_parts(json, others));
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
