// Which products a processor's linear layers have: by what it is, as the choice decides over bits.
#include <gtest/gtest.h>

#if RECURVE_CPU
#include <hwy/targets.h>

#include <vector>

#include "kernels/cpu/products/table.h"
#include "kernels/formats/int4.h"
#include "kernels/formats/int8.h"
#include "kernels/formats/plain.h"
#include "kernels/reference/table.h"

namespace recurve::testing::product_choice_test {

using cpu::ProcessorTraits;
using cpu::ProductChoice;

constexpr ProcessorTraits kZen4{.avx512_bf16 = true, .avx512_vnni = true, .amd = true};
constexpr ProcessorTraits kSapphireRapids{.amx = true, .avx512_bf16 = true, .avx512_vnni = true};
constexpr ProcessorTraits kCooperLake{.avx512_bf16 = true, .avx512_vnni = true};
constexpr ProcessorTraits kCascadeLake{.avx512_vnni = true};

struct Case {
  ProcessorTraits processor;
  ActivationType narrowest;
  bool amx, bf16, int8;
  const char* types;
};

TEST(ProductChoice, IsOfTheProcessorAndOfWhatIsAllowed) {
  constexpr auto kF32 = ActivationType::kF32, kBF16 = ActivationType::kBF16,
                 kInt8 = ActivationType::kInt8;
  const Case cases[] = {
      {kZen4, kF32, false, false, false, "f32"},
      {kZen4, kBF16, false, true, false, "f32, bf16"},
      {kZen4, kInt8, false, true, true, "f32, bf16, int8"},
      {kSapphireRapids, kF32, true, false, false, "f32"},
      {kSapphireRapids, kBF16, true, true, false, "f32, bf16"},
      {kSapphireRapids, kInt8, true, true, false, "f32, bf16 (int8 is no faster here)"},
      {kCooperLake, kBF16, false, false, false, "f32 (bf16 is no faster here)"},
      {kCooperLake, kInt8, false, false, true, "f32, int8 (bf16 is no faster here)"},
      {kCascadeLake, kInt8, false, false, true, "f32, int8"},
      {{}, kInt8, false, false, false, "f32"}};
  for (const Case& c : cases) {
    const ProductChoice choice = cpu::choose_products(c.processor, c.narrowest);
    EXPECT_EQ(choice.types, c.types);
    EXPECT_EQ(choice.amx, c.amx) << c.types;
    EXPECT_EQ(choice.bf16, c.bf16) << c.types;
    EXPECT_EQ(choice.int8, c.int8) << c.types;
  }
}

// The table has what was chosen for this machine.
TEST(ProductChoice, IsWhatRuns) {
  const ProductChoice choice = cpu::choose_products(cpu::this_processor(), ActivationType::kInt8);
  Kernels kernels = reference::table();
  EXPECT_EQ(cpu::put_products(kernels, ActivationType::kInt8), choice.types);
  const std::string found = kernels.linear.implementation;
  const char* wanted = choice.bf16 ? (choice.amx ? "cpu/amx_bf16" : "cpu/avx512_bf16")
                                   : (choice.amx ? "cpu/amx" : "reference");
  EXPECT_EQ(found, wanted);
}

// No call of a layer looks up again what the machine has: in a virtual machine that takes as long
// as a layer.
TEST(ProductChoice, IsMadeOnceForAllCalls) {
  for (const ActivationType narrowest : {ActivationType::kF32, ActivationType::kInt8}) {
    Kernels kernels = reference::table();
    cpu::put_products(kernels, narrowest);
    const auto scratch = [&](const WeightFormat& format) {
      LinearArgs layer{.rows = 3, .W = {.dtype = format.dtype, .N = 100, .K = 200}};
      if (format.packed()) layer.W.format = &format;
      const auto* packed = kernels.linear.find(layer.W.format);
      const auto scratch_of_call = packed != nullptr ? packed->scratch : kernels.linear.scratch;
      return scratch_of_call == nullptr ? 0 : scratch_of_call(layer).other_call;
    };
    const WeightFormat* const formats[] = {&kBf16Weights, &kInt8Weights, &kInt4Weights};
    std::vector<size_t> before, after;
    for (const WeightFormat* format : formats) before.push_back(scratch(*format));
    hwy::SetSupportedTargetsForTest(
        HWY_EMU128);  // now every look-up finds that the machine has none
    for (const WeightFormat* format : formats) after.push_back(scratch(*format));
    hwy::SetSupportedTargetsForTest(0);
    EXPECT_EQ(after, before);
  }
}

}  // namespace recurve::testing::product_choice_test
#endif
