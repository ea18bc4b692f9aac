#include "model/layers/experts.h"

#include <fmt/format.h>

#include <limits>

#include "kernels/weight_format.h"
#include "model/layers/required_ops.h"

namespace recurve {
namespace {

using Parts = std::vector<LinearWeights::Part>;

// One tensor of the matrices of all experts, N rows each.
Parts fused(const std::string& name, int64_t E, int64_t N, int64_t K) {
  LinearWeights::Part part(name, E * N);
  part.shape = {E, N, K};
  return {part};
}

// Of the formats that there are linear layers for.
void check_format(const Backend& backend, const Matrix& matrix) {
  if (matrix.format == nullptr || backend.kernels().expert_linear.find(matrix.format)) return;
  throw MissingFormat(fmt::format(
      "backend '{}' cannot take weights of experts in {}; choose another format with --weights, or "
      "use the device cpu",
      backend.name(), matrix.format->name));
}

}  // namespace

ExpertsWeights load_experts(const ExpertsConfig& c, Checkpoint& checkpoint, Backend& backend,
                            const ExpertsNames& names, VectorWeights norm,
                            const WeightFormats& formats) {
  const auto load = [&](const Parts& parts, int64_t K, bool adapts) {
    const WeightChoice& choice = formats.linear;
    return LinearWeights::load(backend, checkpoint, parts, K,
                               adapts ? choice : choice.without_adapters());
  };
  Parts router = {{names.router, c.E}}, up, down;
  if (c.shared_gate) router.emplace_back(names.shared_gate, 1);
  if (names.expert.empty() || checkpoint.is_random() || checkpoint.find(names.up) != nullptr) {
    up = fused(names.up, c.E, 2 * c.F, c.D);
    down = fused(names.down, c.E, c.D, c.F);
  } else {
    for (int64_t e = 0; e < c.E; ++e) {
      const std::string expert = fmt::format("{}{}.", names.expert, e);
      up.emplace_back(expert + names.gate_of_one, c.F);
      up.emplace_back(expert + names.up_of_one, c.F);
      down.emplace_back(expert + names.down_of_one, c.D);
    }
  }
  ExpertsWeights w;
  w.norm = std::move(norm);
  // Not packed: it is small, and decides which experts there are.
  w.router = LinearWeights::load(backend, checkpoint, router, c.D, formats.others);
  w.up = load(up, c.D, false);
  w.down = load(down, c.F, false);
  for (const LinearWeights* matrix : {&w.up, &w.down}) check_format(backend, matrix->matrix());
  if (c.shared == 0) return w;
  Parts shared_up;
  const auto count = static_cast<int64_t>(names.shared_up.size());
  for (const std::string& name : names.shared_up) {
    shared_up.emplace_back(name, 2 * c.shared / count);
  }
  w.shared_up = load(shared_up, c.D, true);
  w.shared_down = load({{names.shared_down, c.D}}, c.shared, !c.shared_gate);
  return w;
}

void add_to(WeightTally& tally, const ExpertsWeights& weights) {
  tally.add(weights.norm);
  for (const LinearWeights* matrix :
       {&weights.router, &weights.up, &weights.down, &weights.shared_up, &weights.shared_down}) {
    tally.add(*matrix);
  }
}

std::vector<int64_t> ExpertsScratch::widths(const ExpertsConfig& c) {
  if (c.E == 0) return {};
  return {c.top * c.F, c.D, c.routed(), c.top, c.top, c.top, c.shared, 1};
}

size_t ExpertsScratch::bytes_for(const ExpertsConfig& c) {
  return c.E == 0 ? 0 : Arena::bytes_for(static_cast<size_t>(c.E) + 1);
}

ExpertsScratch ExpertsScratch::of(const ExpertsConfig& c, const std::vector<float*>& a,
                                  Arena& arena) {
  if (c.E == 0) return {};
  static_assert(sizeof(float) == sizeof(int32_t));
  const auto ints = [](float* memory) { return reinterpret_cast<int32_t*>(memory); };
  float* const begin = arena.floats(static_cast<size_t>(c.E) + 1);
  return {a[0], a[1], a[2], a[3], ints(a[4]), ints(a[5]), a[6], a[7], ints(begin)};
}

void check_experts(const ExpertsConfig& c, Backend& backend, std::string_view family) {
  if (c.E == 0) return;
  require_ops(backend, family, {"rms_norm", "router", "expert_linear"});
  require_sizes(backend, family, RouterArgs{.E = static_cast<int>(c.E)});
  if (c.shared_gate) require_ops(backend, family, {"activation"});
}

namespace {

// The experts that are chosen.
void routed_experts(const ExpertsConfig& c, const ExpertsWeights& w, int rows,
                    const ExpertsScratch& s, float* x, const Kernels& kernels, Stream& stream) {
  const int E = static_cast<int>(c.E), top = static_cast<int>(c.top);
  kernels.router({.rows = rows,
                  .E = E,
                  .top = top,
                  .scores = RouterScores::kSoftmax,
                  .renormalised = c.renormalised,
                  .stride = static_cast<int>(c.routed()),
                  .logits = s.logits,
                  .expert = s.expert,
                  .weight = s.weight,
                  .begin = s.begin,
                  .pair = s.pair},
                 stream);
  ExpertLinearArgs up{.rows = rows,
                      .top = top,
                      .E = E,
                      .W = w.up.matrix(),
                      .begin = s.begin,
                      .pair = s.pair,
                      .x = s.y,
                      .y = s.hidden};
  ExpertLinearArgs down = up;
  down.W = w.down.matrix();
  down.weight = s.weight;
  down.x = s.hidden;
  down.y = x;
  kernels.expert_linear(up, stream);
  kernels.expert_linear(down, stream);
}

// The one that all tokens go to.
void shared_expert(const ExpertsConfig& c, const ExpertsWeights& w, int rows,
                   const ExpertsScratch& s, Residual& x, const Residual::Reader& next,
                   const Kernels& kernels, Stream& stream) {
  kernels.linear({.rows = rows, .W = w.shared_up.matrix(), .x = s.y, .y = s.shared, .swiglu = true},
                 stream);
  if (!c.shared_gate) {
    LinearArgs down = x.add({.W = w.shared_down.matrix()}, next);
    down.x = s.shared;
    return kernels.linear(down, stream);
  }
  kernels.activation({.rows = rows,
                      .width = 1,
                      .f = Activation::kSigmoid,
                      .scale = 1,
                      .floor = -std::numeric_limits<float>::infinity(),
                      .x_stride = static_cast<int>(c.routed()),
                      .y_stride = 1,
                      .x = s.logits + c.E,
                      .y = s.gate},
                     stream);
  kernels.expert_linear({.rows = rows,
                         .top = 1,
                         .E = 1,
                         .W = w.shared_down.matrix(),
                         .weight = s.gate,
                         .x = s.shared,
                         .y = x.x()},
                        stream);
}

}  // namespace

void experts(const ExpertsConfig& c, const ExpertsWeights& w, int rows, const ExpertsScratch& s,
             Residual& x, const Residual::Reader& next, const Kernels& kernels, Stream& stream) {
  kernels.rms_norm({.rows = rows,
                    .D = static_cast<int>(c.D),
                    .eps = c.eps,
                    .x = x.x(),
                    .w = w.norm.data(),
                    .y = s.y},
                   stream);
  kernels.linear({.rows = rows, .W = w.router.matrix(), .x = s.y, .y = s.logits}, stream);
  routed_experts(c, w, rows, s, x.x(), kernels, stream);
  if (c.shared > 0) shared_expert(c, w, rows, s, x, next, kernels, stream);
}

}  // namespace recurve
