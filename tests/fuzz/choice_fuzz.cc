// A choice of texts.
#include "tests/fuzz/constraint_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return recurve::fuzz::take(recurve::ConstraintText::Form::kChoice, data, size);
}
