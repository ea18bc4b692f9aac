#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

namespace recurve {

inline constexpr size_t kMostConstraintBytes = size_t{256} << 10;  // most bytes of a ConstraintText

// A constraint on the text of an answer, as received from a client.
struct ConstraintText {
  enum class Form {
    kJson,           // any JSON value; the text is empty
    kJsonSchema,     // JSON Schema 2020-12 with the keywords of schema_keywords.h
    kRegex,          // must match the whole text
    kGrammar,        // EBNF with a rule `root`
    kChoice,         // a JSON array of strings: one of them
    kStructuralTag,  // free text with constrained parts between marks
    kToolCalls,      // tool calls, in the format of server/serving/tool_use.cc
  };
  Form form = Form::kJson;
  std::string text = {};
  // Of JSON in kJson, kJsonSchema and kStructuralTag: at most kMostWhitespace characters of white
  // space may stand between two tokens. Otherwise one space after each comma and colon.
  bool any_whitespace = false;
  auto operator<=>(const ConstraintText&) const = default;
};

// A constraint that is invalid or not supported; what() is for the client.
class ConstraintRefused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Follows the text of one answer, token by token. One thread at a time. accept() and fill() throw
// ConstraintRefused if a call takes more than kMostSeconds of processor time; the matcher can only
// be destroyed then.
class Matcher {
 public:
  static constexpr double kMostSeconds = 0.25;

  virtual ~Matcher() = default;

  // Appends this id to the text. False, without a change, if the constraint does not allow it.
  virtual bool accept(int32_t id) = 0;
  // Sets the mask of allowed next ids, one bit each, the lowest first, without control tokens. If
  // it is empty, the text cannot continue.
  virtual void fill(std::span<uint32_t> mask) = 0;
  // Whether the text may end here.
  virtual bool may_end() const = 0;
  // A copy at the same position.
  virtual std::unique_ptr<Matcher> fork() const = 0;
};

// A constraint compiled for a vocabulary. Constant: any thread.
class Constraint {
 public:
  virtual ~Constraint() = default;
  // A matcher for an answer of this client, whose cache share its masks use. Throws like a matcher.
  virtual std::unique_ptr<Matcher> begin(uint64_t client = 0) const = 0;
  virtual size_t bytes() const = 0;  // of memory, approximately
  virtual const ConstraintText& text() const = 0;
};

}  // namespace recurve
