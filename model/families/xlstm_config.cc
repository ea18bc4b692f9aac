#include "model/families/xlstm_config.h"

#include <fmt/format.h>

#include <cmath>

#include "model/weights/config_reader.h"

namespace recurve::xlstm {
namespace {

// Rounds up as round_up_to_next_multiple_of in xlstm_large/utils.py does it: a fraction beyond a
// multiple is dropped, so 64.003 becomes 64.
int64_t round_up(double value, int64_t multiple) {
  const double m = static_cast<double>(multiple);
  return static_cast<int64_t>(std::floor((value + m - 1) / m)) * multiple;
}

// The name of the kernel that trained the model determines the cell: "siging" in the names of
// mlstm_kernels is the sigmoid input gate (Beck et al. 2025, eq. 22 to 24). Those of steps and of
// odd rests are in every config, and the package has them for the exponential gate only; they
// cannot contradict.
bool read_sigmoid_gate(ConfigReader& read, const nlohmann::json& config) {
  const auto names_it = [&](const char* key) {
    return read.has(key) && config[key].is_string() &&
           config[key].get_ref<const std::string&>().find("siging") != std::string::npos;
  };
  const bool sigmoid = names_it("chunkwise_kernel");
  for (const char* key : {"sequence_kernel", "step_kernel"}) {
    if (sigmoid || !names_it(key)) continue;
    read.fail(key, "a kernel with the exponential input gate of chunkwise_kernel",
              config[key].get<std::string>());
  }
  return sigmoid;
}

// The heads' norm takes norm_eps too (mLSTMLayer, xLSTMLayer). cell_norm_eps stands in public
// configs with the same value; no code reads it.
void check_head_norm(ConfigReader& read, double norm_eps) {
  const double eps = read.optional_number("cell_norm_eps", norm_eps, 0, 1);
  if (eps != norm_eps) {
    read.fail("cell_norm_eps", fmt::format("the same as norm_eps, {}", norm_eps),
              fmt::format("{}", eps));
  }
}

// Null: no cap, as in soft_cap of xlstm_large and of transformers.
float read_cap(ConfigReader& read, const char* key, double fallback) {
  if (read.is_null(key)) fallback = 0;
  return static_cast<float>(read.optional_number(key, fallback, 0, 1e6));
}

}  // namespace

Config read_config(const Checkpoint& checkpoint) {
  ConfigReader read(checkpoint.config(), checkpoint.config_file());
  Config c{};
  c.D = read.required_int({"hidden_size", "embedding_dim"}, 1, 1 << 20);
  c.blocks = read.required_int({"num_hidden_layers", "num_blocks"}, 1, 4096);
  c.H = read.required_int("num_heads", 1, 4096);
  c.vocab = read.required_int("vocab_size", 1, 1 << 24);
  const double norm_eps = read.optional_number("norm_eps", 1e-6, 0, 1);
  c.norm_eps = static_cast<float>(norm_eps);
  check_head_norm(read, norm_eps);
  c.cell_eps = static_cast<float>(read.optional_number("eps", 1e-6, 0, 1));
  c.gate_soft_cap = read_cap(read, "gate_soft_cap", 15.0);
  c.logit_soft_cap = read_cap(read, "output_logit_soft_cap", 30.0);
  c.chunk = static_cast<int>(read.optional_int("chunk_size", 64, 1, 1024));
  c.tied = read.boolean("tie_word_embeddings", false);
  c.fused = read.string_one_of("weight_mode", "single", {"single", "fused"}) == "fused";

  const int64_t ffn_multiple = read.optional_int("ffn_round_up_to_multiple_of", 64, 1, 1 << 16);
  const double D = static_cast<double>(c.D);
  // Fractions are dropped, as by int(embedding_dim * factor) in mLSTMLayer, here and in
  // transformers.
  const auto part = [](double value) { return static_cast<int64_t>(value); };
  const int64_t qk = part(D * read.optional_number("qk_dim_factor", 0.5, 1e-3, 64));
  const int64_t v = part(D * read.optional_number("v_dim_factor", 1.0, 1e-3, 64));
  c.F = round_up(D * read.optional_number("ffn_proj_factor", 2.667, 1e-3, 64), ffn_multiple);
  if (qk == 0 || v == 0 || qk % c.H != 0 || v % c.H != 0) {
    read.fail("num_heads", fmt::format("a divisor of the query and value widths {} and {}", qk, v),
              std::to_string(c.H));
  }
  c.DK = qk / c.H;
  c.DV = v / c.H;

  c.sigmoid_gate = read_sigmoid_gate(read, checkpoint.config());
  const bool normalise = read.boolean("normalize_siging", true);  // of the sigmoid gate alone
  c.normaliser = normalise || !c.sigmoid_gate;
  read.must_be("use_bias", false);
  read.must_be("add_out_norm", true);
  for (const char* key : {"add_qk_norm", "add_post_norm"}) read.must_be(key, false);
  // Names of older versions without effect, what no code looks at (the layer's widths are not
  // rounded up), and how others compute it; nothing of the function.
  read.ignore({"add_post_blocks_norm",
               "mlstm_round_up_to_multiple_of",
               "model_type",
               "mode",
               "return_last_states",
               "chunkwise_kernel",
               "sequence_kernel",
               "step_kernel",
               "autocast_kernel_dtype",
               "inference_state_dtype",
               "head_dim",
               "igate_bias_init_range",
               "norm_reduction_force_float32",
               "add_embedding_dropout",
               "add_forward_backend_padding",
               "max_inference_chunksize",
               "bos_token_id",
               "eos_token_id",
               "pad_token_id",
               "context_length",
               "use_cache"});
  read.finish();
  return c;
}

}  // namespace recurve::xlstm
