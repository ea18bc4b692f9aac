#include "model/families/xlstm_blocks_config.h"

#include <fmt/format.h>

#include <cmath>

#include "model/weights/config_reader.h"

namespace recurve::xlstm_blocks {
namespace {

// The grid of prompts: the research code has no chunks.
constexpr int kChunk = 64;

// A mapping inside the config; empty if it is not there.
const nlohmann::json& section(ConfigReader& read, const nlohmann::json& config, const char* key) {
  static const nlohmann::json kNone = nlohmann::json::object();
  read.ignore({key});
  return read.has(key) ? config[key] : kNone;
}

// utils.py, UpProjConfigMixin.
int64_t read_up_size(ConfigReader& read, int64_t D, double default_factor) {
  const double factor = read.optional_number("proj_factor", default_factor, 1e-3, 64);
  const int64_t multiple = read.optional_int("round_proj_up_to_multiple_of", 64, 1, 1 << 16);
  read.must_be("round_proj_up_dim_up", true);
  const double size = factor * static_cast<double>(D) / static_cast<double>(multiple);
  return static_cast<int64_t>(std::ceil(size)) * multiple;
}

void read_mlstm(const nlohmann::json& block, const std::string& file, Config& c) {
  ConfigReader read_block(block, file + ": mlstm_block");
  const nlohmann::json& mlstm = section(read_block, block, "mlstm");
  read_block.ignore({"_num_blocks", "_block_idx"});
  read_block.finish();
  ConfigReader read(mlstm, file + ": mlstm_block.mlstm");
  c.inner = read_up_size(read, c.D, 2.0);
  c.H = read.optional_int("num_heads", 4, 1, 4096);
  c.block = read.optional_int("qkv_proj_blocksize", 4, 1, 1 << 16);
  c.width = read.optional_int("conv1d_kernel_size", 4, 0, 256);
  if (c.width == 1) read.fail("conv1d_kernel_size", "0 or at least 2", "1");
  if (c.inner % c.H != 0) {
    read.fail("num_heads", fmt::format("a divisor of the inner width {}", c.inner),
              std::to_string(c.H));
  }
  if (c.inner % c.block != 0) {
    read.fail("qkv_proj_blocksize", fmt::format("a divisor of the inner width {}", c.inner),
              std::to_string(c.block));
  }
  read.must_be("embedding_dim", c.D);
  read.must_be("bias", c.bias);  // which the package writes over it
  read.must_be("memory_backend", "dense");
  read.must_be("gate_mode", "sigmoid");
  read.ignore({"dropout", "context_length", "_num_blocks", "_inner_embedding_dim", "_proj_up_dim"});
  read.finish();
}

Activation read_activation(ConfigReader& read) {
  const std::string name =
      read.string_one_of("act_fn", "gelu", {"gelu", "relu", "sigmoid", "swish"});
  return name == "gelu"      ? Activation::kGelu
         : name == "relu"    ? Activation::kRelu
         : name == "sigmoid" ? Activation::kSigmoid
                             : Activation::kSilu;
}

void read_slstm(const nlohmann::json& block, const std::string& file, Config& c) {
  ConfigReader read_block(block, file + ": slstm_block");
  const nlohmann::json& slstm = section(read_block, block, "slstm");
  const bool has_ffn = read_block.has("feedforward");
  const nlohmann::json& ffn = section(read_block, block, "feedforward");
  read_block.ignore({"_num_blocks", "_block_idx"});
  read_block.finish();
  if (has_ffn) {
    ConfigReader read(ffn, file + ": slstm_block.feedforward");
    c.F = read_up_size(read, c.D, 1.3);
    c.ffn_activation = read_activation(read);
    read.must_be("ff_type", "ffn_gated");
    c.ffn_bias = read.boolean("bias", false);
    read.must_be("embedding_dim", c.D);
    read.ignore({"dropout", "_num_blocks", "_proj_up_dim"});
    read.finish();
  }
  ConfigReader read(slstm, file + ": slstm_block.slstm");
  c.slstm_H = read.optional_int("num_heads", 4, 1, 4096);
  c.slstm_width = read.optional_int("conv1d_kernel_size", 4, 0, 256);
  if (c.slstm_width == 1) read.fail("conv1d_kernel_size", "0 or at least 2", "1");
  c.transposed_R = read.string_one_of("backend", "cuda", {"cuda", "vanilla"}) == "cuda";
  if (c.D % c.slstm_H != 0) {
    read.fail("num_heads", fmt::format("a divisor of the width {}", c.D),
              std::to_string(c.slstm_H));
  }
  for (const char* key : {"embedding_dim", "hidden_size"}) read.must_be(key, c.D);
  read.must_be("function", "slstm");
  read.must_be("group_norm_weight", true);
  read.must_be("forward_clipval", nullptr);
  read.must_be("initial_val", 0.0);
  read.must_be("num_gates", 4);
  read.must_be("num_states", 4);
  // Training, types of storage and shapes inside the package's kernels.
  read.ignore({"bias_init", "recurrent_weight_init", "gradient_recurrent_cut",
               "gradient_recurrent_clipval", "batch_size", "input_shape", "internal_input_shape",
               "output_shape", "constants", "dtype_b", "dtype_r", "dtype_w", "dtype_g", "dtype_s",
               "dtype_a", "enable_automatic_mixed_precision", "dropout", "_block_idx",
               "_num_blocks"});
  read.finish();
}

std::vector<bool> read_block_map(ConfigReader& read, const nlohmann::json& config, int64_t blocks) {
  read.ignore({"slstm_at"});
  std::vector<bool> map(static_cast<size_t>(blocks));
  const nlohmann::json at = read.has("slstm_at") ? config["slstm_at"] : nlohmann::json::array();
  if (at == "all" || !read.has("mlstm_block")) return std::vector<bool>(map.size(), true);
  if (!at.is_array()) read.fail("slstm_at", "a list of blocks or \"all\"", at.dump());
  for (const nlohmann::json& index : at) {
    const bool fits =
        index.is_number_integer() && index.get<int64_t>() >= 0 && index.get<int64_t>() < blocks;
    if (!fits) {
      read.fail("slstm_at", fmt::format("numbers of blocks below {}", blocks), index.dump());
    }
    map[index.get<size_t>()] = true;
  }
  return map;
}

// "0,1,0": a number for each block, 1 of sLSTM.
std::string block_map_text(const std::vector<bool>& slstm) {
  std::string text;
  for (const bool is_slstm : slstm) {
    if (!text.empty()) text += ',';
    text += is_slstm ? '1' : '0';
  }
  return text;
}

}  // namespace

Config read_config(const Checkpoint& checkpoint) {
  const nlohmann::json& config = checkpoint.config();
  ConfigReader read(config, checkpoint.config_file());
  Config c{};
  c.D = read.required_int({"embedding_dim", "hidden_size"}, 1, 1 << 20);
  c.blocks = read.required_int({"num_blocks", "num_hidden_layers"}, 1, 4096);
  c.vocab = read.required_int("vocab_size", 1, 1 << 24);
  c.tied = read.boolean({"tie_weights", "tie_word_embeddings"}, false);
  c.out_norm = read.boolean("add_post_blocks_norm", true);
  c.bias = read.boolean("bias", false);
  c.chunk = kChunk;
  c.slstm = read_block_map(read, config, c.blocks);
  read.must_be("_block_map", block_map_text(c.slstm));  // which the package derives from slstm_at
  if (c.any(false)) read_mlstm(section(read, config, "mlstm_block"), checkpoint.config_file(), c);
  if (c.any(true)) read_slstm(section(read, config, "slstm_block"), checkpoint.config_file(), c);
  read.ignore({"mlstm_block", "slstm_block", "context_length", "dropout",
               "weight_decay_on_embedding", "add_embedding_dropout"});
  read.finish();
  return c;
}

}  // namespace recurve::xlstm_blocks
