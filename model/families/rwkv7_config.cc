#include "model/families/rwkv7_config.h"

#include <fmt/format.h>

#include <cmath>

#include "model/weights/config_reader.h"

namespace recurve::rwkv7 {
namespace {

// The grid of prompts; the configs name none.
constexpr int kChunk = 64;
// The only size of a head in public checkpoints. For another size the eps of the norm behind the
// recurrence is not defined: BlinkDL's package has 64e-5, fla the size of a head times norm_eps.
constexpr int64_t kHead = 64;
constexpr int64_t kMostRank = 1 << 16;

// What flash-linear-attention's layers/rwkv7.py takes where a config names none.
int64_t usual_rank(int64_t D, double factor) {
  const double steps = std::round(factor * std::sqrt(static_cast<double>(D)) / 32);
  return std::max<int64_t>(32, static_cast<int64_t>(steps) * 32);
}

// One number, or a list with one a layer.
void check_value_size(ConfigReader& read, const nlohmann::json& config, int64_t D) {
  read.ignore({"value_dim"});
  const auto found = config.find("value_dim");
  if (found == config.end() || found->is_null()) return;
  const nlohmann::json list = found->is_array() ? *found : nlohmann::json::array({*found});
  for (const nlohmann::json& size : list) {
    if (size == D) continue;
    read.fail("value_dim", fmt::format("hidden_size, {}, for every layer", D), size.dump());
  }
}

int64_t read_ffn_size(ConfigReader& read, int64_t D) {
  const double ratio = read.optional_number("hidden_ratio", 4, 1e-3, 64);
  const auto size = static_cast<int64_t>(static_cast<double>(D) * ratio);
  return read.optional_int("intermediate_size", (size + 31) / 32 * 32, 1, 1 << 20);
}

// Those of RWKV/RWKV7-Goose-*-HF name sizes otherwise, as they do tensors.
void refuse_other_layout(const ConfigReader& read, const nlohmann::json& config) {
  for (const char* key : {"head_size", "lora_rank_decay"}) {
    const auto found = config.find(key);
    if (found == config.end()) continue;
    read.fail(key, "none: python -m weights_tools convert turns this layout into the server's",
              found->dump());
  }
}

}  // namespace

Config read_config(const Checkpoint& checkpoint) {
  ConfigReader read(checkpoint.config(), checkpoint.config_file());
  refuse_other_layout(read, checkpoint.config());
  Config c{};
  c.D = read.required_int("hidden_size", 1, 1 << 20);
  c.blocks = read.required_int("num_hidden_layers", 1, 4096);
  c.vocab = read.required_int("vocab_size", 1, 1 << 24);
  c.N = read.optional_int("head_dim", kHead, 1, 1 << 16);
  if (c.N != kHead) read.fail("head_dim", std::to_string(kHead), std::to_string(c.N));
  if (c.D % c.N != 0) {
    read.fail("hidden_size", fmt::format("a multiple of head_dim {}", c.N), std::to_string(c.D));
  }
  c.H = c.D / c.N;
  const int64_t heads = read.optional_int("num_heads", c.H, 1, 1 << 16);
  if (heads != c.H) {
    read.fail("num_heads", fmt::format("hidden_size / head_dim, {}", c.H), std::to_string(heads));
  }
  c.F = read_ffn_size(read, c.D);
  c.eps = static_cast<float>(read.optional_number("norm_eps", 1e-5, 0, 1));
  c.tied = read.boolean("tie_word_embeddings", false);
  c.ranks = {.w = read.optional_int("decay_low_rank_dim", usual_rank(c.D, 2.5), 1, kMostRank),
             .a = read.optional_int("a_low_rank_dim", usual_rank(c.D, 2.5), 1, kMostRank),
             .v = read.optional_int("v_low_rank_dim", usual_rank(c.D, 1.7), 1, kMostRank),
             .g = read.optional_int("gate_low_rank_dim", usual_rank(c.D, 5), 1, kMostRank)};
  c.chunk = kChunk;
  check_value_size(read, checkpoint.config(), c.D);
  read.string_one_of("hidden_act", "sqrelu", {"sqrelu"});
  read.must_be("norm_bias", true);
  read.must_be("norm_first", true);  // a norm behind the embedding
  read.must_be("attn", nullptr);     // layers of attention among the others
  // How others compute it, and of training; nothing of the function.
  read.ignore({"attn_mode", "fuse_norm", "fuse_cross_entropy", "fuse_linear_cross_entropy",
               "use_l2warp", "max_position_embeddings"});
  read.finish();
  return c;
}

Ranks ranks_of(const Config& config, const Checkpoint& checkpoint, const std::string& attn) {
  const auto rank = [&](const char* which, int64_t otherwise) {
    const TensorView* down = checkpoint.find(fmt::format("{}{}_lora.lora.0.weight", attn, which));
    return down != nullptr && down->shape.size() == 2 ? down->rows() : otherwise;
  };
  return {.w = rank("w", config.ranks.w),
          .a = rank("a", config.ranks.a),
          .v = rank("v", config.ranks.v),
          .g = rank("g", config.ranks.g)};
}

}  // namespace recurve::rwkv7
