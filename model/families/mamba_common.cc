#include "model/families/mamba_common.h"

#include "model/special_ids.h"

namespace recurve {
namespace {

// The grid of prompts. Configs name none, or a chunk_size that is that of the kernel the model was
// trained with; a finer grid computes less and gives the scheduler more to choose from.
constexpr int kChunk = 64;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

void read_outside(ConfigReader& read, bool tied, StateSpaceConfig& c) {
  c.original = !read.has("hidden_size");
  c.D = read.required_int({"hidden_size", "d_model"}, 1, 1 << 20);
  c.layers = read.required_int({"num_hidden_layers", "n_layer"}, 1, 4096);
  const double eps = read.optional_number("layer_norm_epsilon", 1e-5, 0, 1);
  c.eps = static_cast<float>(eps);
  read.must_be("norm_epsilon", eps);  // which neither package reads
  c.tied = read.boolean({"tie_word_embeddings", "tie_embeddings"}, c.original || tied);
  c.vocab = round_up(read.required_int("vocab_size", 1, 1 << 24),
                     read.optional_int("pad_vocab_size_multiple", c.original ? 8 : 1, 1, 1 << 20));
  c.chunk = kChunk;
}

ConfigReader::Keys mixer_key(const StateSpaceConfig& c, const char* original, const char* hf) {
  return c.original ? original : hf;
}

void read_mixer_sizes(ConfigReader& read, int64_t default_N, StateSpaceConfig& c) {
  c.N = read.optional_int(mixer_key(c, "d_state", "state_size"), default_N, 1, 1 << 16);
  c.width = read.optional_int(mixer_key(c, "d_conv", "conv_kernel"), 4, 2, 256);
  c.bias = read.boolean(mixer_key(c, "bias", "use_bias"), false);
  c.conv_bias = read.boolean(mixer_key(c, "conv_bias", "use_conv_bias"), true);
}

const nlohmann::json& ssm_cfg(ConfigReader& read, const nlohmann::json& config) {
  static const nlohmann::json kNone = nlohmann::json::object();
  read.ignore({"ssm_cfg"});
  return read.has("ssm_cfg") ? config["ssm_cfg"] : kNone;
}

void finish_state_space(ConfigReader& read) {
  read.string_one_of("hidden_act", "silu", {"silu", "swish"});
  read.must_be("rms_norm", true);
  read.must_be("d_intermediate", 0);
  read.must_be("attn_layer_idx", nlohmann::json::array());
  // attn_cfg: of no layer. The rest is of training and of how others compute it; the residual is
  // fp32 here whatever they say.
  read.ignore({"attn_cfg", "fused_add_norm", "residual_in_fp32", "time_step_scale",
               "time_step_init_scheme", "time_step_min", "time_step_max", "time_step_floor",
               "rescale_prenorm_residual"});
  read.finish();
}

std::string StateSpaceModel::load_outside(const StateSpaceConfig& c, Checkpoint& checkpoint,
                                          Backend& backend, const WeightFormats& formats) {
  const std::string prefix =
      checkpoint.detect_prefix({"backbone.", "model.backbone.", "model.", ""}, "norm_f.weight");
  tokens_ = load_token_weights(backend, checkpoint, prefix, "norm_f.weight", c.vocab, c.D, c.tied,
                               formats);
  return prefix;
}

void StateSpaceModel::fill_info(const StateSpaceConfig& c, const Checkpoint& checkpoint,
                                WeightTally blocks, const std::string& family,
                                const std::string& description) {
  blocks.add(tokens_);
  info_.parameters = blocks.parameters;
  info_.weight_bytes = blocks.bytes;
  info_.family = family;
  info_.description = description;
  info_.head = tokens_.head_source;
  info_.vocab = c.vocab;
  info_.width = c.D;
  info_.chunk = c.chunk;
  set_special_ids(read_special_ids(checkpoint), &info_);
}

void StateSpaceModel::embed(const StepBatch& batch, const Residual& x, Stream& stream) const {
  kernels_.embed(
      {.rows = batch.seqs.rows, .E = tokens_.embedding.matrix(), .token = batch.tokens, .x = x.x()},
      stream);
}

}  // namespace recurve
