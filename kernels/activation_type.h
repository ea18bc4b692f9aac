#pragma once
#include "kernels/backend.h"

namespace recurve {

// The narrowest type that linear layers of the CPU may round their x to, each with the weights that
// it is meant for, where the processor has products of that type and is of a kind that is faster
// with them (kernels/cpu/products/table.h): kBF16 with weights in bf16; kInt8 that, and eight bits
// with a scale for 64 columns with weights in int8 and int4. Otherwise, and by default, x stays in
// fp32. GPUs round by their own rules: see LinearOp::rounds.
enum class ActivationType : uint8_t { kF32, kBF16, kInt8 };

constexpr const char* name_of(ActivationType type) {
  return type == ActivationType::kF32 ? "f32" : type == ActivationType::kBF16 ? "bf16" : "int8";
}

// make_backend() of kernels/backend.h, with activations rounded as far as is allowed. Throws
// std::runtime_error where they are to be and the device is not the CPU.
std::unique_ptr<Backend> make_backend(std::string_view device, int threads,
                                      ActivationType narrowest);

}  // namespace recurve
