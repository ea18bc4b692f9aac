#pragma once
#include <vector>

#include "kernels/dry_run_backend.h"
#include "tests/support/engine/model_runner.h"

namespace recurve::testing {

// The golden checkpoints that the engine serves: those whose states do not grow.
inline const std::vector<ModelCase>& served_model_cases() {
  static const std::vector<ModelCase> kCases = [] {
    const std::unique_ptr<Backend> backend = make_backend("reference");
    DryRunBackend dry_run(*backend);
    std::vector<ModelCase> cases;
    for (const ModelCase& one : model_cases()) {
      Checkpoint checkpoint = Checkpoint::open(golden_dir() / one.directory);
      checkpoint.leave_out_copies();
      const auto model = load_model(checkpoint, dry_run, {.weights = one.weights});
      if (!model->state_layout().grows()) cases.push_back(one);
    }
    return cases;
  }();
  return kCases;
}

}  // namespace recurve::testing
