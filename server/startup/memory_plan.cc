#include "server/startup/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <utility>

#include "kernels/dry_run_backend.h"
#include "kernels/host.h"
#include "model/load_model.h"
#include "server/constraint/compiler.h"
#include "server/engine/engine.h"
#include "server/object_store/remote_sessions.h"
#include "server/observe/process_memory.h"
#include "server/prefix_store/prefix_store.h"
#include "server/startup/adapters.h"
#include "server/startup/engine_options.h"
#include "server/startup/initial_states.h"
#include "server/startup/model_list.h"

namespace recurve {
namespace {

constexpr size_t kReserveOfGpu = size_t{768} << 20;
constexpr size_t kReserveOfHost = size_t{64} << 20;
// For the choice of slots, a slot of a model whose states grow has pages for so many tokens.
constexpr int64_t kLeastTokens = 1024;
// The most slots that an error suggests: the search builds an engine in a dry run for each number
// that it tries, which takes time for each slot.
constexpr int kMaxSearched = 4096;

// Host memory that is planned so far.
size_t planned_on_host(const MemoryPlan& plan, int slots) {
  if (plan.on_host) return plan.total(slots);
  return plan.others_on_host + kReserveOfHost + plan.of_host();
}

size_t remaining_on_host(const MemoryPlan& plan, int slots) {
  return plan.host_free - std::min(plan.host_free, planned_on_host(plan, slots));
}

// Of memory that remains, what parts are sized by that the options leave to the server: mapped
// weights are to stay in memory, but not where little or nothing would remain.
size_t for_automatic_parts(const MemoryPlan& plan, size_t remaining) {
  return std::max(remaining - std::min(remaining, plan.mapped), remaining / 4);
}

double gib(size_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

// The bytes of sessions or prefixes, which are not planned yet, but for what the two share. Throws
// if they do not fit.
size_t fitting_on_host(const char* flag, size_t bytes, const MemoryPlan& plan, int slots) {
  const size_t others = planned_on_host(plan, slots) - plan.budget();
  const size_t fits = plan.budget() + remaining_on_host(plan, slots);
  if (bytes <= fits) return bytes;
  throw std::runtime_error(fmt::format(
      "not enough memory on the host: {} {:.2f} + everything else {:.2f} = {:.2f} GiB; "
      "{:.2f} GiB are free; {} {} or less fits",
      flag, gib(bytes), gib(others), gib(bytes + others), gib(plan.host_free), flag, fits));
}

// A model and an engine that allocate nothing.
class DryRun {
 public:
  DryRun(const Options& options, const Backend& backend) : options_(options), backend_(backend) {
    Checkpoint checkpoint = open_checkpoint(options);
    checkpoint.leave_out_copies();
    if (options.map_weights != MapWeights::kOff) checkpoint.map_weights();
    model_ = load_model(checkpoint, backend_, load_options(options));
    weights_ = backend_.allocated();
    mapped_ = checkpoint.mapped_bytes();
    targets_ = checkpoint.shared_adapter_targets();
  }

  size_t weights() const { return weights_; }
  size_t mapped() const { return mapped_; }  // the most that can be, and not in weights()
  const AdapterTargets& adapter_targets() const { return *targets_; }
  StateLayout layout() const { return model_->state_layout(); }
  int32_t vocab() const { return static_cast<int32_t>(model_->info().vocab); }
  size_t state() const { return model_->state_layout().bytes(); }
  size_t page() const { return model_->state_layout().page_bytes(); }
  int64_t most_tokens() const {
    const int64_t counted = model_->state_layout().most_tokens(),
                  named = model_->info().most_tokens;
    return named > 0 ? std::min(named, counted) : counted;
  }
  // What an engine allocates without the states and their pages.
  StepMemory steps(int slots) {
    AdmissionQueue queue(1);
    PublishedStats stats;
    EngineMetrics metrics;
    const int32_t vocab = static_cast<int32_t>(model_->info().vocab);
    EngineOptions options =
        engine_options(options_, slots, 0, 0, {.pages = 0, .most_tokens = most_tokens()});
    if (!options_.adapters.empty()) options.adapters = targets_;
    Engine engine(*model_, backend_, {.rows = vocab, .usable = vocab, .eos_ids = {}}, queue, stats,
                  metrics, options);
    if (backend_.computes_on_host()) engine.call_largest_step();
    return {.buffers = backend_.allocated() - weights_ - state() * (static_cast<size_t>(slots) + 1),
            .scratch = backend_.take_scratch()};
  }

 private:
  const Options options_;
  DryRunBackend backend_;
  std::unique_ptr<const Model> model_;
  std::shared_ptr<const AdapterTargets> targets_;
  size_t weights_ = 0, mapped_ = 0;
};

}  // namespace

size_t MemoryPlan::pages_for(int slots) const {
  if (pages > 0) return pages;
  const int64_t tokens = std::min(most_tokens, kLeastTokens);
  return static_cast<size_t>(slots * StateLayout::pages(tokens)) * page;
}

PageLimits MemoryPlan::page_limits() const {
  if (page == 0) return {};
  return {.pages = static_cast<int32_t>(pages / page), .most_tokens = most_tokens};
}

int64_t MemoryPlan::session_tokens() const {
  return page == 0 ? 0 : std::min<int64_t>(most_tokens, page_limits().pages * kPageTokens);
}

size_t MemoryPlan::known(int slots) const {
  return others + weights + adapters + states(slots) + pages_for(slots) + reserve +
         on_device_of_host();
}

size_t MemoryPlan::total(int slots) const {
  const size_t known = this->known(slots);
  return known > free ? known : known + steps(slots).total();
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
  const bool all = known(slots) <= free;
  const StepMemory of_steps = all ? steps(slots) : StepMemory();
  return fmt::format(
      "{}weights {:.2f} + states ({} + 1) x {:.4f} = {:.2f}{} + reserve {:.2f}{}{}{}{}{}{}{}{} = "
      "{:.2f} "
      "GiB{}; {:.2f} GiB are free{}",
      others > 0 ? fmt::format("other models {:.2f} + ", gib(others)) : "", gib(weights), slots,
      gib(state), gib(states(slots)),
      page > 0 ? fmt::format(" + pages {:.2f}", gib(pages_for(slots))) : "", gib(reserve),
      on_host && preempted > 0 ? fmt::format(" + preempted {:.2f}", gib(preempted)) : "",
      on_host && constraints > 0 ? fmt::format(" + constraints {:.2f}", gib(constraints)) : "",
      on_host && transfers + prefix_transfers > 0
          ? fmt::format(" + states to and from the store {:.2f}", gib(transfers + prefix_transfers))
          : "",
      on_host && initial_states > 0 ? fmt::format(" + initial states {:.2f}", gib(initial_states))
                                    : "",
      adapters > 0 ? fmt::format(" + adapters {:.2f}", gib(adapters)) : "",
      on_host && budget() > 0 ? fmt::format(" + sessions and prefixes {:.2f}", gib(budget())) : "",
      all ? fmt::format(" + activations, logits and sampling {:.2f}", gib(of_steps.buffers)) : "",
      of_steps.scratch > 0 ? fmt::format(" + scratch of kernels {:.2f}", gib(of_steps.scratch))
                           : "",
      gib(total(slots)), all ? "" : " before activations and logits", gib(free),
      mapped > 0 ? fmt::format(", for {:.2f} of mapped weights too", gib(mapped)) : "");
}

bool choose_mapping(MapWeights wanted, size_t weights, size_t free) {
  return wanted == MapWeights::kOn || (wanted == MapWeights::kAuto && weights > free / 2);
}

int64_t most_shared_prefix_bytes(size_t state, size_t page) {
  constexpr size_t kIds = size_t{4} << 20, kPages = size_t{64} << 20;
  return static_cast<int64_t>(state + kIds + (page > 0 ? kPages : 0));
}

MemoryPlan plan_memory(const Options& options, Backend& backend) {
  const auto dry_run = std::make_shared<DryRun>(options, backend);
  const size_t free = backend.free_memory(), weights = dry_run->weights() + dry_run->mapped();
  if (options.map_weights == MapWeights::kOn && dry_run->mapped() == 0) {
    throw std::runtime_error(
        "--map-weights on: wanted weights that the device cpu uses as the file has them, found "
        "none: write the file with python -m weights_tools quantize");
  }
  const size_t mapped = choose_mapping(options.map_weights, weights, free) ? dry_run->mapped() : 0;
  return {
      .free = free,
      .host_free = free_host_memory(),
      .on_host = !options.on_gpu(),
      .weights = weights - mapped,
      .mapped = mapped,
      .state = dry_run->state(),
      .page = dry_run->page(),
      .most_tokens = dry_run->most_tokens(),
      .pages = options.kv_memory == kAutomatic ? 0 : options.kv_memory,
      .reserve = options.on_gpu() ? kReserveOfGpu : kReserveOfHost,
      .adapters = plan_adapters(options.adapters, dry_run->adapter_targets(), backend),
      .steps = [dry_run](int slots) { return dry_run->steps(slots); },
      .constraints = has_constraint_library()
                         ? CompileLimits().cache_bytes + CacheBytes().masks + CacheBytes().rules
                         : 0,
      // Of the first model, whose sessions alone can be there.
      .transfers =
          options.state_store.empty() || options.sharing.index > 0
              ? 0
              : static_cast<size_t>(transfer_bytes(static_cast<int64_t>(dry_run->state()))),
      .prefix_transfers = options.prefix_store == 0
                              ? 0
                              : static_cast<size_t>(PrefixStore::transfer_bytes(
                                    most_shared_prefix_bytes(dry_run->state(), dry_run->page()))),
      .initial_states =
          plan_initial_states(options.initial_states, dry_run->layout(), dry_run->vocab())};
}

int choose_slots(const Options& options, const MemoryPlan& plan) {
  if (options.slots > 0 && plan.total(options.slots) <= plan.free) return options.slots;
  const int automatic = options.on_gpu() ? kMaxSlotsOfGpu : kMaxSlotsOfHost;
  const int limit = options.slots > 0 ? options.slots : automatic;
  MemoryPlan shared = plan;
  if (options.slots == 0) {  // the rest of what remains is for models behind this one
    const size_t remaining = plan.free - std::min(plan.free, plan.total(1));
    shared.others += remaining - options.sharing.part_of(remaining);
  }
  const int fit = shared.most_slots(std::min(limit, kMaxSearched));
  if (options.slots == 0 && fit > 0) return fit;
  const std::string hint = fit > 0 ? fmt::format("--slots {} fits", fit)
                                   : "not even --slots 1 fits: use a smaller model";
  throw std::runtime_error(fmt::format("not enough memory on device '{}': {}; {}", options.device,
                                       plan.arithmetic(std::max(options.slots, 1)), hint));
}

void plan_pages(const Options& options, int slots, MemoryPlan* plan) {
  const bool automatic = options.kv_memory == kAutomatic;
  if (plan->page == 0) {
    if (automatic) return;
    throw std::runtime_error(
        "--kv-memory is for models with attention over whole sessions, which this one does not "
        "have: leave it out");
  }
  plan->pages = plan->preempted = 0;
  const size_t least = static_cast<size_t>(slots) * plan->page;
  const size_t others = plan->total(slots) - plan->pages_for(slots);
  const size_t remaining = plan->free - std::min(plan->free, others);
  const size_t of_all = least * static_cast<size_t>(StateLayout::pages(plan->most_tokens));
  size_t wanted = options.kv_memory;
  const Sharing& sharing = options.sharing;
  const size_t most = plan->on_host ? sharing.part_of(for_automatic_parts(*plan, remaining), 8)
                                    : sharing.part_of(remaining);
  if (automatic) wanted = std::clamp(most, least, of_all);
  plan->pages = wanted / plan->page * plan->page;
  if (plan->pages < least) {
    throw std::runtime_error(fmt::format(
        "--kv-memory {} is too small: each of {} slots needs a page of {} bytes: --kv-memory {} "
        "would do",
        wanted, slots, plan->page, least));
  }
  plan->preempted =
      plan->on_host ? plan->pages
                    : std::min(plan->pages, sharing.part_of(remaining_on_host(*plan, slots), 2));
  if (plan->total(slots) <= plan->free) return;
  const size_t fits = plan->on_host ? remaining / 2 : remaining;
  throw std::runtime_error(
      fmt::format("not enough memory on device '{}': {}; --kv-memory {} or less fits",
                  options.device, plan->arithmetic(slots), fits / plan->page * plan->page));
}

void plan_sessions(const Options& options, int slots, MemoryPlan* plan) {
  plan->sessions = plan->prefixes = 0;
  const bool automatic = options.session_memory == kAutomatic;
  const size_t most =
      options.sharing.part_of(for_automatic_parts(*plan, remaining_on_host(*plan, slots)), 2);
  const size_t bytes = automatic ? most : options.session_memory;
  plan->sessions = fitting_on_host("--session-memory", bytes, *plan, slots);
}

void plan_prefixes(const Options& options, int slots, MemoryPlan* plan) {
  plan->prefixes = 0;
  const size_t remaining = for_automatic_parts(*plan, remaining_on_host(*plan, slots));
  const size_t own =
      std::min(options.sharing.part_of(remaining, 4), kMaxPrefixStates * plan->state);
  const bool automatic = options.prefix_memory == kAutomatic;
  const size_t bytes = automatic ? plan->sessions + own : options.prefix_memory;
  plan->prefixes = fitting_on_host("--prefix-memory", bytes, *plan, slots);
}

namespace {

// Plans models part by part.
class ModelPlans {
 public:
  ModelPlans(const std::vector<Options>& models,
             const std::vector<std::unique_ptr<Backend>>& backends)
      : models_(models) {
    for (size_t m = 0; m < models.size(); ++m) {
      const Options& options = models[m];
      guarded(options, [&] { planned_.push_back({.plan = plan_memory(options, *backends[m])}); });
      planned_[m].slots = std::max(options.slots, 1);
      guarded(options, [&] {  // with the least of those before
        set_others(m);
        if (options.sharing.count > 1) check_fits(options, planned_[m].plan);
      });
    }
  }

  // The last of the models, next to those that are planned and have taken memory since.
  ModelPlans(const std::vector<Options>& models, std::vector<PlannedModel> planned,
             Backend& backend)
      : models_(models), planned_(std::move(planned)), first_(planned_.size()) {
    const Options& options = models.back();
    guarded(options, [&] { planned_.push_back({.plan = plan_memory(options, backend)}); });
    MemoryPlan& plan = planned_.back().plan;
    plan.host_free += static_cast<size_t>(process_memory().anonymous);
    plan.free = plan.on_host ? plan.host_free : plan.free + taken_on(options.device);
  }

  void plan_slots() {
    for (size_t m = first_; m < models_.size(); ++m) {
      set_others(m);
      guarded(models_[m], [&] { planned_[m].slots = choose_slots(models_[m], planned_[m].plan); });
    }
  }
  // Models whose `size` is given come first: the others share what these leave.
  void plan(uint64_t Options::* size, void (*part)(const Options&, int slots, MemoryPlan*)) {
    for (const bool automatic : {false, true}) {
      for (size_t m = first_; m < models_.size(); ++m) {
        if ((models_[m].*size == kAutomatic) != automatic) continue;
        set_others(m);
        guarded(models_[m], [&] { part(models_[m], planned_[m].slots, &planned_[m].plan); });
      }
    }
  }
  std::vector<PlannedModel> take() {
    plan_slots();
    plan(&Options::kv_memory, plan_pages);
    plan(&Options::session_memory, plan_sessions);
    plan(&Options::prefix_memory, plan_prefixes);
    for (size_t m = 0; m < planned_.size(); ++m) set_others(m);
    return std::move(planned_);
  }

 private:
  // Adds the name of the model to a sentence, where there are several.
  template <typename Work>
  static void guarded(const Options& options, const Work& work) {
    if (options.sharing.count == 1) return work();
    try {
      work();
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(fmt::format("model \"{}\": {}", model_name(options), error.what()));
    }
  }
  static void check_fits(const Options& options, const MemoryPlan& plan) {
    Options least = options;
    least.slots = std::max(options.slots, 1);
    choose_slots(least, plan);
  }

  size_t on_device(const PlannedModel& model) const {
    return model.plan.total(model.slots) - model.plan.others;
  }
  size_t on_host(const PlannedModel& model) const {
    return model.plan.on_host
               ? on_device(model)
               : planned_on_host(model.plan, model.slots) - model.plan.others_on_host;
  }
  // Of a GPU: what models take when they are loaded, without what later steps take.
  size_t taken_on(const std::string& device) const {
    size_t taken = 0;
    for (size_t m = 0; m < first_; ++m) {
      if (models_[m].device != device) continue;
      const PlannedModel& model = planned_[m];
      taken += on_device(model) - model.plan.reserve - model.plan.steps(model.slots).scratch;
    }
    return taken;
  }
  void set_others(size_t of) {
    MemoryPlan& plan = planned_[of].plan;
    plan.others = plan.others_on_host = 0;
    for (size_t m = 0; m < planned_.size(); ++m) {
      if (m == of) continue;
      const PlannedModel& other = planned_[m];
      (plan.on_host ? plan.others : plan.others_on_host) += on_host(other);
      if (!plan.on_host && models_[m].device == models_[of].device) plan.others += on_device(other);
    }
  }

  const std::vector<Options>& models_;
  std::vector<PlannedModel> planned_;
  const size_t first_ = 0;  // that is to be planned
};

}  // namespace

std::vector<PlannedModel> plan_models(const std::vector<Options>& models,
                                      const std::vector<std::unique_ptr<Backend>>& backends) {
  ModelPlans plans(models, backends);
  return plans.take();
}

PlannedModel plan_further_model(const std::vector<Options>& models,
                                std::vector<PlannedModel> serving, Backend& backend) {
  ModelPlans plans(models, std::move(serving), backend);
  return std::move(plans.take().back());
}

}  // namespace recurve
