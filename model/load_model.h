#pragma once
#include <array>
#include <memory>
#include <span>
#include <string_view>

#include "model/model.h"
#include "model/weights/checkpoint.h"
#include "model/weights/linear_weights.h"

namespace recurve {

struct LoadOptions {
  // Of the weight matrices: BF16 halves the memory of F32 checkpoints. Norm weights and biases stay
  // in F32.
  WeightFormats weights = DType::kBF16;
  int chunk = 0;  // rows of a chunk of the recurrence; 0: the config's value
  // Of the states that are matrices: C of the mLSTM, S of the GLA family, h of the state spaces.
  // They are nearly all of a state. F32 or BF16. Stabilisers, normalisers, convolution windows and
  // the states of the vector cells stay in F32: few bytes, and what divides or exponentiates.
  DType state = DType::kF32;
  // Rows from one writing of such a state to the next, see kernels/ops/held_rows.h. More than 1
  // only for h of the state space duality, where the backend can.
  int written_every = 1;
  // Of the keys and values of attention. F32 or BF16.
  DType kv = DType::kBF16;
};

// Makes the model of a family: what each file of model/families defines, and family_list.h lists.
using LoadFamily = std::unique_ptr<const Model>(Checkpoint&, Backend&, const LoadOptions&,
                                                const Checkpoint::Progress&);

struct Family {
  std::array<std::string_view, 5> model_types;  // of config.json; those that are empty are none
  LoadFamily* load;
};

// Makes the model of the family that config.json names under "model_type", one of those in
// model/families/family_list.h. Throws std::runtime_error with one sentence if there is no such
// family or the checkpoint does not fit.
std::unique_ptr<const Model> load_model(Checkpoint& checkpoint, Backend& backend,
                                        const LoadOptions& options,
                                        const Checkpoint::Progress& progress = {});

// The same, of a family of another list.
std::unique_ptr<const Model> load_model_of(std::span<const Family> families, Checkpoint& checkpoint,
                                           Backend& backend, const LoadOptions& options,
                                           const Checkpoint::Progress& progress = {});

}  // namespace recurve
