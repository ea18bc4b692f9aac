#include "kernels/cuda/common/table.h"

#include "kernels/cuda/common/capabilities.h"
#include "kernels/cuda/sm80/limits.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm90/ops.h"

namespace recurve::cuda {
namespace {

Kernels sm80_table(size_t shared_memory) {
  Kernels kernels;
  // The reference cannot stand in for what is missing: it does not reach the memory of the GPU.
  Kernels::for_each_op([&](const char*, auto op) { (kernels.*op).implementation = "none"; });
  kernels.embed = {sm80::embed, "cuda/sm80"};
  kernels.gather_rows = {sm80::gather_rows, "cuda/sm80"};
  kernels.rms_norm = {sm80::rms_norm, "cuda/sm80"};
  kernels.linear = {{sm80::linear, "cuda/sm80"}};
  kernels.mlstm = {sm80::mlstm, "cuda/sm80"};
  kernels.head_norm_gate = {sm80::head_norm_gate, "cuda/sm80"};
  kernels.swiglu = {sm80::swiglu, "cuda/sm80"};
  kernels.soft_cap = {sm80::soft_cap, "cuda/sm80"};
  kernels.causal_conv1d = {sm80::causal_conv1d, "cuda/sm80"};
  kernels.selective_scan = {sm80::selective_scan, "cuda/sm80"};
  kernels.ssd = {{sm80::ssd, "cuda/sm80"}};
  kernels.linear_recurrence = {sm80::linear_recurrence, "cuda/sm80"};
  kernels.gated_rms_norm = {sm80::gated_rms_norm, "cuda/sm80"};
  kernels.gla = {sm80::gla, "cuda/sm80"};
  kernels.gla_gate = {sm80::gla_gate, "cuda/sm80"};
  kernels.hgrn_gate = {sm80::hgrn_gate, "cuda/sm80"};
  kernels.head_rms_norm = {sm80::head_rms_norm, "cuda/sm80"};
  kernels.positions = {sm80::positions, "cuda/sm80"};
  kernels.rotary = {sm80::rotary, "cuda/sm80"};
  kernels.activation = {sm80::activation, "cuda/sm80"};
  kernels.rnn = {sm80::rnn, "cuda/sm80"};
  kernels.layer_norm = {sm80::layer_norm, "cuda/sm80"};
  kernels.headwise_linear = {sm80::headwise_linear, "cuda/sm80"};
  kernels.glu = {sm80::glu, "cuda/sm80"};
  kernels.skip_gate = {sm80::skip_gate, "cuda/sm80"};
  kernels.add = {sm80::add, "cuda/sm80"};
  kernels.feature_map = {sm80::feature_map, "cuda/sm80"};
  kernels.take_tokens = {sm80::take_tokens, "cuda/sm80"};
  kernels.sample = {sm80::sample, "cuda/sm80"};
  set_sm80_capabilities(kernels);
  sm80::set_limits(kernels, shared_memory);
  return kernels;
}

}  // namespace

std::vector<Kernels> tables(int major, size_t shared_memory) {
  std::vector<Kernels> tables = {sm80_table(shared_memory)};
  if (major == 9) {
    tables.push_back(tables.back());
    Kernels& kernels = tables.back();
    kernels.linear = {{sm90::linear, "cuda/sm90"}};
    kernels.selective_scan.run = sm90::selective_scan;
    kernels.selective_scan.implementation = "cuda/sm90";
    set_sm90_capabilities(kernels);
  }
  return tables;
}

}  // namespace recurve::cuda
