// The only file that knows xgrammar (https://github.com/mlc-ai/xgrammar, Apache-2.0).
#include <dlpack/dlpack.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "server/constraint/constraint_library.h"
#include "server/constraint/schema_walk.h"
#include "server/constraint/tag_walk.h"
#include "server/constraint/text_walk.h"
#include "server/constraint/utf8_masks.h"

namespace recurve {
namespace {

// What the library says that it leaves out, of what this thread compiles. It would go to standard
// error, and the constraint would be a weaker one.
thread_local std::string left_out;

}  // namespace
}  // namespace recurve

namespace xgrammar {

// Both are declared by a header of the library that is not installed: cpp/support/logging.h.
[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message);
void LogMessageImpl(const std::string& file, int line, int level, const std::string& message);

void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw recurve::ConstraintRefused(message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level >= kWarning && recurve::left_out.empty()) recurve::left_out = message;
}

}  // namespace xgrammar

namespace recurve {
namespace {

// What is known of the ids without any grammar.
struct Vocabulary {
  explicit Vocabulary(const TokenTexts& tokens) : texts(tokens), utf8(utf8_masks(tokens)) {}
  TokenTexts texts;
  std::array<std::vector<uint32_t>, kUtf8States> utf8;
};

// The library's characters may be surrogates, which are no UTF-8: that it is, is kept to here.
class XgrammarMatcher final : public Matcher {
 public:
  XgrammarMatcher(xgrammar::GrammarMatcher matcher, std::shared_ptr<const Vocabulary> vocabulary)
      : matcher_(std::move(matcher)), vocabulary_(std::move(vocabulary)) {}

  bool accept(int32_t id) override {
    const std::string& text = vocabulary_->texts.at(static_cast<size_t>(id));
    const auto next = utf8_state_after(utf8_, text);
    if (text.empty() || !next || matcher_.IsTerminated() || !matcher_.AcceptToken(id)) return false;
    utf8_ = *next;
    return true;
  }

  void fill(std::span<uint32_t> mask) override {
    int64_t words = static_cast<int64_t>(mask.size());
    DLTensor tensor{.data = mask.data(),
                    .device = {kDLCPU, 0},
                    .ndim = 1,
                    .dtype = xgrammar::GetBitmaskDLType(),
                    .shape = &words,
                    .strides = nullptr,
                    .byte_offset = 0};
    // It says whether there is anything that may not come, and fills the mask only then.
    std::ranges::fill(mask, ~uint32_t{0});
    matcher_.FillNextTokenBitmask(&tensor);
    const std::vector<uint32_t>& utf8 = vocabulary_->utf8[utf8_];
    for (size_t word = 0; word < mask.size(); ++word) mask[word] &= utf8[word];
  }

  bool may_end() const override { return utf8_ == 0 && matcher_.IsCompleted(); }

  std::unique_ptr<Matcher> fork() const override {
    auto fork = std::make_unique<XgrammarMatcher>(matcher_.Fork(), vocabulary_);
    fork->utf8_ = utf8_;
    return fork;
  }

 private:
  xgrammar::GrammarMatcher matcher_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  Utf8State utf8_ = 0;
};

class XgrammarConstraint final : public Constraint {
 public:
  XgrammarConstraint(xgrammar::CompiledGrammar grammar,
                     std::shared_ptr<const Vocabulary> vocabulary, ConstraintText text)
      : grammar_(std::move(grammar)), vocabulary_(std::move(vocabulary)), text_(std::move(text)) {}

  std::unique_ptr<Matcher> begin() const override {
    return std::make_unique<XgrammarMatcher>(xgrammar::GrammarMatcher(grammar_), vocabulary_);
  }
  size_t bytes() const override { return grammar_.MemorySizeBytes() + text_.text.size(); }
  const ConstraintText& text() const override { return text_; }

 private:
  const xgrammar::CompiledGrammar grammar_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const ConstraintText text_;
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
  explicit XgrammarLibrary(const TokenTexts& tokens)
      : compiler_(xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW, std::nullopt,
                                          std::vector<int32_t>{}),
                  /*max_threads=*/1, /*cache_enabled=*/false),
        vocabulary_(std::make_shared<const Vocabulary>(tokens)) {}

  std::shared_ptr<const Constraint> compile(const ConstraintText& text) override {
    left_out.clear();
    try {
      xgrammar::CompiledGrammar grammar = compiled(text);
      if (!left_out.empty()) throw ConstraintRefused(left_out);
      return std::make_shared<XgrammarConstraint>(std::move(grammar), vocabulary_, text);
    } catch (const ConstraintRefused& refused) {
      throw ConstraintRefused("the constraint cannot be enforced: " + std::string(refused.what()));
    } catch (const std::runtime_error& error) {
      throw ConstraintRefused("the constraint cannot be compiled: " + std::string(error.what()));
    }
  }

 private:
  xgrammar::CompiledGrammar compiled(const ConstraintText& text) {
    using Form = ConstraintText::Form;
    switch (text.form) {
      case Form::kJson:
        return checked(of_schema("{}"));
      case Form::kJsonSchema:
        return checked(of_schema(enforceable_schema(text.text)));
      case Form::kRegex:
        return checked(xgrammar::Grammar::FromRegex(enforceable_regex(text.text)));
      case Form::kGrammar:
        check_grammar(text.text);
        return checked(xgrammar::Grammar::FromEBNF(text.text));
      case Form::kChoice:
        return checked(xgrammar::Grammar::FromEBNF(ebnf_of_choices(text.text)));
      case Form::kStructuralTag:
        break;
    }
    return compiler_.CompileStructuralTag(enforceable_tags(text.text));
  }

  static xgrammar::Grammar of_schema(const std::string& schema) {
    return xgrammar::Grammar::FromJSONSchema(schema, /*any_whitespace=*/true, std::nullopt,
                                             std::nullopt, /*strict_mode=*/true, kMostWhitespace);
  }

  // Before the long part of the work.
  xgrammar::CompiledGrammar checked(const xgrammar::Grammar& grammar) {
    if (!left_out.empty()) throw ConstraintRefused(left_out);
    return compiler_.CompileGrammar(grammar);
  }

  // Between two tokens of JSON: a model that is lost would go on with spaces for ever.
  static constexpr int kMostWhitespace = 16;

  xgrammar::GrammarCompiler compiler_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
};

}  // namespace

std::unique_ptr<ConstraintLibrary> make_constraint_library(const TokenTexts& tokens) {
  return std::make_unique<XgrammarLibrary>(tokens);
}
bool has_constraint_library() { return true; }

}  // namespace recurve
