#pragma once
#include <memory>

#include "kernels/dry_run_backend.h"
#include "model/load_model.h"

namespace recurve::testing {

// The model of a config, on a backend that allocates and copies nothing: for what it says of itself
// and of the config. It is not computed with.
inline std::unique_ptr<const Model> load_on_paper(const nlohmann::json& config) {
  static const std::unique_ptr<Backend> backend = make_backend("reference");
  static DryRunBackend dry_run(*backend);
  Checkpoint checkpoint = Checkpoint::random(config, 1);
  checkpoint.leave_out_copies();
  return load_model(checkpoint, dry_run, {});
}

}  // namespace recurve::testing
