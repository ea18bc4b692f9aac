#include <fmt/core.h>

#include <array>
#include <string>
#include <utility>

#include "server/text/json/json_fields.h"
#include "server/text/pre_tokenizers/pre_tokenizer.h"
#include "server/text/pre_tokenizers/regex.h"

namespace recurve {
namespace {

using Json = nlohmann::json;

SplitBehavior read_behavior(Fields& fields) {
  static constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kNames = {{
      {"Isolated", SplitBehavior::kIsolated},
      {"Removed", SplitBehavior::kRemoved},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous},
  }};
  const std::string given = fields.get_string("behavior");
  for (const auto& [name, behavior] : kNames) {
    if (name == given) return behavior;
  }
  fields.unsupported("behavior");
}

PreTokenizer::Split read_split(Fields& fields) {
  return {read_pattern(fields), read_behavior(fields), fields.get_bool("invert")};
}

// Rust's char::is_whitespace.
PreTokenizer::Split white_space() { return {Regex(R"(\s+)"), SplitBehavior::kRemoved, false}; }

// Runs of word characters, and runs of other characters than those and white space. Two characters
// are word characters for Rust's regular expressions, but not for Oniguruma.
PreTokenizer::Split words_and_signs() {
  return {Regex(R"([\w\x{200C}\x{200D}]+|[^\w\s\x{200C}\x{200D}]+)"), SplitBehavior::kRemoved,
          true};
}

// Rust's char::is_numeric.
PreTokenizer::Split read_digits(Fields& fields) {
  const bool individual = fields.get_bool("individual_digits");
  return {Regex(individual ? R"(\p{N})" : R"(\p{N}+)"), SplitBehavior::kIsolated, false};
}

// Unicode's categories P and the other punctuation of ASCII. If a run is one piece, it is one
// match.
PreTokenizer::Split read_punctuation(Fields& fields) {
  const SplitBehavior behavior =
      fields.find("behavior") == nullptr ? SplitBehavior::kIsolated : read_behavior(fields);
  if (behavior == SplitBehavior::kContiguous) {
    return {Regex(R"([\p{P}\$\+<=>\^`\|~]+)"), SplitBehavior::kIsolated, false};
  }
  return {Regex(R"([\p{P}\$\+<=>\^`\|~])"), behavior, false};
}

PreTokenizer::ByteLevel read_byte_level_step(Fields& fields) {
  fields.ignore("trim_offsets");  // about offsets, not ids
  const bool add_prefix_space = fields.get_bool("add_prefix_space");
  return {add_prefix_space, fields.get_bool("use_regex", true)};
}

PreTokenizer::Split read_delimiter(Fields& fields) {
  return {Regex(literal_pattern(fields.get_string("delimiter"))), SplitBehavior::kRemoved, false};
}

// In older files, `add_prefix_space` means the prepend_scheme "always" or "never".
PreTokenizer::Metaspace read_metaspace(Fields& fields, const PreTokenizer& before) {
  using Prepend = PreTokenizer::Metaspace::Prepend;
  fields.ignore("str_rep");
  PreTokenizer::Metaspace step{fields.get_string("replacement"), Prepend::kAlways, true};
  if (step.mark != "\u2581") fields.unsupported("replacement");
  if (!fields.get_bool("add_prefix_space", true)) step.prepend = Prepend::kNever;
  if (fields.find("prepend_scheme") != nullptr) {
    const std::string scheme = fields.get_string("prepend_scheme");
    if (scheme != "always" && scheme != "first" && scheme != "never") {
      fields.bad("prepend_scheme", "\"always\", \"first\" or \"never\"");
    }
    step.prepend = scheme == "always"  ? Prepend::kAlways
                   : scheme == "first" ? Prepend::kFirst
                                       : Prepend::kNever;
  }
  if (step.prepend == Prepend::kFirst && before.splits()) {
    throw UnsupportedTokenizer(fmt::format(
        "{}.prepend_scheme = \"first\" after a step that splits is not supported", fields.where()));
  }
  step.split = fields.get_bool("split", true);
  return step;
}

void add_steps(const Json& json, PreTokenizer& chain) {
  Fields fields(json, "pre_tokenizer");
  const std::string type = fields.get_string("type");
  fields.check_chain(chain.steps().size());
  if (type == "Sequence") {
    for (const Json& part : fields.get_array("pretokenizers")) add_steps(part, chain);
  } else if (type == "ByteLevel") {
    chain.add(read_byte_level_step(fields));
  } else if (type == "Split") {
    chain.add(read_split(fields));
  } else if (type == "Digits") {
    chain.add(read_digits(fields));
  } else if (type == "Punctuation") {
    chain.add(read_punctuation(fields));
  } else if (type == "Metaspace") {
    chain.add(read_metaspace(fields, chain));
  } else if (type == "WhitespaceSplit") {
    chain.add(white_space());
  } else if (type == "Whitespace") {
    chain.add(words_and_signs());
  } else if (type == "CharDelimiterSplit") {
    chain.add(read_delimiter(fields));
  } else if (type == "BertPreTokenizer") {
    // White space is removed and each punctuation character is a piece. The first step splits at
    // both, so that it can process a long text in parts.
    chain.add(
        PreTokenizer::Split{Regex(R"(\s+|[\p{P}\$\+<=>\^`\|~])"), SplitBehavior::kIsolated, false});
    chain.add(white_space());
  } else {
    fields.unsupported("type");
  }
  fields.finish();
}

}  // namespace

PreTokenizer read_pre_tokenizer(const Json* pre_tokenizer) {
  PreTokenizer chain;
  if (pre_tokenizer != nullptr) add_steps(*pre_tokenizer, chain);
  return chain;
}

}  // namespace recurve
