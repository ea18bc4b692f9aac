#include "server/startup/running_model.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <utility>

#include "server/crypto/encrypted_folder.h"
#include "server/observe/audit.h"
#include "server/observe/log.h"
#include "server/startup/engine_options.h"
#include "server/startup/model_list.h"
#include "server/startup/startup_table.h"

namespace recurve {
namespace {

// Shows the progress of recording steps as CUDA graphs.
class RecordProgress {
 public:
  void operator()(int done, int total) {
    if (done < total && !terminal_) return;
    const std::chrono::duration<double> passed = Clock::now() - began_;
    log_text(fmt::format("{}recording decode steps {} of {}, {:.1f} s{}", terminal_ ? "\r" : "",
                         done, total, passed.count(), done < total ? "" : "\n"));
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  const Clock::time_point began_ = Clock::now();
};

std::unique_ptr<FileSystem> open_state_folder(const Options& o) {
  std::unique_ptr<FileSystem> folder = open_folder(o.state_dir);
  if (!o.state_keys.empty()) return encrypt_folder(std::move(folder), o.state_keys);
  if (is_encrypted(*folder)) {
    throw std::runtime_error("--state-dir is encrypted: give its key with --state-keys");
  }
  return folder;
}

// Connects the sessions to the folder of states, and logs what is in it.
void store_sessions(const Options& o, const StateStore& states, Archive* archive,
                    SessionLimits* limits) {
  limits->archive = archive;
  limits->disk_bytes = static_cast<int64_t>(state_store_options(o).most_bytes);
  const StateStore::Usage usage = states.usage();
  log_event(LogLevel::kInfo, "state_dir",
            {{"folder", o.state_dir},
             {"records", usage.records},
             {"bytes", static_cast<int64_t>(usage.bytes)},
             {"set_aside", usage.set_aside}});
  const StateStore::Damage& damage = states.damage();
  if (damage.journal || damage.records_lost || damage.in_doubt + damage.states_gone > 0) {
    log_event(LogLevel::kError, "state_dir_damaged",
              {{"journal", damage.journal},
               {"records_lost", damage.records_lost},
               {"records_in_doubt", damage.in_doubt},
               {"states_gone", damage.states_gone}});
  }
  if (!states.not_writable().empty()) {
    log_event(LogLevel::kError, "state_dir_not_writable", {{"why", states.not_writable()}});
  }
}

// Reports in health and log when a folder of states disappears and returns.
Archive::OnLost report_loss(ServerCore& core, const std::string& folder) {
  return [&core, folder, was_lost = false](const std::string& why) mutable {
    const bool lost = !why.empty();
    if (lost == std::exchange(was_lost, lost)) return;
    core.set_durable(folder, !lost);
    if (lost) log_event(LogLevel::kError, "state_dir_lost", {{"why", why}});
    if (!lost) log_event(LogLevel::kInfo, "state_dir_back", {});
  };
}

// Logs what happens to sessions and cached prefixes.
void log_events(EngineOptions* options) {
  options->sessions.on_expired = [](std::string_view tenant, std::string_view name) {
    audit("session_expired", {.tenant = tenant, .key_id = {}, .peer = {}}, "OK", name);
  };
  options->sessions.on_other_model = [](const StoredModel& other, int sessions) {
    log_event(LogLevel::kWarning, "sessions_of_another_model",
              {{"sessions", sessions},
               {"model", other.name},
               {"fingerprint", other.fingerprint},
               {"weights", other.weights}});
  };
  options->sessions.on_state_lost = [](std::string_view tenant, std::string_view name,
                                       const std::string& why) {
    log_event(LogLevel::kError, "session_state_lost",
              {{"tenant", tenant}, {"name", name}, {"why", why}});
  };
  options->sessions.on_tokens_lost = [](std::string_view tenant, std::string_view name,
                                        const std::string& why) {
    log_event(LogLevel::kError, "session_tokens_lost",
              {{"tenant", tenant}, {"name", name}, {"why", why}});
  };
  options->prefix.on_unreadable = [](const std::string& why) {
    log_event(LogLevel::kWarning, "prefix_not_read", {{"why", why}});
  };
}

}  // namespace

// --state-dir, which is locked first, as loading takes long.
struct RunningModel::StateFolder {
  StateFolder(const Options& o, ServerCore& core)
      : states(open_state_folder(o), state_store_options(o)), archive(states) {
    archive.when_lost(report_loss(core, o.state_dir));
  }
  StateStore states;
  Archive archive;
};

RunningModel::RunningModel(Options options, ServerCore& core, HostedModel hosted,
                           StoreAccess* store)
    : options_(std::move(options)),
      name_(model_name(options_)),
      core_(core),
      hosted_(std::move(hosted)),
      store_(store),
      metrics_(core.metrics.of_model(name_)) {
  if (!options_.state_dir.empty()) folder_ = std::make_unique<StateFolder>(options_, core);
}

RunningModel::~RunningModel() {
  if (runs_) stop_engine();
}

void RunningModel::load(const PlannedModel& planned, std::unique_ptr<Backend> backend,
                        const StopSignal& stop) {
  backend_ = std::move(backend);
  loaded_ = load_served_model(options_, planned, backend_, stop);
}

void RunningModel::make_engine(const OnFailure& on_failure) {
  const auto& [plan, model, adapter_targets, text, info] = loaded_;
  EngineOptions options =
      engine_options(options_, info.slots, plan.sessions, plan.prefixes, plan.page_limits());
  options.preempted_bytes = static_cast<int64_t>(plan.preempted);
  options.adapters = adapter_targets;
  options.sessions.identity = identity_of(*model, info);
  options.sessions.model_name = info.model_name;
  options.sessions.initial_states = info.initial_states;
  options.sessions.adapters = info.adapters;
  if (core_.several()) options.sessions.names = &core_.session_names;
  options.made_by = made_by(*backend_);
  if (folder_) store_sessions(options_, folder_->states, &folder_->archive, &options.sessions);
  if (options_.prefix_store > 0) share_prefixes(&options);
  log_events(&options);
  options.on_recorded = RecordProgress();
  options.on_failure = [this, on_failure](const char* what) {
    on_failure(name_, what, core_.model_failed(*hosted_.served));
  };
  ServedModel& served = *hosted_.served;
  engine_.emplace(
      *model, *backend_,
      SamplingVocab{
          .rows = info.vocab_rows, .usable = text.tokenizer->size(), .eos_ids = text.rules.eos},
      served.queue, served.stats, *metrics_, options);
  if (const int lost = served.stats.read().sessions_not_restored; lost > 0) {
    log_event(LogLevel::kError, "sessions_not_restored", {{"sessions", lost}});
  }
}

// Cached states of prompts in --state-store.
void RunningModel::share_prefixes(EngineOptions* options) {
  StateHeader identity = options->sessions.identity;
  identity.layout = loaded_.model->state_layout();
  const MemoryPlan& plan = loaded_.plan;
  prefix_store_.emplace(
      store_->impatient_store(), store_->seal(), identity_text(identity) + options->made_by,
      PrefixStore::Options{.most_bytes = static_cast<int64_t>(options_.prefix_store),
                           .most_state_bytes = most_shared_prefix_bytes(plan.state, plan.page),
                           .on_listed =
                               [metrics = metrics_](int64_t states, int64_t bytes) {
                                 metrics->set_prefix_store(states, bytes);
                               },
                           .on_bytes =
                               [metrics = metrics_](uint64_t written, uint64_t read) {
                                 metrics->add_prefix_store_bytes(written, read);
                               }});
  options->prefix.store = &*prefix_store_;
  options->prefix.on_store_use = [metrics = metrics_](SharedPrefixUse use) {
    metrics->add_prefix_store_use(static_cast<int>(use));
  };
}

void RunningModel::start_engine() {
  hosted_.served->start_engine([this] { engine_->run(); });
  runs_ = true;
}

void RunningModel::stop_engine() {
  hosted_.served->stop_engine();
  runs_ = false;
}

std::string RunningModel::table() const {
  return startup_table(options_, loaded_, *backend_, hosted_.served->stats.read());
}

}  // namespace recurve
