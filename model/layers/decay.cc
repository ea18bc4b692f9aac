#include "model/layers/decay.h"

#include <cmath>

#include "model/weights/convert.h"

namespace recurve {

VectorWeights load_decay(Backend& backend, Checkpoint& checkpoint, const std::string& name,
                         const Shape& shape) {
  const TensorView view = checkpoint.take(name, shape);
  if (!checkpoint.ok()) return {};
  std::vector<float> A = host_values(view);
  for (float& value : A) value = static_cast<float>(-std::exp(static_cast<double>(value)));
  return VectorWeights::from(backend, A);
}

}  // namespace recurve
