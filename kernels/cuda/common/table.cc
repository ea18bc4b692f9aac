#include "kernels/cuda/common/table.h"

#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda {

Kernels table() {
  Kernels kernels;
  // The reference cannot stand in for what is missing: it does not reach the memory of the GPU.
  Kernels::for_each_op([&](const char*, auto op) { (kernels.*op).implementation = "none"; });
  kernels.embed = {sm80::embed, "cuda/sm80"};
  kernels.gather_rows = {sm80::gather_rows, "cuda/sm80"};
  kernels.rms_norm = {sm80::rms_norm, "cuda/sm80"};
  kernels.linear = {sm80::linear, "cuda/sm80"};
  kernels.mlstm = {sm80::mlstm, "cuda/sm80"};
  kernels.head_norm_gate = {sm80::head_norm_gate, "cuda/sm80"};
  kernels.swiglu = {sm80::swiglu, "cuda/sm80"};
  kernels.soft_cap = {sm80::soft_cap, "cuda/sm80"};
  return kernels;
}

}  // namespace recurve::cuda
