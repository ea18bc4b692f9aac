#include "kernels/dry_run_backend.h"

#include <algorithm>
#include <type_traits>

#include "kernels/weight_format.h"

namespace recurve {
namespace {

template <typename Op>
concept MultipliesMatrix = requires(Op op) { op.packed; };

template <typename Args>
ScratchBytes scratch_of(const Op<Args>& op, const Args& args, std::string*) {
  return op.scratch == nullptr ? ScratchBytes() : op.scratch(args);
}
// Products with each format have separate scratch, as have those with transposed matrices.
template <typename Args>
ScratchBytes scratch_of(const MatrixOp<Args>& op, const Args& args, std::string* name) {
  *name += format_of(args.W).name;
  if (args.W.transposed) *name += " transposed";
  auto* const scratch = args.W.format == nullptr ? op.scratch : op.find(args.W.format)->scratch;
  return scratch == nullptr ? ScratchBytes() : scratch(args);
}

}  // namespace

DryRunBackend::DryRunBackend(const Backend& real)
    : Backend(real.name(), counting(real.kernels())),
      on_host_(real.computes_on_host()),
      threads_(real.threads()),
      real_(real.kernels()) {}

Kernels DryRunBackend::counting(const Kernels& real) {
  Kernels kernels = real;
  Kernels::for_each_op([&](const char*, auto member) {
    auto& op = kernels.*member;
    using Op = std::remove_reference_t<decltype(op)>;
    using Args = typename Op::Args;
    op.run = [](const Args& args, Stream& stream) { static_cast<DryStream&>(stream).count(args); };
    if constexpr (MultipliesMatrix<Op>) {
      for (auto& one : op.packed) one.run = op.run;
    }
  });
  kernels.linear.run_group = nullptr;
  if (kernels.lora.shrink != nullptr)
    kernels.lora.shrink = [](std::span<const LoraArgs>, Stream&) {};
  kernels.lora.joined_floats = nullptr;
  return kernels;
}

template <typename Args>
void DryRunBackend::count(const Args& args) {
  Kernels::for_each_op([&](const char* name, auto member) {
    using Op = std::remove_cvref_t<decltype(real_.*member)>;
    if constexpr (std::is_same_v<typename Op::Args, Args>) {
      std::string key = name;
      const ScratchBytes bytes = scratch_of(real_.*member, args, &key);
      ScratchBytes& most = scratch_[key];
      most = {.call = std::max(most.call, bytes.call),
              .thread = std::max(most.thread, bytes.thread),
              .other_call = std::max(most.other_call, bytes.other_call),
              .other_thread = std::max(most.other_thread, bytes.other_thread)};
    }
  });
}

size_t DryRunBackend::take_scratch() {
  size_t bytes = 0;
  for (const auto& [op, most] : scratch_) {
    bytes += most.call + most.other_call +
             static_cast<size_t>(threads_) * (most.thread + most.other_thread);
  }
  scratch_.clear();
  return bytes;
}

}  // namespace recurve
