#pragma once

namespace recurve {

// y = silu(gate) * up, gate and up being the halves of a row of the fused projection.
// Source: Shazeer 2020, eq. 6.
struct SwigluArgs {
  int rows;
  int F;                 // width of the feed-forward layer
  const float* gate_up;  // (rows, 2, F): gate, then up
  float* y;              // (rows, F); does not overlap gate_up
};

}  // namespace recurve
