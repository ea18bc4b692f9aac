#include "server/text/pre_tokenizer_json.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "server/text/json_fields.h"
#include "server/text/unsupported.h"

namespace recurve {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxSteps = 64;

[[noreturn]] void refuse_type(const Fields& fields, const std::string& type) {
  throw UnsupportedTokenizer(
      fmt::format("{}.type = {} is not supported", fields.where(), quote(type)));
}

void check_steps(size_t steps) {
  if (steps >= kMaxSteps) {
    throw UnsupportedTokenizer(fmt::format("a chain of more than {} steps", kMaxSteps));
  }
}

void add_forms(const Json& json, std::vector<NormalForm>& forms) {
  Fields fields(json, "normalizer");
  const std::string type = fields.get_string("type");
  check_steps(forms.size());
  if (type == "Sequence") {
    for (const Json& part : fields.get_array("normalizers")) add_forms(part, forms);
  } else if (type == "NFC") {
    forms.push_back(NormalForm::kNfc);
  } else if (type == "NFD") {
    forms.push_back(NormalForm::kNfd);
  } else if (type == "NFKC") {
    forms.push_back(NormalForm::kNfkc);
  } else if (type == "NFKD") {
    forms.push_back(NormalForm::kNfkd);
  } else {
    refuse_type(fields, type);
  }
  fields.finish();
}

SplitBehavior read_behavior(Fields& fields) {
  static constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kNames = {{
      {"Isolated", SplitBehavior::kIsolated},
      {"Removed", SplitBehavior::kRemoved},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous},
  }};
  const std::string wanted = fields.get_string("behavior");
  for (const auto& [name, behavior] : kNames) {
    if (name == wanted) return behavior;
  }
  throw UnsupportedTokenizer(
      fmt::format("{}.behavior = {} is not supported", fields.where(), quote(wanted)));
}

// A pattern that matches `text` and nothing else.
std::string literal_pattern(const std::string& text) {
  std::string pattern;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       static_cast<unsigned char>(c) >= 0x80 || c == '\n' || c == '\r' ||
                       c == '\t' || c == '\0';
    if (!plain) pattern.push_back('\\');
    pattern.push_back(c);
  }
  return pattern;
}

PreTokenizer::Split read_split(Fields& fields) {
  Fields pattern(fields.require("pattern"), "pre_tokenizer.pattern");
  const bool literal = pattern.find("String") != nullptr;
  const std::string text = pattern.get_string(literal ? "String" : "Regex");
  pattern.finish();
  return {Regex(literal ? literal_pattern(text) : text), read_behavior(fields),
          fields.get_bool("invert")};
}

// Rust's char::is_numeric.
PreTokenizer::Split read_digits(Fields& fields) {
  const bool individual = fields.get_bool("individual_digits");
  return {Regex(R"(\p{N})"), individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
          false};
}

// Unicode's categories P, and what ASCII calls punctuation besides.
PreTokenizer::Split read_punctuation(Fields& fields) {
  const SplitBehavior behavior =
      fields.find("behavior") == nullptr ? SplitBehavior::kIsolated : read_behavior(fields);
  return {Regex(R"([\p{P}\$\+<=>\^`\|~])"), behavior, false};
}

PreTokenizer::ByteLevel read_byte_level(Fields& fields) {
  fields.ignore("trim_offsets");  // about offsets, not ids
  const bool add_prefix_space = fields.get_bool("add_prefix_space");
  return {add_prefix_space, fields.get_bool("use_regex", true)};
}

void add_steps(const Json& json, PreTokenizer& chain) {
  Fields fields(json, "pre_tokenizer");
  const std::string type = fields.get_string("type");
  check_steps(chain.steps().size());
  if (type == "Sequence") {
    for (const Json& part : fields.get_array("pretokenizers")) add_steps(part, chain);
  } else if (type == "ByteLevel") {
    chain.add(read_byte_level(fields));
  } else if (type == "Split") {
    chain.add(read_split(fields));
  } else if (type == "Digits") {
    chain.add(read_digits(fields));
  } else if (type == "Punctuation") {
    chain.add(read_punctuation(fields));
  } else {
    refuse_type(fields, type);
  }
  fields.finish();
}

}  // namespace

std::vector<NormalForm> read_normalizer(const Json* normalizer) {
  std::vector<NormalForm> forms;
  if (normalizer != nullptr) add_forms(*normalizer, forms);
  return forms;
}

PreTokenizer read_pre_tokenizer(const Json* pre_tokenizer) {
  PreTokenizer chain;
  if (pre_tokenizer != nullptr) add_steps(*pre_tokenizer, chain);
  const auto byte_levels =
      std::count_if(chain.steps().begin(), chain.steps().end(), [](const PreTokenizer::Step& step) {
        return std::holds_alternative<PreTokenizer::ByteLevel>(step);
      });
  if (byte_levels != 1) {
    throw UnsupportedTokenizer(
        fmt::format("the pre_tokenizer has {} steps of type ByteLevel, only byte-level BPE with "
                    "exactly one is supported",
                    byte_levels));
  }
  return chain;
}

}  // namespace recurve
