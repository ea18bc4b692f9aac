#include "kernels/cpu/table.h"

#include <cctype>
#include <string>

#include "kernels/cpu/targets.h"

// After the choice of instruction sets.
#include <hwy/targets.h>

namespace recurve::cpu {
namespace {

// "cpu/avx3". Lives as long as the process, as the tables point at it. A lower bit is a better
// instruction set.
const std::string& implementation() {
  static const std::string name = [] {
    const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
    std::string text = std::string("cpu/") + hwy::TargetName(targets & -targets);
    for (char& letter : text) letter = static_cast<char>(std::tolower(letter));
    return text;
  }();
  return name;
}

}  // namespace

const char* isa() { return implementation().c_str() + 4; }

void fill(Kernels& kernels) {
  const char* name = implementation().c_str();
  kernels.embed = {embed, name};
  kernels.gather_rows = {gather_rows, name};
  kernels.rms_norm = {rms_norm, name};
  kernels.linear = {linear, name};
  kernels.mlstm = {mlstm, name, /*bf16_state=*/true};
  kernels.head_norm_gate = {head_norm_gate, name};
  kernels.swiglu = {swiglu, name};
  kernels.soft_cap = {soft_cap, name};
  kernels.linear_recurrence = {linear_recurrence, name};
  kernels.gated_rms_norm = {gated_rms_norm, name};
  kernels.ssd = {{ssd, name, /*bf16_state=*/true}};
  kernels.selective_scan = {selective_scan, name, /*bf16_state=*/true};
  kernels.causal_conv1d = {causal_conv1d, name};
  kernels.gla = {gla, name, /*bf16_state=*/true};
  kernels.gla_gate = {gla_gate, name};
  kernels.hgrn_gate = {hgrn_gate, name};
  kernels.head_rms_norm = {head_rms_norm, name};
  kernels.positions = {positions, name};
  kernels.rotary = {rotary, name};
  kernels.activation = {activation, name};
  kernels.rnn = {rnn, name};
  kernels.layer_norm = {layer_norm, name};
  kernels.headwise_linear = {headwise_linear, name};
  kernels.glu = {glu, name};
  kernels.skip_gate = {skip_gate, name};
  kernels.add = {add, name};
}

}  // namespace recurve::cpu
