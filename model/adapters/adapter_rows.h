#pragma once
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/step_adapters.h"
#include "model/adapters/adapter.h"

namespace recurve {

// Which rows of the next step have which adapter, and the memory that a step with adapters takes.
// Only its constructor allocates.
class AdapterRows {
 public:
  // rows: of any step. The backend outlives it.
  AdapterRows(const AdapterTargets& targets, Backend& backend, int rows);

  void clear();
  // The next rows of the step. adapter: of the targets; null: none.
  void add(const Adapter* adapter, int rows);
  // For the stream of that step; null if no row has one. Valid until the next clear().
  const StepAdapters* step();
  // For a step of that many rows on a backend that counts what it needs: all that there may be.
  const StepAdapters* largest(int rows);

 private:
  const Kernels& kernels_;
  std::vector<std::pair<const Adapter*, int32_t>> rows_with_one_;
  std::vector<int32_t> ordered_;  // the same rows, by adapter
  std::vector<LoraRows> groups_;
  std::vector<std::span<const LoraPart>> any_;  // stands for any adapter's parts in each layer
  Buffer between_;
  int rows_ = 0;
  std::optional<StepAdapters> step_;
};

}  // namespace recurve
