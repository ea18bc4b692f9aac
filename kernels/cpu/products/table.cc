#include "kernels/cpu/products/table.h"

#include "kernels/cpu/formats/table.h"
#include "kernels/cpu/products/measure.h"
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

// Each is asked where there are such products, and measured once in a process.
bool amx_is_faster() {
  static const bool faster = is_faster(multiply<amx_f32_products>, run, kBf16Weights);
  return faster;
}
// Than the layers in fp32, which are the same ones in all of a process.
bool bf16_is_faster(LinearRun narrow, LinearRun wide) {
  static const bool faster = is_faster(narrow, wide, kBf16Weights);
  return faster;
}
bool int8_is_faster(const LinearOp& wide) {
  static const bool faster =
      is_faster(multiply_packed<int8_products>, wide.find(&kInt8Weights)->run, kInt8Weights) &&
      is_faster(multiply_packed<int4_products>, wide.find(&kInt4Weights)->run, kInt4Weights);
  return faster;
}

}  // namespace

std::string put_products(Kernels& kernels, ActivationType narrowest) {
  LinearOp& linear = kernels.linear;
  std::string types = "f32", slower;
  LinearRun in_fp32 = run, in_bf16 = nullptr;
  const char* bf16_implementation = "cpu/amx_bf16";
  if (amx_f32_products() != nullptr && amx_is_faster()) {
    in_fp32 = linear.run = multiply<amx_f32_products>;
    linear.implementation = "cpu/amx";
    linear.put({&kInt8Weights, multiply_packed<amx_int8_products>, "cpu/amx"});
    linear.put({&kInt4Weights, multiply_packed<amx_int4_products>, "cpu/amx"});
  }
  if (amx_bf16_products() != nullptr) {
    in_bf16 = multiply<amx_bf16_products>;
  } else if (bf16_products() != nullptr) {
    in_bf16 = multiply<bf16_products>;
    bf16_implementation = "cpu/avx512_bf16";
  }
  if (narrowest >= ActivationType::kBF16 && in_bf16 != nullptr) {
    if (bf16_is_faster(in_bf16, in_fp32)) {
      linear.run = in_bf16;
      linear.implementation = bf16_implementation;
      types += ", bf16";
    } else {
      slower += " (bf16 is slower here)";
    }
  }
  if (narrowest >= ActivationType::kInt8 && int8_products() != nullptr) {
    if (int8_is_faster(linear)) {
      linear.put({&kInt8Weights, multiply_packed<int8_products>, "cpu/avx512_vnni"});
      linear.put({&kInt4Weights, multiply_packed<int4_products>, "cpu/avx512_vnni"});
      types += ", int8";
    } else {
      slower += " (int8 is slower here)";
    }
  }
  return types + slower;
}

}  // namespace recurve::cpu
