// Mamba-2: blocks of one multi-head state space each. Checkpoints as transformers writes them
// (models/mamba2; Mamba-Codestral among them), and with the names and the config of
// state-spaces/mamba (mamba_ssm/models/mixer_seq_simple.py, modules/mamba2.py).
// The gated norm is over each group, as in mamba_ssm. transformers norms over all groups together,
// which gives other logits where there is more than one.
#include <fmt/format.h>

#include "model/families/mamba_common.h"
#include "model/layers/held_rows.h"
#include "model/layers/ssd_mixer.h"
#include "model/load_model.h"

namespace recurve {
namespace {

struct Mamba2Config : StateSpaceConfig {
  SsdMixerConfig mixer;
};

// What state-spaces' config has under ssm_cfg; those of transformers have it at the top.
void read_mixer(ConfigReader& read, const nlohmann::json& config, Mamba2Config& c) {
  read_mixer_sizes(read, 128, c);
  const bool original = c.original;
  SsdMixerConfig& m = c.mixer;
  m.P = read.optional_int(mixer_key(c, "headdim", "head_dim"), 64, 1, 1 << 16);
  m.G = read.optional_int(mixer_key(c, "ngroups", "n_groups"), original ? 1 : 8, 1, 1 << 16);
  const auto inner = static_cast<int64_t>(static_cast<double>(c.D) *
                                          read.optional_number("expand", 2, 1.0 / 64, 64));
  if (inner % m.P != 0) {
    read.fail(original ? "headdim" : "head_dim",
              fmt::format("a divisor of the inner width {}", inner), std::to_string(m.P));
  }
  m.H = inner / m.P;
  if (m.H % m.G != 0) {
    read.fail(original ? "ngroups" : "n_groups",
              fmt::format("a divisor of the number of heads {}", m.H), std::to_string(m.G));
  }
  read_time_step_limits(read, config, original ? "dt_limit" : "time_step_limit", m);
  read.optional_int("chunk_size", 256, 1, 1 << 20);
}

void read_original_mixer(const nlohmann::json& mixer, const std::string& file, Mamba2Config& c) {
  ConfigReader read(mixer, file + ": ssm_cfg");
  read_mixer(read, mixer, c);
  read.must_be("layer", "Mamba2");
  read.must_be("d_ssm", c.mixer.inner());
  read.must_be("D_has_hdim", false);
  read.must_be("rmsnorm", true);
  read.must_be("norm_before_gate", false);
  read.string_one_of("activation", "swish", {"silu", "swish"});
  read.ignore({"conv_init", "A_init_range", "dt_min", "dt_max", "dt_init_floor", "use_mem_eff_path",
               "sequence_parallel"});
  read.finish();
}

Mamba2Config read_mamba2_config(const Checkpoint& checkpoint) {
  const nlohmann::json& config = checkpoint.config();
  ConfigReader read(config, checkpoint.config_file());
  Mamba2Config c{};
  read_outside(read, !has_lm_head(checkpoint), c);
  // mamba_ssm's gated norm has a separate epsilon, which no config sets.
  c.mixer.gate_eps = c.original ? 1e-5f : c.eps;
  if (c.original) {
    read_original_mixer(ssm_cfg(read, config), checkpoint.config_file(), c);
  } else {
    read_mixer(read, config, c);
    read.must_be({"intermediate_size", "d_inner"}, c.mixer.inner());
    read.must_be("num_heads", c.mixer.H);
    read.must_be("ssm_cfg", nlohmann::json{{"layer", "Mamba2"}});
  }
  // norm_before_gate: Codestral's config has true although its gate comes first; its code reads
  // neither this nor time_step_rank.
  read.ignore({"norm_before_gate", "time_step_rank"});
  finish_state_space(read);
  SsdMixerConfig& m = c.mixer;
  m.D = c.D;
  m.N = c.N;
  m.width = c.width;
  m.eps = c.eps;
  m.bias = c.bias;
  m.conv_bias = c.conv_bias;
  m.chunk = c.chunk;
  return c;
}

class Mamba2 final : public StateSpaceModel {
 public:
  Mamba2(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
         const Checkpoint::Progress& progress);

  StateLayout state_layout() const override;
  size_t arena_bytes(const StepLimits& limits) const override;
  void forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
               float* logits) const override;

 private:
  Mamba2Config c_;
  std::vector<SsdMixerWeights> blocks_;
};

Mamba2::Mamba2(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
               const Checkpoint::Progress& progress)
    : StateSpaceModel(backend), c_(read_mamba2_config(checkpoint)) {
  SsdMixerConfig& m = c_.mixer;
  m.state = options.state;
  m.written_every = options.written_every;
  if (options.chunk > 0) c_.chunk = m.chunk = options.chunk;
  check_ssd_mixer(m, backend, "mamba2");
  const std::string prefix = load_outside(c_, checkpoint, backend, options.weights);
  WeightTally tally;
  for (int64_t b = 0; b < c_.layers; ++b) {
    const std::string layer = fmt::format("{}layers.{}.", prefix, b);
    blocks_.push_back(
        load_ssd_mixer(m, checkpoint, backend, layer + "mixer.",
                       VectorWeights::load(backend, checkpoint, layer + "norm.weight", {{c_.D}}),
                       options.weights));
    add_to(tally, blocks_.back());
  }
  checkpoint.finish(progress);
  fill_info(c_, checkpoint, tally, "mamba2",
            fmt::format("{} blocks, width {}, {} heads of {} x {} in {} {}", c_.layers, c_.D, m.H,
                        m.P, m.N, m.G, m.G == 1 ? "group" : "groups"));
}

StateLayout Mamba2::state_layout() const {
  StateLayout layout;
  for (int b = 0; b < static_cast<int>(c_.layers); ++b) add_arrays(c_.mixer, b, layout);
  add_held_rows(c_.mixer.written_every, layout);
  return layout;
}

size_t Mamba2::arena_bytes(const StepLimits& limits) const {
  const auto bytes_for = [](int count, int64_t width) {
    return Arena::bytes_for(static_cast<size_t>(count) * static_cast<size_t>(width));
  };
  size_t bytes = Residual::bytes_for(kernels_, limits.rows, c_.D) + bytes_for(limits.logits, c_.D) +
                 bytes_of_held_rows(c_.mixer.written_every, limits);
  for (const int64_t width : SsdMixerScratch::widths(c_.mixer)) {
    bytes += bytes_for(limits.rows, width);
  }
  return bytes;
}

void Mamba2::forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
                     float* logits) const {
  const int rows = batch.seqs.rows;
  const auto take = [&](int count, int64_t width) {
    return arena.floats(static_cast<size_t>(count) * static_cast<size_t>(width));
  };
  arena.reset();
  Residual x(kernels_, arena, rows, c_.D);
  const SsdMixerScratch scratch{.zxBCdt = take(rows, c_.mixer.projected()),
                                .xBC = take(rows, c_.mixer.conv_width()),
                                .v = take(rows, c_.mixer.inner())};
  float* picked = take(batch.num_logits, c_.D);
  const size_t arrays = state_arrays(c_.mixer);  // of a block
  const HeldRows held = count_held_rows(c_.mixer.written_every, c_.mixer.chunk, batch.seqs, states,
                                        arrays * blocks_.size(), kernels_, arena, stream);
  const auto mix = [&](size_t b, const Residual::Reader& next) {
    ssd_mixer(c_.mixer, blocks_[b], batch.seqs,
              SsdMixerState::of(c_.mixer, states, arrays * b, held), scratch, x, next, kernels_,
              stream);
  };
  forward_through(blocks_, mix, c_, batch, x, picked, logits, stream);
}

}  // namespace

std::unique_ptr<const Model> load_mamba2(Checkpoint& checkpoint, Backend& backend,
                                         const LoadOptions& options,
                                         const Checkpoint::Progress& progress) {
  return std::make_unique<Mamba2>(checkpoint, backend, options, progress);
}

}  // namespace recurve
