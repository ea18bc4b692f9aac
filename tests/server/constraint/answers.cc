// Tells what constraints are and draws answers that they let through, for tests that compare with
// others' implementations: suites_test.py.
//   constraint_answers [TOKENIZER_DIR [MASK_BYTES]]
// Reads lines of JSON: {"schema": ..., "answers": 3, "seed": 1, "texts": ["{}", ...], "times":
// false}. Writes one for each: {"refused": "..."}, or {"answers": [...], "cut": 1, "takes": [true,
// ...], "tokens": 40, "forced": 2, "seconds": 0.01}; in each, "xgrammar" is whether the library by
// itself takes the schema. `tokens` are those of the texts, as the
// tokenizer writes them, as far as they are taken; before `forced` of them nothing else could have
// come, not the end either. Without a tokenizer's directory, the vocabulary is that of the tests
// here, and there are none. `seconds` are those that compiling took of a processor. With `times`
// there are "worked_out" and "kept" too: the microseconds of a processor that each mask took that
// was not there before, and each that was; exact where all fit into MASK_BYTES.
#if __has_include(<xgrammar/xgrammar.h>)
#include <xgrammar/xgrammar.h>
#endif

#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "server/constraint/constraint_library.h"
#include "server/text/tokenizers/tokenizer.h"
#include "tests/server/constraint/byte_vocabulary.h"

namespace recurve {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kMostTokens = 2000;

TokenTexts texts_of(const Tokenizer& tokenizer) {
  TokenTexts texts;
  for (int32_t id = 0; id < tokenizer.size(); ++id) {
    texts.emplace_back(tokenizer.is_special(id) ? "" : tokenizer.token_bytes(id));
  }
  return texts;
}

std::vector<int32_t> ids_in(const std::vector<uint32_t>& mask) {
  std::vector<int32_t> ids;
  for (size_t word = 0; word < mask.size(); ++word) {
    for (uint32_t left = mask[word]; left != 0; left &= left - 1) {
      ids.push_back(static_cast<int32_t>(word * 32 + static_cast<size_t>(__builtin_ctz(left))));
    }
  }
  return ids;
}

// Fills masks, and notes how long each took.
class Filling {
 public:
  explicit Filling(const ConstraintLibrary& library) : library_(library) {}

  void fill(Matcher& matcher, std::vector<uint32_t>* mask) {
    const size_t bytes = library_.cached_bytes().masks;
    const double began = thread_seconds();
    matcher.fill(*mask);
    const double seconds = thread_seconds() - began;
    (library_.cached_bytes().masks == bytes ? kept_ : worked_out_).push_back(1e6 * seconds);
  }
  const std::vector<double>& worked_out() const { return worked_out_; }
  const std::vector<double>& kept() const { return kept_; }

 private:
  const ConstraintLibrary& library_;
  std::vector<double> worked_out_, kept_;  // microseconds
};

// Whether the library by itself takes the schema: what it leaves out it says elsewhere.
bool xgrammar_takes([[maybe_unused]] const std::string& schema) {
#if __has_include(<xgrammar/xgrammar.h>)
  try {
    xgrammar::Grammar::FromJSONSchema(schema);
    return true;
  } catch (const std::exception&) {
  }
#endif
  return false;
}

// Any token that may come; what closes something often, so that most answers end.
std::optional<std::string> draw(const Constraint& constraint, const TokenTexts& texts,
                                std::mt19937_64& random, Filling* filling) {
  const auto matcher = constraint.begin();
  std::vector<uint32_t> mask((texts.size() + 31) / 32);
  std::string text;
  for (int t = 0; t < kMostTokens; ++t) {
    filling->fill(*matcher, &mask);
    std::vector<int32_t> ids = ids_in(mask);
    if (matcher->may_end() && (ids.empty() || random() % 3 == 0)) return text;
    if (ids.empty()) throw std::runtime_error("nothing may follow: " + text);
    std::vector<int32_t> closing;
    for (const int32_t id : ids) {
      if (std::string_view("\"}],:").find(texts[static_cast<size_t>(id)]) !=
          std::string_view::npos) {
        closing.push_back(id);
      }
    }
    if (!closing.empty() && random() % (t < 200 ? 3 : 8) != 0) ids = std::move(closing);
    const int32_t id = ids[random() % ids.size()];
    if (!matcher->accept(id))
      throw std::runtime_error("a token of the mask is not accepted: " +
                               Json(texts.at(static_cast<size_t>(id)))
                                   .dump(-1, ' ', true, Json::error_handler_t::replace) +
                               " behind " + text);
    text += texts[static_cast<size_t>(id)];
  }
  return std::nullopt;
}

bool takes(const Constraint& constraint, const std::vector<int32_t>& bytes,
           const std::string& text) {
  const auto matcher = constraint.begin();
  for (const char byte : text) {
    const int32_t id = bytes[static_cast<unsigned char>(byte)];
    if (id < 0 || !matcher->accept(id)) return false;
  }
  return matcher->may_end();
}

struct Forced {
  int64_t tokens = 0, forced = 0;
};

// Of a text that is taken: how many of its tokens are the only ones that may come in their place.
void count_forced(const Constraint& constraint, std::span<const int32_t> ids, size_t size,
                  Filling* filling, Forced* forced) {
  const auto matcher = constraint.begin();
  std::vector<uint32_t> mask((size + 31) / 32);
  for (const int32_t id : ids) {
    filling->fill(*matcher, &mask);
    const bool only = !matcher->may_end() && ids_in(mask).size() == 1;
    if (!matcher->accept(id)) return;
    ++forced->tokens;
    forced->forced += only;
  }
}

Json answer(ConstraintLibrary& library, const Tokenizer* tokenizer, const TokenTexts& texts,
            const std::vector<int32_t>& bytes, const Json& asked) {
  const std::string schema = asked.at("schema").dump();
  Json out{{"xgrammar", xgrammar_takes(schema)}};
  const double began = thread_seconds();
  std::shared_ptr<const Constraint> constraint;
  try {
    constraint = library.compile({ConstraintText::Form::kJsonSchema, schema}, {});
  } catch (const ConstraintRefused& refused) {
    out["refused"] = refused.what();
    return out;
  }
  out["seconds"] = thread_seconds() - began;
  out["answers"] = out["takes"] = Json::array();
  Filling filling(library);
  std::mt19937_64 random(asked.value("seed", 1u));
  int cut = 0;
  for (int i = 0; i < asked.value("answers", 0); ++i) {
    if (auto text = draw(*constraint, texts, random, &filling)) {
      out["answers"].push_back(*text);
    } else {
      ++cut;
    }
  }
  out["cut"] = cut;
  Forced forced;
  for (const Json& text : asked.value("texts", Json::array())) {
    const auto written = text.get<std::string>();
    out["takes"].push_back(takes(*constraint, bytes, written));
    if (tokenizer == nullptr || !out["takes"].back().get<bool>()) continue;
    count_forced(*constraint,
                 tokenizer->encode(written, SpecialTokens::kAsText, TextPosition::kContinued),
                 texts.size(), &filling, &forced);
  }
  out["tokens"] = forced.tokens;
  out["forced"] = forced.forced;
  if (asked.value("times", false)) {
    out["worked_out"] = filling.worked_out();
    out["kept"] = filling.kept();
  }
  return out;
}

int run(int argc, char** argv) {
  const auto tokenizer = argc > 1 ? load_tokenizer(argv[1]) : nullptr;
  const TokenTexts texts = tokenizer ? texts_of(*tokenizer) : testing::byte_vocabulary();
  std::vector<int32_t> bytes(256, -1);
  for (size_t id = 0; id < texts.size(); ++id) {
    if (texts[id].size() == 1)
      bytes[static_cast<unsigned char>(texts[id][0])] = static_cast<int32_t>(id);
  }
  const auto library = make_constraint_library(
      texts, argc > 2 ? CacheBytes{.masks = std::stoull(argv[2])} : CacheBytes());
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << answer(*library, tokenizer.get(), texts, bytes, Json::parse(line))
                     .dump(-1, ' ', false, Json::error_handler_t::replace)
              << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace recurve

int main(int argc, char** argv) { return recurve::run(argc, argv); }
