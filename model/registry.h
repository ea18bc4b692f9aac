#pragma once
#include <memory>

#include "model/model.h"
#include "model/weights/checkpoint.h"

namespace recurve {

struct LoadOptions {
  // Of the weight matrices: BF16 halves the memory of F32 checkpoints. Norm weights and biases stay
  // in F32.
  DType weights = DType::kBF16;
  int chunk = 0;  // rows of a chunk of the recurrence; 0: as the config says
  // Of the states that are matrices: C of the mLSTM, S of the GLA family, h of the state spaces.
  // They are nearly all of a state. F32 or BF16. Stabilisers, normalisers, convolution windows and
  // the states of the vector cells stay in F32: few bytes, and what divides or exponentiates.
  DType state = DType::kF32;
};

// Makes the model of the family that config.json names under "model_type". Throws
// std::runtime_error with one sentence if there is no such family or the checkpoint does not fit.
std::unique_ptr<const Model> load_model(Checkpoint& checkpoint, Backend& backend,
                                        const LoadOptions& options,
                                        const Checkpoint::Progress& progress = {});

// One line for each family.
std::unique_ptr<const Model> load_xlstm(Checkpoint&, Backend&, const LoadOptions&,
                                        const Checkpoint::Progress&);
std::unique_ptr<const Model> load_mamba(Checkpoint&, Backend&, const LoadOptions&,
                                        const Checkpoint::Progress&);
std::unique_ptr<const Model> load_falcon_mamba(Checkpoint&, Backend&, const LoadOptions&,
                                               const Checkpoint::Progress&);
std::unique_ptr<const Model> load_mamba2(Checkpoint&, Backend&, const LoadOptions&,
                                         const Checkpoint::Progress&);
// GLA, simple GLA, RetNet, linear attention and HGRN2.
std::unique_ptr<const Model> load_gla(Checkpoint&, Backend&, const LoadOptions&,
                                      const Checkpoint::Progress&);
std::unique_ptr<const Model> load_rnn(Checkpoint&, Backend&, const LoadOptions&,
                                      const Checkpoint::Progress&);
std::unique_ptr<const Model> load_xlstm_blocks(Checkpoint&, Backend&, const LoadOptions&,
                                               const Checkpoint::Progress&);

}  // namespace recurve
