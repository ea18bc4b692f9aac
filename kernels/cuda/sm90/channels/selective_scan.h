#pragma once
#include "kernels/kernels.h"

namespace recurve::cuda::sm90 {

// Whether scan_rows() takes the op: follows from its shape and place alone.
bool takes_scan_rows(const SelectiveScanArgs& args);

// The whole op, sequences of any number of rows; with the bits of sm80's kernels.
void scan_rows(const SelectiveScanArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm90
