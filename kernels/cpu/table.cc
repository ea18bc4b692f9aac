#include "kernels/cpu/table.h"

namespace recurve::cpu {

void fill(Kernels&) {}

const char* isa() { return "none"; }

}  // namespace recurve::cpu
