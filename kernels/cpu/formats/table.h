#pragma once
#include "kernels/kernels.h"

// Linear layers of the weight formats that have their own implementation here.
namespace recurve::cpu {

void run_int8(const LinearArgs& args, Stream& stream);
void run_int4(const LinearArgs& args, Stream& stream);

// Writes them over those of the table.
void put_formats(LinearOp& linear, const char* implementation);

}  // namespace recurve::cpu
