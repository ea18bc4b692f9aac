#include "server/startup/model_host.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <stdexcept>
#include <utility>

#include "server/constraint/thread_priority.h"
#include "server/observe/audit.h"
#include "server/observe/log.h"
#include "server/startup/model_list.h"
#include "server/startup/models_file.h"
#include "server/startup/security.h"
#include "server/text/cut.h"

namespace recurve {
namespace {

constexpr size_t kMostChanges = 16;  // in progress or waiting
constexpr double kMostDrainSeconds = 86'400;

// Runs `work` on a thread that leaves the processors to the engines, and waits for it.
void at_low_priority(const std::function<void()>& work) {
  std::async(std::launch::async, [&] {
    pthread_setname_np(pthread_self(), "model-loader");
    set_priority(gettid(), ThreadPriority::kLow);
    work();
  }).get();
}

Refusal not_loaded(std::string why) { return refuse(EndReason::kNotLoaded, std::move(why)); }

}  // namespace

ModelHost::ModelHost(const Options& options, ServerCore& core, std::vector<HostedModel> models,
                     const StopSignal& stop, RunningModel::OnFailure on_failure, StoreAccess* store)
    : options_(options),
      core_(core),
      stop_(stop),
      on_failure_(std::move(on_failure)),
      store_(store) {
  const std::vector<Options> all = options_of_models(options);
  if (!options.model_root.empty()) root_.emplace(options.model_root);
  for (size_t m = 0; m < all.size(); ++m)
    models_.emplace_back(all[m], core, std::move(models[m]), store_);
}

ModelHost::~ModelHost() { stop_changes(); }

void ModelHost::load_models() {
  std::vector<Options> all;
  std::vector<std::unique_ptr<Backend>> backends;
  for (const RunningModel& model : models_) {
    const Options& one = all.emplace_back(model.options());
    backends.push_back(make_backend(one.device, one.threads, one.activations));
  }
  const std::vector<PlannedModel> planned = plan_models(all, backends);
  size_t next = 0;
  for (RunningModel& model : models_) {
    model.load(planned[next], std::move(backends[next]), stop_);
    ++next;
  }
  for (RunningModel& model : models_) model.make_engine(on_failure_);
}

void ModelHost::start_models() {
  if (root_) {
    core_.load_models_with(this);
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "models");
      work();
    });
  }
  for (RunningModel& model : models_) {
    model.start_engine();
    const LoadedModel& loaded = model.loaded();
    core_.serve(*model.served(), loaded.text.tokenizer, loaded.info, loaded.text.chat);
  }
}

void ModelHost::stop_engines() {
  for (RunningModel& model : models_) model.stop_engine();
}

void ModelHost::stop_changes() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    if (draining_ != nullptr) draining_->stop_waiting();
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Refused ModelHost::load(Load load, Done done) {
  const Identity caller = load.caller;
  return post(caller, {.loads = true,
                       .name = load.name,
                       .run = [this, load = std::move(load)] { return load_now(load); },
                       .done = std::move(done)});
}

Refused ModelHost::unload(Unload unload, Done done) {
  if (unload.drain_seconds &&
      !(*unload.drain_seconds >= 0 && *unload.drain_seconds <= kMostDrainSeconds)) {
    return invalid("drain_seconds", "drain_seconds must be in [0, {}], got {}", kMostDrainSeconds,
                   *unload.drain_seconds);
  }
  const Identity caller = unload.caller;
  return post(caller, {.loads = false,
                       .name = unload.name,
                       .run = [this, unload = std::move(unload)] { return unload_now(unload); },
                       .done = std::move(done)});
}

ModelLoader::Changing ModelHost::changing() const {
  std::lock_guard lock(mutex_);
  Changing changing;
  for (const Change& change : changes_) {
    (change.loads ? changing.loading : changing.unloading).push_back(change.name);
  }
  return changing;
}

Refused ModelHost::post(const Identity& caller, Change change) {
  const char* const what = change.loads ? "model_load" : "model_unload";
  if (Refused refused = check_name(change.name)) {
    audit(what, auditee(caller), code_name(refused), cut(change.name));
    return refused;
  }
  change.done = [what, caller, name = change.name, done = std::move(change.done)](Refused refused) {
    audit(what, auditee(caller), code_name(refused), name);
    done(std::move(refused));
  };
  std::lock_guard lock(mutex_);
  if (stopped_) return refuse(EndReason::kClosed);
  if (changes_.size() >= kMostChanges) return refuse(EndReason::kManyWaiting);
  changes_.push_back(std::move(change));
  changed_.notify_all();
  return {};
}

Refused ModelHost::check_name(const std::string& name) const {
  if (is_model_name(name)) return {};
  return invalid("name", "name must have 1 to 128 letters, digits, '.', '_' and '-', got \"{}\"",
                 cut(name));
}

void ModelHost::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopped_ || !changes_.empty(); });
    if (changes_.empty()) return;
    const Change& change = changes_.front();
    Refused refused = refuse(EndReason::kClosed);
    if (!stopped_) {
      lock.unlock();
      refused = change.run();
      lock.lock();
    }
    const Done done = std::move(changes_.front().done);
    changes_.pop_front();
    lock.unlock();
    done(std::move(refused));
    lock.lock();
  }
}

Refused ModelHost::load_now(const Load& load) {
  const bool exists = std::ranges::any_of(
      models_, [&](const RunningModel& model) { return model.name() == load.name; });
  if (exists) {
    return refuse(EndReason::kExists,
                  fmt::format("the model \"{}\" is loaded: unload it first", load.name));
  }
  ModelEntry entry{.name = load.name};
  if (Refused refused = root_->find(load.path.empty() ? load.name : load.path, &entry.path)) {
    return refused;
  }
  for (const auto& [key, value] : load.flags) {
    try {
      set_own_flag(key, value, &entry.own);
    } catch (const std::invalid_argument& error) {
      return invalid("flags", "flags: {}", error.what());
    }
  }
  std::vector<Options> running;
  for (const RunningModel& model : models_) running.push_back(model.options());
  const Options options = options_of_further(options_, entry, running);
  if (options.on_gpu() && std::ranges::none_of(running, &Options::on_gpu)) {
    return not_loaded("a server that was started without a model on a GPU cannot use one");
  }
  try {
    run_further(options);
    return {};
  } catch (const std::exception& error) {
    log_event(LogLevel::kWarning, "model_not_loaded",
              {{"model", load.name}, {"why", error.what()}});
    core_.metrics.remove_model(load.name);
    if (stop_.raised()) return refuse(EndReason::kClosed);
    return not_loaded(fmt::format("the model cannot be loaded: {}", error.what()));
  }
}

// Whatever throws leaves nothing of the model.
void ModelHost::run_further(const Options& options) {
  const Clock::time_point began = Clock::now();
  std::unique_ptr<Backend> backend =
      make_backend(options.device, options.threads, options.activations);
  HostedModel hosted{.served = std::make_shared<ServedModel>(options.max_queue), .use = {}};
  models_.emplace_back(options, core_, std::move(hosted), store_);
  const auto model = std::prev(models_.end());
  try {
    load_confined(*model, std::move(backend));
    model->make_engine(on_failure_);
    model->start_engine();
    core_.add(model->use().begin(model->served()));
  } catch (...) {
    remove(model);
    throw;
  }
  log_event(LogLevel::kInfo, "model_loaded",
            {{"model", model->name()},
             {"path", options.model},
             {"seconds", seconds_between(began, Clock::now())}});
}

PlannedModel ModelHost::plan_further(const RunningModel& further, Backend& backend) const {
  std::vector<Options> all;
  std::vector<PlannedModel> serving;
  for (const RunningModel& model : models_) {
    all.push_back(model.options());
    if (&model != &further) serving.push_back(model.planned());
  }
  return plan_further_model(all, std::move(serving), backend);
}

// On a thread that can open no files but those of models, whatever has become of a path since it
// was checked.
void ModelHost::load_confined(RunningModel& model, std::unique_ptr<Backend> backend) {
  std::vector<std::string> readable = {root_->folder()};
  for (const std::string& path : {options_.tokenizer, options_.chat_template}) {
    if (!path.empty() && path != "none") readable.push_back(path);
  }
  for (const auto* const paths : {&model.options().initial_states, &model.options().adapters}) {
    for (const NamedPath& one : *paths) readable.push_back(one.path);
  }
  at_low_priority([&] {
    confine_thread(readable);
    const PlannedModel planned = plan_further(model, *backend);
    model.load(planned, std::move(backend), stop_);
    const LoadedModel& loaded = model.loaded();
    core_.load(*model.served(), loaded.text.tokenizer, loaded.info, loaded.text.chat);
  });
}

Refused ModelHost::unload_now(const Unload& unload) {
  const auto model = std::ranges::find(models_, unload.name, &RunningModel::name);
  if (model == models_.end()) {
    return Refusal{.reason = EndReason::kNotFound,
                   .message = fmt::format("there is no model \"{}\"", unload.name),
                   .field = "name"};
  }
  if (model == models_.begin()) {
    return not_loaded(
        fmt::format("the model \"{}\" stays: requests that name none go to it", unload.name));
  }
  core_.remove(*model->served());
  if (!drain(*model, unload.drain_seconds.value_or(core_.options.drain_seconds))) {
    return refuse(EndReason::kClosed);  // stop_engines() comes next
  }
  model->stop_engine();
  remove(model);
  log_event(LogLevel::kInfo, "model_unloaded", {{"model", unload.name}});
  return {};
}

// False if changes are stopped before no request uses the model.
bool ModelHost::drain(RunningModel& model, double seconds) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return false;
    draining_ = &model.use();
  }
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(seconds));
  bool ended = model.use().wait_for_end(deadline);
  if (!ended) {
    model.abandon();
    ended = model.use().wait_for_end(Clock::now() + ServerCore::kCancelTimeout);
  }
  if (!ended) {
    core_.end(*model.served());
    ended = model.use().wait_for_end(Clock::time_point::max());
  }
  std::lock_guard lock(mutex_);
  draining_ = nullptr;
  return ended;
}

// The last of them has used the model.
void ModelHost::remove(std::list<RunningModel>::iterator model) {
  const std::string name = model->name(), folder = model->options().state_dir;
  at_low_priority([&] { models_.erase(model); });
  core_.metrics.remove_model(name);
  if (!folder.empty()) core_.set_durable(folder, true);
}

}  // namespace recurve
