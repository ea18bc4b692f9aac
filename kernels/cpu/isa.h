#pragma once
#include <string_view>

namespace recurve::cpu {

// RECURVE_KERNELS="all=cpu/avx2": from now on this process uses no better instruction set than the
// one of this name ("avx2"); empty: the best there is. Throws std::runtime_error naming those there
// are.
void limit_isa(std::string_view name);

}  // namespace recurve::cpu
