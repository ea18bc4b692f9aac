#include "kernels/cpu/products/table.h"

#include "kernels/cpu/formats/table.h"
#include "kernels/cpu/products/narrow_products.h"
#include "kernels/cpu/table.h"
#include "kernels/formats/int4.h"
#include "kernels/formats/int8.h"
#include "kernels/formats/plain.h"

namespace recurve::cpu {
namespace {

// Products that this machine has, looked up once: that executes CPUID, which takes tens of
// microseconds in a virtual machine.
template <const LinearProducts* (*PRODUCTS)()>
LinearProducts choose(const LinearArgs&) {
  static const LinearProducts& products = *PRODUCTS();
  return products;
}

// Writes these products over those of the table with weights in int8 or int4.
template <const LinearProducts* (*PRODUCTS)()>
void put_packed(Kernels& kernels, const WeightFormat& format, const char* implementation) {
  choose<PRODUCTS>({});
  put_format<choose<PRODUCTS>>(kernels, format, implementation);
}

// The same with weights in bf16; with fp32 it has them as before.
template <const LinearProducts* (*PRODUCTS)()>
void put_bf16(Kernels& kernels, const char* implementation) {
  choose<PRODUCTS>({});
  kernels.linear.run = [](const LinearArgs& args, Stream& stream) {
    if (args.W.dtype != DType::kBF16) return run(args, stream);
    linear_with(choose<PRODUCTS>(args), args, stream);
  };
  kernels.expert_linear.run = [](const ExpertLinearArgs& args, Stream& stream) {
    if (args.W.dtype != DType::kBF16) return run(args, stream);
    experts_with(choose<PRODUCTS>, args, stream);
  };
  kernels.linear.scratch = [](const LinearArgs& args) {
    return args.W.dtype != DType::kBF16 ? scratch_of(args)
                                        : scratch_with(choose<PRODUCTS>(args), args);
  };
  kernels.expert_linear.scratch = [](const ExpertLinearArgs& args) {
    return args.W.dtype != DType::kBF16 ? scratch_of(args) : scratch_with(choose<PRODUCTS>, args);
  };
  kernels.linear.implementation = kernels.expert_linear.implementation = implementation;
  kernels.linear.transposed.erase(&kBf16Weights);
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
  const ProductChoice choice = choose_products(this_processor(), narrowest);
  if (choice.amx) {
    put_bf16<amx_f32_products>(kernels, "cpu/amx");
    put_packed<amx_int8_products>(kernels, kInt8Weights, "cpu/amx");
    put_packed<amx_int4_products>(kernels, kInt4Weights, "cpu/amx");
  }
  if (choice.bf16 && choice.amx) put_bf16<amx_bf16_products>(kernels, "cpu/amx_bf16");
  if (choice.bf16 && !choice.amx) put_bf16<bf16_products>(kernels, "cpu/avx512_bf16");
  if (choice.int8) {
    put_packed<int8_products>(kernels, kInt8Weights, "cpu/avx512_vnni");
    put_packed<int4_products>(kernels, kInt4Weights, "cpu/avx512_vnni");
  }
  return choice.types;
}

}  // namespace recurve::cpu
