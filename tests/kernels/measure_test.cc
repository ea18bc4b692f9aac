// Which of two ways to multiply is the faster one here.
#include <gtest/gtest.h>

#if RECURVE_CPU
#include "kernels/cpu/products/measure.h"
#include "kernels/formats/int4.h"
#include "kernels/formats/plain.h"
#include "kernels/reference/table.h"

namespace recurve::testing::measure_test {

void once(const LinearArgs& args, Stream& stream) { reference::run(args, stream); }

void thrice(const LinearArgs& args, Stream& stream) {
  for (int i = 0; i < 3; ++i) reference::run(args, stream);
}

TEST(IsFaster, IsMeasuredWithTheFormatsWeights) {
  for (const WeightFormat* format : {&kBf16Weights, &kInt4Weights}) {
    EXPECT_TRUE(cpu::is_faster(once, thrice, *format)) << format->name;
    EXPECT_FALSE(cpu::is_faster(thrice, once, *format)) << format->name;
  }
}

}  // namespace recurve::testing::measure_test
#endif
