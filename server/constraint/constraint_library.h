#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/constraint/constraint.h"

namespace recurve {

// The bytes that each id adds to a text, in the order of ids; none for control tokens.
using TokenTexts = std::vector<std::string>;

// What compiles constraints.
class ConstraintLibrary {
 public:
  virtual ~ConstraintLibrary() = default;
  // May take long. Throws ConstraintRefused. Any thread.
  virtual std::shared_ptr<const Constraint> compile(const ConstraintText& text) = 0;
};

// Where this build has no library for it, one that refuses everything. May take long for a large
// vocabulary.
std::unique_ptr<ConstraintLibrary> make_constraint_library(const TokenTexts& tokens);

// Whether it has one.
bool has_constraint_library();

}  // namespace recurve
