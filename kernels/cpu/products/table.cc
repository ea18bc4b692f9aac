#include "kernels/cpu/products/table.h"

#include "kernels/cpu/products/rounded_products.h"
#include "kernels/cpu/table.h"
#include "kernels/formats/int4.h"
#include "kernels/formats/int8.h"

namespace recurve::cpu {
namespace {

void run_bf16(const LinearArgs& args, Stream& stream) {
  if (args.W.dtype != DType::kBF16) return run(args, stream);
  linear_with(*bf16_products(), args, stream);
}
void run_int8(const LinearArgs& args, Stream& stream) {
  linear_with(*int8_products(), args, stream);
}
void run_int4(const LinearArgs& args, Stream& stream) {
  linear_with(*int4_products(), args, stream);
}

}  // namespace

std::string put_products(LinearOp& linear, ActivationType narrowest) {
  std::string types = "f32";
  if (narrowest >= ActivationType::kBF16 && bf16_products() != nullptr) {
    linear.run = run_bf16;
    linear.implementation = "cpu/avx512_bf16";
    types += ", bf16";
  }
  if (narrowest >= ActivationType::kInt8 && int8_products() != nullptr) {
    linear.put({&kInt8Weights, run_int8, "cpu/avx512_vnni"});
    linear.put({&kInt4Weights, run_int4, "cpu/avx512_vnni"});
    types += ", int8";
  }
  return types;
}

}  // namespace recurve::cpu
