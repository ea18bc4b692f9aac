#include "kernels/cpu/products/table.h"

#include "kernels/cpu/formats/table.h"
#include "kernels/cpu/products/narrow_products.h"
#include "kernels/cpu/table.h"
#include "kernels/formats/int4.h"
#include "kernels/formats/int8.h"
#include "kernels/formats/plain.h"

namespace recurve::cpu {
namespace {

// Of weights in bf16; others have the layers of the table.
template <const LinearProducts* (*PRODUCTS)()>
void multiply(const LinearArgs& args, Stream& stream) {
  if (args.W.dtype != DType::kBF16) return run(args, stream);
  linear_with(*PRODUCTS(), args, stream);
}
template <const LinearProducts* (*PRODUCTS)()>
void multiply_packed(const LinearArgs& args, Stream& stream) {
  linear_with(*PRODUCTS(), args, stream);
}

bool is_amd() {
#if defined(__x86_64__)
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}

}  // namespace

ProcessorTraits this_processor() {
  return {.amx = amx_f32_products() != nullptr,
          .avx512_bf16 = bf16_products() != nullptr,
          .avx512_vnni = int8_products() != nullptr,
          .amd = is_amd()};
}

ProductChoice choose_products(const ProcessorTraits& processor, ActivationType narrowest) {
  ProductChoice choice{.amx = processor.amx, .types = "f32"};
  std::string slower;
  const auto take = [&](ActivationType type, bool there, bool faster) {
    if (narrowest < type || !there) return false;
    const std::string name = name_of(type);
    (faster ? choice.types : slower) += faster ? ", " + name : " (" + name + " is no faster here)";
    return faster;
  };
  choice.bf16 = take(ActivationType::kBF16, processor.amx || processor.avx512_bf16,
                     processor.amx || processor.amd);
  choice.int8 = take(ActivationType::kInt8, processor.avx512_vnni, !processor.amx);
  choice.types += slower;
  return choice;
}

std::string put_products(Kernels& kernels, ActivationType narrowest) {
  LinearOp& linear = kernels.linear;
  const ProductChoice choice = choose_products(this_processor(), narrowest);
  if (choice.amx) {
    linear.run = multiply<amx_f32_products>;
    linear.implementation = "cpu/amx";
    linear.put({&kInt8Weights, multiply_packed<amx_int8_products>, "cpu/amx"});
    linear.put({&kInt4Weights, multiply_packed<amx_int4_products>, "cpu/amx"});
  }
  if (choice.bf16) {
    linear.run = choice.amx ? multiply<amx_bf16_products> : multiply<bf16_products>;
    linear.implementation = choice.amx ? "cpu/amx_bf16" : "cpu/avx512_bf16";
  }
  if (choice.int8) {
    linear.put({&kInt8Weights, multiply_packed<int8_products>, "cpu/avx512_vnni"});
    linear.put({&kInt4Weights, multiply_packed<int4_products>, "cpu/avx512_vnni"});
  }
  return choice.types;
}

}  // namespace recurve::cpu
