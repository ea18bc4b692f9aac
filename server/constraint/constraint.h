#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

namespace recurve {

inline constexpr size_t kMostConstraintBytes = size_t{256} << 10;  // of a ConstraintText

// What an answer's text must be, as a client says it.
struct ConstraintText {
  enum class Form {
    kJson,           // any JSON value; the text is empty
    kJsonSchema,     // of JSON Schema 2020-12, with the keywords of schema_keywords.h
    kRegex,          // the whole text matches
    kGrammar,        // EBNF, whose first rule is `root`
    kChoice,         // a JSON array of strings: one of them
    kStructuralTag,  // free text, with parts between marks that are constrained
    kToolCalls,      // calls of tools, as server/serving/tool_use.cc says them
  };
  Form form = Form::kJson;
  std::string text = {};
  auto operator<=>(const ConstraintText&) const = default;
};

// A constraint that is not served: in a sentence for whoever asked.
class ConstraintRefused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Follows the text of one answer, token by token. One thread at a time. accept() and fill() throw
// ConstraintRefused where one takes more than kMostSeconds of a processor; it is of no use then.
class Matcher {
 public:
  static constexpr double kMostSeconds = 0.25;

  virtual ~Matcher() = default;

  // The text goes on with this id. False, and nothing is changed, where it may not.
  virtual bool accept(int32_t id) = 0;
  // The ids with which it may go on, one bit each, the lowest first; control tokens are not among
  // them. A mask of no bits is one that cannot go on.
  virtual void fill(std::span<uint32_t> mask) = 0;
  // Whether the text may end here.
  virtual bool may_end() const = 0;
  // Another one that stands where this one does.
  virtual std::unique_ptr<Matcher> fork() const = 0;
};

// A constraint that has been compiled for a vocabulary. Constant: any thread.
class Constraint {
 public:
  virtual ~Constraint() = default;
  // For an answer of this client, to whose share belongs what is kept of it. Throws as a matcher
  // does.
  virtual std::unique_ptr<Matcher> begin(uint64_t client = 0) const = 0;
  virtual size_t bytes() const = 0;  // of memory, about
  // What it was compiled from.
  virtual const ConstraintText& text() const = 0;
};

}  // namespace recurve
