#include "server/startup/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "kernels/dry_run_backend.h"
#include "kernels/host.h"
#include "model/load_model.h"
#include "server/constraint/compiler.h"
#include "server/engine/engine.h"
#include "server/startup/engine_options.h"

namespace recurve {
namespace {

constexpr size_t kReserveOfGpu = size_t{768} << 20;
constexpr size_t kReserveOfHost = size_t{64} << 20;
// The most slots that an error suggests: the search builds an engine in a dry run for each number
// that it tries, which takes time for each slot.
constexpr int kMaxSearched = 4096;

// Host memory that is planned so far.
size_t planned_on_host(const MemoryPlan& plan, int slots) {
  return plan.on_host ? plan.total(slots) : kReserveOfHost + plan.constraints + plan.sessions;
}

double gib(size_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

// A model and an engine that allocate nothing.
class DryRun {
 public:
  DryRun(const Options& options, const Backend& backend) : options_(options), backend_(backend) {
    Checkpoint checkpoint = open_checkpoint(options);
    checkpoint.leave_out_copies();
    model_ = load_model(checkpoint, backend_, load_options(options));
    if (model_->state_layout().grows()) {
      throw std::runtime_error(fmt::format(
          "{}: model_type: {} is not served yet: its keys and values grow with a session, and the "
          "engine gives sessions no pages; recurve-bench step measures it",
          checkpoint.config_file(), model_->info().family));
    }
    weights_ = backend_.allocated();
  }

  size_t weights() const { return weights_; }
  size_t state() const { return model_->state_layout().bytes(); }
  // What an engine allocates without the states.
  size_t steps(int slots) {
    AdmissionQueue queue(1);
    EngineStats stats;
    EngineMetrics metrics;
    const int32_t vocab = static_cast<int32_t>(model_->info().vocab);
    Engine engine(*model_, backend_, {.rows = vocab, .usable = vocab, .eos_ids = {}}, queue, stats,
                  metrics, engine_options(options_, slots, 0));
    return backend_.allocated() - weights_ - state() * (static_cast<size_t>(slots) + 1);
  }

 private:
  const Options options_;
  DryRunBackend backend_;
  std::unique_ptr<const Model> model_;
  size_t weights_ = 0;
};

}  // namespace

size_t MemoryPlan::total(int slots) const {
  const size_t known = weights + states(slots) + reserve + sessions_on_device();
  return known > free ? known : known + steps(slots);
}

int MemoryPlan::most_slots(int limit) const {
  int fits = 0, too_many = limit + 1;
  while (too_many - fits > 1) {
    const int slots = fits + (too_many - fits) / 2;
    (total(slots) <= free ? fits : too_many) = slots;
  }
  return fits;
}

std::string MemoryPlan::arithmetic(int slots) const {
  const bool all = weights + states(slots) + reserve + sessions_on_device() <= free;
  return fmt::format(
      "weights {:.2f} + states ({} + 1) x {:.4f} = {:.2f} + reserve {:.2f}{}{}{}{} = {:.2f} "
      "GiB{}; {:.2f} GiB are free",
      gib(weights), slots, gib(state), gib(states(slots)), gib(reserve),
      on_host && constraints > 0 ? fmt::format(" + constraints {:.2f}", gib(constraints)) : "",
      on_host && sessions > 0 ? fmt::format(" + sessions {:.2f}", gib(sessions)) : "",
      on_host && prefixes > 0 ? fmt::format(" + prefixes {:.2f}", gib(prefixes)) : "",
      all ? fmt::format(" + activations, logits and sampling {:.2f}", gib(steps(slots))) : "",
      gib(total(slots)), all ? "" : " before activations and logits", gib(free));
}

MemoryPlan plan_memory(const Options& options, Backend& backend) {
  const auto dry_run = std::make_shared<DryRun>(options, backend);
  return {.free = backend.free_memory(),
          .host_free = free_host_memory(),
          .on_host = !options.on_gpu(),
          .weights = dry_run->weights(),
          .state = dry_run->state(),
          .reserve = options.on_gpu() ? kReserveOfGpu : kReserveOfHost,
          .steps = [dry_run](int slots) { return dry_run->steps(slots); },
          .constraints = has_constraint_library()
                             ? CompileLimits().cache_bytes + KeptBytes().masks + KeptBytes().rules
                             : 0};
}

int choose_slots(const Options& options, const MemoryPlan& plan) {
  if (options.slots > 0 && plan.total(options.slots) <= plan.free) return options.slots;
  const int automatic = options.on_gpu() ? kMaxSlotsOfGpu : kMaxSlotsOfHost;
  const int limit = options.slots > 0 ? options.slots : automatic;
  const int fit = plan.most_slots(std::min(limit, kMaxSearched));
  if (options.slots == 0 && fit > 0) return fit;
  const std::string hint = fit > 0 ? fmt::format("--slots {} fits", fit)
                                   : "not even --slots 1 fits: use a smaller model";
  throw std::runtime_error(fmt::format("not enough memory on device '{}': {}; {}", options.device,
                                       plan.arithmetic(std::max(options.slots, 1)), hint));
}

void plan_sessions(const Options& options, int slots, MemoryPlan* plan) {
  plan->sessions = plan->prefixes = 0;
  const size_t planned = planned_on_host(*plan, slots);
  const size_t remaining = plan->host_free - std::min(plan->host_free, planned);
  const bool automatic = options.session_memory == kAutomatic;
  plan->sessions = automatic ? remaining / 2 : options.session_memory;
  if (plan->sessions <= remaining) return;
  throw std::runtime_error(
      fmt::format("not enough memory on the host: --session-memory {:.2f} + everything else {:.2f} "
                  "= {:.2f} GiB; "
                  "{:.2f} GiB are free; --session-memory {} or less fits",
                  gib(plan->sessions), gib(planned), gib(plan->sessions + planned),
                  gib(plan->host_free), remaining));
}

void plan_prefixes(const Options& options, int slots, MemoryPlan* plan) {
  plan->prefixes = 0;
  const size_t planned = planned_on_host(*plan, slots);
  const size_t remaining = plan->host_free - std::min(plan->host_free, planned);
  const bool automatic = options.prefix_memory == kAutomatic;
  plan->prefixes =
      automatic ? std::min(remaining / 4, kMaxPrefixStates * plan->state) : options.prefix_memory;
  if (plan->prefixes <= remaining) return;
  throw std::runtime_error(
      fmt::format("not enough memory on the host: --prefix-memory {:.2f} + everything else {:.2f} "
                  "= {:.2f} GiB; "
                  "{:.2f} GiB are free; --prefix-memory {} or less fits",
                  gib(plan->prefixes), gib(planned), gib(plan->prefixes + planned),
                  gib(plan->host_free), remaining));
}

}  // namespace recurve
