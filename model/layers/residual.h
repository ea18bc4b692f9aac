#pragma once
#include "kernels/arena.h"
#include "model/model.h"
#include "model/weights/linear_weights.h"

namespace recurve {

// The residual stream of a step: layers read it through a norm and add to it. Where the device's
// linear layers can, one that adds does what it can of the norm of the one that reads next, and
// defers the rest to that. Two layers in parallel read the same x, and both add to it.
class Residual {
 public:
  // A layer that reads, and the weights of its norm.
  struct Reader {
    Matrix W;
    const VectorWeights* norm;  // (D)
  };

  // What it takes of the arena in a step of so many rows. branches: whether there is a branch().
  static size_t bytes_for(const Kernels& kernels, int rows, int64_t D, bool branches = false);

  Residual(const Kernels& kernels, Arena& arena, int rows, int64_t D, bool branches = false);

  float* x() const { return x_; }  // (rows, D)

  // The arguments of a layer that reads, given those that do not follow from that.
  LinearArgs read(const Reader& reader, float eps, LinearArgs args) const;
  // The arguments of a layer whose outputs are added to x. next: the layer that reads after it.
  LinearArgs add(LinearArgs args, const Reader& next);
  // The next two layers are in parallel: what the first adds is in x once the second has added.
  void branch() { to_ = sum_; }

 private:
  const Kernels& kernels_;
  int rows_;
  float* x_;
  float* sum_;                       // (rows, D) x and what the first of two layers added, or null
  float *from_ = x_, *to_ = x_;      // that the next layer adds to, and where the sum goes
  DeferredRmsNorm deferred_memory_;  // where what is left of a norm may go
  DeferredRmsNorm deferred_;         // deferred_memory_ or, if nothing was deferred, nothing
};

}  // namespace recurve
