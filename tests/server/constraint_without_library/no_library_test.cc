// A server that was built without the library for constraints says so, whatever it is asked for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/constraint/constraint_library.h"

namespace recurve::no_library_test {
namespace {

using Form = ConstraintText::Form;

TEST(NoLibrary, RefusesEachFormByName) {
  EXPECT_FALSE(has_constraint_library());
  const auto library = make_constraint_library({});
  EXPECT_EQ(library->cached_bytes().masks + library->cached_bytes().rules, 0u);
  for (const Form form : {Form::kJson, Form::kJsonSchema, Form::kRegex, Form::kGrammar,
                          Form::kChoice, Form::kStructuralTag, Form::kToolCalls}) {
    try {
      library->compile({form, "{}"}, {});
      ADD_FAILURE() << "it takes one";
    } catch (const ConstraintRefused& refused) {
      EXPECT_THAT(refused.what(),
                  ::testing::HasSubstr("built without structured output (RECURVE_GRAMMARS)"));
    }
  }
}

}  // namespace
}  // namespace recurve::no_library_test
