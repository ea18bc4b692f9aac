#pragma once
#include "kernels/cpu/linear.h"
#include "kernels/ops/selective_scan.h"

namespace recurve::cpu {

// The selective_scan op, whose time steps are projected by this linear op.
void scan_with(LinearRun project, const SelectiveScanArgs& args, Stream& stream);

}  // namespace recurve::cpu
