#pragma once
#include "kernels/arena.h"
#include "model/model.h"
#include "model/weights/linear_weights.h"

namespace recurve {

// The residual stream of a step: layers read it through a norm and add to it. Where the device's
// linear layers can, one that adds does what it can of the norm of the one that reads next, and
// defers the rest to that.
class Residual {
 public:
  // A layer that reads, and the weights of its norm.
  struct Reader {
    Matrix W;
    const VectorWeights* norm;  // (D)
  };

  // What it takes of the arena in a step of so many rows.
  static size_t bytes_for(const Kernels& kernels, int rows, int64_t D);

  Residual(const Kernels& kernels, Arena& arena, int rows, int64_t D);

  float* x() const { return x_; }  // (rows, D)

  // The arguments of a layer that reads, given those that do not follow from that.
  LinearArgs read(const Reader& reader, float eps, LinearArgs args) const;
  // The arguments of a layer whose outputs are added to x. next: the layer that reads after it.
  LinearArgs add(LinearArgs args, const Reader& next);

 private:
  const Kernels& kernels_;
  int rows_;
  float* x_;
  DeferredRmsNorm deferred_memory_;  // where what is left of a norm may go
  DeferredRmsNorm deferred_;         // deferred_memory_ or, if nothing was deferred, nothing
};

}  // namespace recurve
