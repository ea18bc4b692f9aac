#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/constraint/constraint.h"

namespace recurve {

// The bytes that each id adds to a text, in the order of ids; none for control tokens.
using TokenTexts = std::vector<std::string>;

// When a compilation is given up.
struct CompileBounds {
  double most_seconds = 20;                     // that the thread has computed
  const std::atomic<bool>* unwanted = nullptr;  // null: nobody says so
};
// It has been, as it was not wanted any more.
class CompileUnwanted {};

// What compiles constraints.
class ConstraintLibrary {
 public:
  virtual ~ConstraintLibrary() = default;
  // May take as long as the bounds let it. Throws ConstraintRefused and CompileUnwanted. Any
  // thread.
  virtual std::shared_ptr<const Constraint> compile(const ConstraintText& text,
                                                    const CompileBounds& bounds) = 0;
};

// Where this build has no library for it, one that refuses everything. May take long for a large
// vocabulary.
std::unique_ptr<ConstraintLibrary> make_constraint_library(const TokenTexts& tokens);

// Whether it has one.
bool has_constraint_library();

}  // namespace recurve
