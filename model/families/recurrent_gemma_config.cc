#include "model/families/recurrent_gemma_config.h"

#include <fmt/format.h>

#include "model/weights/config_reader.h"

namespace recurve::recurrent_gemma {
namespace {

// The grid of prompts; the configs name none.
constexpr int kChunk = 64;

// Of a layer, under keys that transformers derives from block_types; "attention" is always local.
void check_layer_types(ConfigReader& read, const nlohmann::json& config, const char* key,
                       const std::vector<bool>& attends) {
  read.ignore({key});
  if (!read.has(key)) return;
  const nlohmann::json& types = config[key];
  bool same = types.is_array() && types.size() == attends.size();
  for (size_t i = 0; same && i < attends.size(); ++i) {
    same = attends[i] ? types[i] == "attention" || types[i] == "sliding_attention"
                      : types[i] == "recurrent" || types[i] == "linear_attention";
  }
  if (!same) read.fail(key, "the layers that block_types gives", types.dump());
}

// Repeated and cut as the layers need.
std::vector<bool> read_blocks(ConfigReader& read, const nlohmann::json& config, int64_t blocks) {
  read.ignore({"block_types", "_block_types"});
  const auto found = config.find("block_types");
  std::vector<bool> types = {false, false, true};
  if (found != config.end() && !found->is_null()) {
    types.clear();
    const bool list = found->is_array() && !found->empty();
    for (const nlohmann::json& type : list ? *found : nlohmann::json::array({*found})) {
      if (type != "recurrent" && type != "attention") {
        read.fail("block_types", "a list of \"recurrent\" and \"attention\"", found->dump());
      }
      types.push_back(type == "attention");
    }
  }
  std::vector<bool> attends;
  for (int64_t b = 0; b < blocks; ++b) attends.push_back(types[b % types.size()]);
  for (const char* key : {"layer_types", "layers_block_type"}) {
    check_layer_types(read, config, key, attends);
  }
  // An older name, which transformers before 5 takes for block_types.
  if (read.has("_block_types") && (found == config.end() || config["_block_types"] != *found)) {
    read.fail("_block_types", "the same as block_types", config["_block_types"].dump());
  }
  return attends;
}

}  // namespace

Config read_config(const Checkpoint& checkpoint) {
  ConfigReader read(checkpoint.config(), checkpoint.config_file());
  Config c{};
  c.D = read.required_int("hidden_size", 1, 1 << 20);
  const int64_t blocks = read.required_int("num_hidden_layers", 1, 4096);
  c.vocab = read.required_int("vocab_size", 1, 1 << 24);
  c.F = read.required_int("intermediate_size", 2, 1 << 21) / 2;  // of gate and up together
  c.H = read.required_int("num_attention_heads", 1, 4096);
  if (c.D % c.H != 0) {
    read.fail("num_attention_heads", fmt::format("a divisor of hidden_size {}", c.D),
              std::to_string(c.H));
  }
  c.HK = read.optional_int("num_key_value_heads", c.H, 1, c.H);
  if (c.H % c.HK != 0) {
    read.fail("num_key_value_heads", fmt::format("a divisor of num_attention_heads {}", c.H),
              std::to_string(c.HK));
  }
  c.head = c.D / c.H;
  read.must_be("head_dim", c.head);
  c.lru = read.optional_int("lru_width", c.D, 1, 1 << 20);
  if (c.lru % c.H != 0) {
    read.fail("lru_width", fmt::format("a multiple of num_attention_heads {}", c.H),
              std::to_string(c.lru));
  }
  c.width = read.optional_int("conv1d_width", 4, 2, 256);
  c.window = read.optional_int({"attention_window_size", "sliding_window"}, 2048, 1, 1 << 20);
  c.eps = static_cast<float>(read.optional_number("rms_norm_eps", 1e-6, 0, 1));
  c.soft_cap = static_cast<float>(read.optional_number("logits_soft_cap", 30, 1e-3, 1e6));
  c.tied = read.boolean("tie_word_embeddings", true);
  c.attention_bias = read.boolean("attention_bias", false);
  c.attends = read_blocks(read, checkpoint.config(), blocks);
  c.rotary = read_rotary(read, checkpoint.config(), c.head, 0.5);
  c.chunk = kChunk;
  read.string_one_of("hidden_activation", "gelu_pytorch_tanh", {"gelu_pytorch_tanh"});
  read.must_be("embeddings_scale_by_sqrt_dim", true);
  // Of training.
  read.ignore({"attention_dropout", "w_init_variance_scale", "final_w_init_variance_scale"});
  read.finish();
  return c;
}

}  // namespace recurve::recurrent_gemma
