#pragma once
#include <gtest/gtest.h>

#include "server/constraint/constraint_library.h"
#include "tests/server/constraint/byte_vocabulary.h"

namespace recurve::testing {

// Tests of the library that works out masks, over one vocabulary; skipped where there is none.
class WithConstraintLibrary : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
  }
  static ConstraintLibrary& library() {
    static const auto made = make_constraint_library(byte_vocabulary());
    return *made;
  }
};

}  // namespace recurve::testing
