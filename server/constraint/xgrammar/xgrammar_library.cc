// With xgrammar_place.cc and xgrammar_rules.cc the only file that knows xgrammar
// (https://github.com/mlc-ai/xgrammar, Apache-2.0).
#include <dlpack/dlpack.h>
#include <fmt/format.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <nlohmann/json.hpp>
#include <variant>

#include "server/constraint/constraint_library.h"
#include "server/constraint/mask_cache.h"
#include "server/constraint/regex_walk.h"
#include "server/constraint/schema/schema_walk.h"
#include "server/constraint/tag_walk.h"
#include "server/constraint/text_walk.h"
#include "server/constraint/utf8_masks.h"
#include "server/constraint/work_watch.h"
#include "server/constraint/xgrammar/xgrammar_masks.h"
#include "server/constraint/xgrammar/xgrammar_place.h"
#include "server/constraint/xgrammar/xgrammar_rules.h"
#include "server/constraint/xgrammar/xgrammar_watch.h"
#include "server/text/cut.h"

namespace recurve {
namespace {

// The library's warning about an ignored part of the constraint that this thread compiles.
// Otherwise it would be printed to standard error, and the constraint would allow too much.
thread_local std::string ignored_part;

// Limits of a matcher for each token of an answer.
const CompileBounds kMatcherBounds{.most_seconds = Matcher::kMostSeconds};
constexpr const char* kMatcherRemedy =
    "to compute the next tokens: write it with fewer ways to parse the same text";

}  // namespace
}  // namespace recurve

namespace xgrammar {

// Declared in a header of the library that is not installed: cpp/support/logging.h.
[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message);
void LogMessageImpl(const std::string& file, int line, int level, const std::string& message);

void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw recurve::ConstraintRefused(recurve::cut(message, recurve::kMostRepeated));
}

void LookAtWork(size_t more) { recurve::WorkWatch::check(more); }

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level < kWarning || !recurve::ignored_part.empty()) return;
  // It ends in what the library would do, where the server refuses.
  recurve::ignored_part = message.substr(0, message.find("; ignoring"));
}

}  // namespace xgrammar

namespace recurve {
namespace {

// The vocabulary, and its masks that do not depend on a grammar.
struct Vocabulary {
  explicit Vocabulary(const TokenTexts& tokens) : texts(tokens), utf8(utf8_masks(tokens)) {}
  TokenTexts texts;
  std::array<std::vector<uint32_t>, kUtf8States> utf8;
};

// The state that all matchers of a constraint share.
struct SharedState {
  std::shared_ptr<const Vocabulary> vocabulary;
  std::shared_ptr<MaskCache> masks;
  std::vector<int32_t> control_ids;  // control tokens in the grammar
  uint64_t number;                   // unique for each constraint
};

// The library's characters include surrogates, which are not valid UTF-8 and are excluded here.
class XgrammarMatcher final : public Matcher {
 public:
  XgrammarMatcher(xgrammar::GrammarMatcher matcher, std::shared_ptr<const SharedState> shared,
                  uint64_t client)
      : matcher_(std::move(matcher)), shared_(std::move(shared)), client_(client) {}

  bool accept(int32_t id) override {
    const WorkWatch watch(kMatcherBounds, kMatcherRemedy);
    const std::string& text = shared_->vocabulary->texts.at(static_cast<size_t>(id));
    const auto next = utf8_state_after(utf8_, text);
    if ((text.empty() && !may_come(id)) || !next || matcher_.IsTerminated() ||
        !matcher_.AcceptToken(id))
      return false;
    utf8_ = *next;
    return true;
  }

  void fill(std::span<uint32_t> mask) override {
    std::string position = place_of(matcher_);
    if (position.empty()) return compute(mask);
    position += static_cast<char>(utf8_);
    position.append(reinterpret_cast<const char*>(&shared_->number), sizeof(shared_->number));
    if (shared_->masks->find(position, client_, mask)) return;
    compute(mask);
    shared_->masks->put(std::move(position), client_, mask);
  }

  bool may_end() const override { return utf8_ == 0 && matcher_.IsCompleted(); }

  std::unique_ptr<Matcher> fork() const override {
    auto fork = std::make_unique<XgrammarMatcher>(matcher_.Fork(), shared_, client_);
    fork->utf8_ = utf8_;
    return fork;
  }

 private:
  void compute(std::span<uint32_t> mask) {
    const WorkWatch watch(kMatcherBounds, kMatcherRemedy);
    int64_t words = static_cast<int64_t>(mask.size());
    DLTensor tensor{.data = mask.data(),
                    .device = {kDLCPU, 0},
                    .ndim = 1,
                    .dtype = xgrammar::GetBitmaskDLType(),
                    .shape = &words,
                    .strides = nullptr,
                    .byte_offset = 0};
    // The library does not fill the mask if every token is allowed.
    std::ranges::fill(mask, ~uint32_t{0});
    matcher_.FillNextTokenBitmask(&tensor);
    const std::vector<uint32_t>& utf8 = shared_->vocabulary->utf8[utf8_];
    const std::vector<int32_t>& control_ids = shared_->control_ids;
    const auto bit = [](int32_t id) { return uint32_t{1} << (static_cast<size_t>(id) % 32); };
    std::array<bool, 2> named{};
    for (size_t i = 0; i < control_ids.size(); ++i) {
      const int32_t id = control_ids[i];
      named.at(i) = may_come(id) && (mask[static_cast<size_t>(id) / 32] & bit(id)) != 0;
    }
    for (size_t word = 0; word < mask.size(); ++word) mask[word] &= utf8[word];
    for (size_t i = 0; i < control_ids.size(); ++i) {
      if (named.at(i)) mask[static_cast<size_t>(control_ids[i]) / 32] |= bit(control_ids[i]);
    }
  }
  // Whether a token without text is allowed: a control token of the grammar, between characters.
  bool may_come(int32_t id) const {
    return utf8_ == 0 && std::ranges::find(shared_->control_ids, id) != shared_->control_ids.end();
  }

  xgrammar::GrammarMatcher matcher_;
  const std::shared_ptr<const SharedState> shared_;
  const uint64_t client_;
  Utf8State utf8_ = 0;
};

class XgrammarConstraint final : public Constraint {
 public:
  XgrammarConstraint(xgrammar::CompiledGrammar grammar,
                     std::shared_ptr<const Vocabulary> vocabulary, std::shared_ptr<MaskCache> masks,
                     ConstraintText text)
      : grammar_(std::move(grammar)), text_(std::move(text)) {
    static std::atomic<uint64_t> constraints = 0;
    shared_ = std::make_shared<const SharedState>(SharedState{
        .vocabulary = std::move(vocabulary),
        .masks = std::move(masks),
        .control_ids = text_.form == ConstraintText::Form::kToolCalls ? control_ids_of(text_.text)
                                                                      : std::vector<int32_t>(),
        .number = ++constraints});
  }

  std::unique_ptr<Matcher> begin(uint64_t client) const override {
    const WorkWatch watch(kMatcherBounds, kMatcherRemedy);
    return std::make_unique<XgrammarMatcher>(xgrammar::GrammarMatcher(grammar_), shared_, client);
  }
  size_t bytes() const override { return bytes_of(grammar_) + text_.text.size(); }
  const ConstraintText& text() const override { return text_; }

 private:
  const xgrammar::CompiledGrammar grammar_;
  const ConstraintText text_;
  std::shared_ptr<const SharedState> shared_;
};

std::string ebnf_of_choices(const std::string& text) {
  std::string ebnf = "root ::= ";
  for (const std::string& choice : read_choices(text)) {
    if (!ebnf.ends_with("= ")) ebnf += " | ";
    ebnf += '"' + escaped_for_ebnf(choice) + '"';
  }
  return ebnf;
}

class XgrammarLibrary final : public ConstraintLibrary {
 public:
  XgrammarLibrary(const TokenTexts& tokens, CacheBytes most)
      : compiler_(xgrammar::TokenizerInfo(with_control_tokens(tokens), xgrammar::VocabType::RAW,
                                          std::nullopt, std::vector<int32_t>{}),
                  /*max_threads=*/1, /*cache_enabled=*/false),
        vocabulary_(std::make_shared<const Vocabulary>(tokens)),
        masks_(std::make_shared<MaskCache>(most.masks)),
        rules_(most.rules) {}

  std::shared_ptr<const Constraint> compile(const ConstraintText& text,
                                            const CompileBounds& bounds) override {
    ignored_part.clear();
    const WorkWatch watch(bounds,
                          "to compile: write it with fewer and smaller repeats, with fewer "
                          "properties or with shorter texts",
                          kMostCompileBytes + text.text.size());
    const RuleMasks::Use use(&rules_, bounds.client);
    try {
      xgrammar::CompiledGrammar grammar = checked(grammar_of(text));
      if (!ignored_part.empty()) throw ConstraintRefused(cut(ignored_part, kMostRepeated));
      return std::make_shared<XgrammarConstraint>(std::move(grammar), vocabulary_, masks_, text);
    } catch (const ConstraintRefused& refused) {
      throw ConstraintRefused("the constraint cannot be enforced: " + std::string(refused.what()));
    } catch (const std::runtime_error& error) {
      throw ConstraintRefused("the constraint cannot be compiled: " +
                              cut(error.what(), kMostRepeated));
    }
  }

  CacheBytes cached_bytes() const override {
    return {.masks = masks_->bytes(), .rules = rules_.bytes()};
  }

 private:
  // The library never allows ids without text, even if a grammar names them. So control tokens get
  // a byte that is not valid UTF-8.
  static TokenTexts with_control_tokens(TokenTexts tokens) {
    for (std::string& text : tokens) {
      if (text.empty()) text = "\xff";
    }
    return tokens;
  }

  // What it is read from is gone before the grammar is compiled.
  static xgrammar::Grammar grammar_of(const ConstraintText& text) {
    using Form = ConstraintText::Form;
    switch (text.form) {
      case Form::kJson:
        return of_schema("{}", text.any_whitespace);
      case Form::kJsonSchema:
        return of_schema(enforceable_schema(text.text), text.any_whitespace);
      case Form::kRegex:
        return xgrammar::Grammar::FromEBNF("root ::= " + ebnf_of_regex(text.text));
      case Form::kGrammar:
        check_grammar(text.text);
        return xgrammar::Grammar::FromEBNF(text.text);
      case Form::kChoice:
        return xgrammar::Grammar::FromEBNF(ebnf_of_choices(text.text));
      case Form::kStructuralTag:
        return of_tags(enforceable_tags(text.text, text.any_whitespace));
      case Form::kToolCalls:
        break;
    }
    return of_tags(enforceable_calls(text.text));
  }

  static xgrammar::Grammar of_tags(const std::string& tags) {
    auto grammar = xgrammar::Grammar::FromStructuralTag(tags);
    if (auto* made = std::get_if<xgrammar::Grammar>(&grammar)) return std::move(*made);
    throw ConstraintRefused(std::visit([](const auto& error) { return text_of(error); }, grammar));
  }
  static std::string text_of(const xgrammar::Grammar&) { return ""; }
  static std::string text_of(const xgrammar::StructuralTagError& error) {
    return std::visit([](const auto& one) { return cut(one.what(), kMostRepeated); }, error);
  }

  static xgrammar::Grammar of_schema(const std::string& schema, bool any_whitespace) {
    return xgrammar::Grammar::FromJSONSchema(
        schema, any_whitespace, std::nullopt, std::nullopt, /*strict_mode=*/true,
        any_whitespace ? std::optional(kMostWhitespace) : std::nullopt);
  }

  // Refuses the grammar before the long part of the compilation.
  xgrammar::CompiledGrammar checked(const xgrammar::Grammar& grammar) {
    if (!ignored_part.empty()) throw ConstraintRefused(cut(ignored_part, kMostRepeated));
    return compiler_.CompileGrammar(grammar);
  }

  xgrammar::GrammarCompiler compiler_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const std::shared_ptr<MaskCache> masks_;
  RuleMasks rules_;
};

}  // namespace

std::unique_ptr<ConstraintLibrary> make_constraint_library(const TokenTexts& tokens,
                                                           CacheBytes most) {
  return std::make_unique<XgrammarLibrary>(tokens, most);
}
bool has_constraint_library() { return true; }

}  // namespace recurve
