#pragma once
#include <string>
#include <string_view>

namespace recurve {

// Of a backend's name, what may change the bits of a result: "cpu, avx3_dl" or "NVIDIA H100,
// sm_90". The number of threads does not, nor which of several equal GPUs it is.
std::string arithmetic_of(std::string_view backend_name);

}  // namespace recurve
