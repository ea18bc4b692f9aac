#pragma once
#include <string>

#include "model/layers/head.h"
#include "model/layers/token_weights.h"
#include "model/model.h"
#include "model/weights/config_reader.h"

namespace recurve {

// What the configs of Mamba and Mamba-2 have in common, in either form: that of transformers, and
// that of state-spaces/mamba, which has what concerns the mixer under ssm_cfg.
struct StateSpaceConfig {
  int64_t D, layers, vocab;
  int64_t N, width;  // of a state; of the convolution
  float eps;
  int chunk;
  bool original;  // state-spaces' form
  bool tied, bias, conv_bias;
  DType state;  // of h
};

// The config outside of the mixer. tied: the default of the config, in transformers' form.
void read_outside(ConfigReader& read, bool tied, StateSpaceConfig& c);

// A key of the mixer, by its name in state-spaces' form or in transformers'.
ConfigReader::Keys mixer_key(const StateSpaceConfig& c, const char* original, const char* hf);

// Reads the sizes of the mixer: N, width and the biases.
void read_mixer_sizes(ConfigReader& read, int64_t default_N, StateSpaceConfig& c);

// The section of state-spaces' form; empty if there is none.
const nlohmann::json& ssm_cfg(ConfigReader& read, const nlohmann::json& config);

// Refuses what neither of the two can be, and every key that was not read.
void finish_state_space(ConfigReader& read);

// A model with one mixer a block and nothing else: all but the mixers.
class StateSpaceModel : public Model {
 public:
  const ModelInfo& info() const override { return info_; }

 protected:
  explicit StateSpaceModel(const Backend& backend) : kernels_(backend.kernels()) {}

  // Loads embedding, last norm and head, and gives the prefix of the blocks' names.
  std::string load_outside(const StateSpaceConfig& c, Checkpoint& checkpoint, Backend& backend,
                           const WeightFormats& formats);
  // blocks: the size of all of them.
  void fill_info(const StateSpaceConfig& c, const Checkpoint& checkpoint, WeightTally blocks,
                 const std::string& family, const std::string& description);

  // From token ids to logits. mix(b, next): the mixer of block b; next: the layer that reads x
  // after it. picked: scratch, (num_logits, D)
  template <typename Block, typename Mix>
  void forward_through(const std::vector<Block>& blocks, Mix mix, const StateSpaceConfig& c,
                       const StepBatch& batch, const Residual& x, float* picked, float* logits,
                       Stream& stream) const {
    const Head last{.norm = &tokens_.norm, .W = tokens_.head_matrix(), .eps = c.eps, .soft_cap = 0};
    embed(batch, x, stream);
    for (size_t b = 0; b < blocks.size(); ++b) mix(b, reader_after(blocks, b, last));
    head(last, batch, x, picked, logits, kernels_, stream);
  }

  const Kernels& kernels_;

 private:
  void embed(const StepBatch& batch, const Residual& x, Stream& stream) const;

  TokenWeights tokens_;
  ModelInfo info_;
};

}  // namespace recurve
