#include "kernels/cuda/common/table.h"

#include <type_traits>

#include "kernels/cuda/common/capabilities.h"
#include "kernels/cuda/sm80/limits.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm90/ops.h"
#include "kernels/formats/int4.h"
#include "kernels/formats/int8.h"

namespace recurve::cuda {
namespace {

// The products with weights that are packed.
template <typename Args>
void put_formats(MatrixOp<Args>& op, std::type_identity_t<void (*)(const Args&, Stream&)> run,
                 const char* implementation) {
  for (const WeightFormat* format : {&kInt8Weights, &kInt4Weights}) {
    op.put({format, run, implementation});
  }
}

// The reference cannot stand in for what is missing here: it does not reach the memory of the GPU.
Kernels sm80_table(size_t shared_memory) {
  Kernels kernels;
  kernels.put("cuda/sm80",
              [](const auto& args, Stream& stream) -> decltype(sm80::run(args, stream)) {
                sm80::run(args, stream);
              });
  put_formats(kernels.linear, sm80::run, "cuda/sm80");
  put_formats(kernels.expert_linear, sm80::run, "cuda/sm80");
  kernels.linear.run_group = sm80::run_group;
  kernels.lora.shrink = sm80::shrink;
  set_sm80_capabilities(kernels);
  sm80::set_limits(kernels, shared_memory);
  return kernels;
}

// What is better there, over what is taken from sm80.
void put_sm90(Kernels& kernels) {
  kernels.put("cuda/sm90",
              [](const auto& args, Stream& stream) -> decltype(sm90::run(args, stream)) {
                sm90::run(args, stream);
              });
  put_formats(kernels.linear, sm90::run, "cuda/sm90");
  put_formats(kernels.expert_linear, sm90::run, "cuda/sm90");
  kernels.linear.run_group = sm90::run_group;
  kernels.lora.shrink = sm90::shrink;
  kernels.lora.joined_floats = sm90::joined_floats;
  set_sm90_capabilities(kernels);
}

}  // namespace

std::vector<Kernels> tables(int major, size_t shared_memory) {
  std::vector<Kernels> tables = {sm80_table(shared_memory)};
  if (major == 9) {
    tables.push_back(tables.back());
    put_sm90(tables.back());
  }
  return tables;
}

}  // namespace recurve::cuda
