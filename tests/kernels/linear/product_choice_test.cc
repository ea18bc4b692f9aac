// Which products a processor's linear layers have: by what it is, as the choice decides over bits.
#include <gtest/gtest.h>

#if RECURVE_CPU
#include "kernels/cpu/products/table.h"
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

}  // namespace recurve::testing::product_choice_test
#endif
