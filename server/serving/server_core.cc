#include "server/serving/server_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <new>
#include <utility>

#include "server/observe/log.h"
#include "server/serving/bind.h"
#include "server/serving/shared_sessions.h"
#include "server/text/cut.h"
#include "server/text/json/client_json.h"

namespace recurve {
namespace {

// Limits of the seconds after which a refused client may retry: not so early that the server is
// busy with refusing, not so late that it is idle.
constexpr double kMinRetrySeconds = 0.1, kMaxRetrySeconds = 60;
// How long a drain waits for refused calls after the last other call has ended.
constexpr auto kRefusalTimeout = std::chrono::milliseconds(200);
// A tenant may have kShareOfFree times what is free in queue and slots; the last 1 / kFirstPart of
// everything is for tenants without a request.
constexpr int kShareOfFree = 3, kFirstPart = 8;

std::string unloading_sentence(const ServedModel& model) {
  return fmt::format("the model \"{}\" is being unloaded: use another one", model.name());
}

// The command, and a state that it exports, use the model until they are gone.
SessionCommand with_model(std::shared_ptr<ServedModel> model, SessionCommand command) {
  command.done = [model = std::move(model), done = std::move(command.done)](SessionResult result) {
    if (result.state) result.state = model->lend(model, std::move(result.state));
    if (result.reason == EndReason::kDraining && model->unloading()) {
      result = refused_command(EndReason::kUnloading, unloading_sentence(*model));
    }
    done(std::move(result));
  };
  return command;
}

}  // namespace

ServerCore::ServerCore(ServerCoreOptions options_, ServedModels models, Metrics& metrics_)
    : options(std::move(options_)),
      metrics(metrics_),
      models_(std::make_shared<ServedModels>(std::move(models))),
      first_(models_->front()),
      several_(models_->size() > 1 || options.loads_models),
      access(options.keys),
      message_bytes(options.max_bytes_under_way),
      gathered_bytes(options.max_gathered_bytes),
      text_threads(options.text_threads, options.on_failure),
      delivery_threads(options.delivery_threads, options.on_failure) {}

Refused ServerCore::find(const ModelChoice& asked, FoundModel* found) const {
  std::string owner;  // of the session
  if (several_ && !asked.session.empty()) {
    owner = session_names.model_of(asked.caller.tenant, asked.session);
  }
  const std::string& name = asked.name.empty() ? owner : asked.name;
  const Snapshot models = snapshot();
  const auto at = std::ranges::find_if(*models, [&](const auto& one) {
    return name.empty() || (one->loaded() && one->name() == name);
  });
  *found = at != models->end() ? FoundModel(*at) : find_adapter(asked, owner);
  const std::string& chosen =
      found->model != nullptr && !found->adapter.empty() ? found->model->name() : name;
  if (!owner.empty() && owner != chosen) {
    return refuse(EndReason::kOtherModel,
                  fmt::format("session \"{}\" is of the model \"{}\", not of \"{}\"",
                              cut(asked.session), owner, cut(chosen)));
  }
  if (found->model == nullptr) return no_such_model(asked, name);
  if (!found->model->failed() || asked.of_failed || !several_) return {};
  return refuse_closed(*found->model);
}

// Without a model if the name is that of no adapter.
FoundModel ServerCore::find_adapter(const ModelChoice& asked, const std::string& owner) const {
  const size_t colon = asked.name.find(':');
  const bool has_model = colon != std::string::npos;
  const std::string of = has_model ? asked.name.substr(0, colon) : owner;
  const std::string name = has_model ? asked.name.substr(colon + 1) : asked.name;
  for (const auto& model : models()) {
    const bool any = of.empty() && !has_model;
    if (model->loaded() && (any || model->name() == of) &&
        sees_adapter(model->text, asked.caller, name)) {
      return {model, name};
    }
  }
  return {};
}

// A name that the client has not given is that of its session's model, which was unloaded.
Refusal ServerCore::no_such_model(const ModelChoice& asked, const std::string& name) const {
  std::string names;
  std::string adapters;
  for (const auto& model : models()) {
    if (!model->loaded()) continue;
    add_quoted(model->name(), &names);
    for (const auto& adapter : visible_adapters(model->text, asked.caller)) {
      add_quoted(adapter->id.name, &adapters);
    }
  }
  if (!adapters.empty()) names += " and the adapters " + adapters;
  if (asked.name.empty()) {
    return refuse(EndReason::kNotFound,
                  fmt::format("session \"{}\" is of the model \"{}\", which is not loaded now: "
                              "this server has {}",
                              cut(asked.session), name, names));
  }
  return Refusal{
      .reason = EndReason::kNotFound,
      .message = fmt::format("unknown model \"{}\": this server has {}", cut(name), names),
      .field = asked.field};
}

// While the server does not drain and the model stays, it was the engine that closed it.
Refusal ServerCore::refuse_closed(const ServedModel& model) const {
  if (model.unloading()) return refuse(EndReason::kUnloading, unloading_sentence(model));
  if (!several_ || state_ != State::kServing) return refuse(EndReason::kClosed);
  return refuse(EndReason::kModelFailed,
                fmt::format("the model \"{}\" has failed: see the server's log", model.name()));
}

bool ServerCore::model_failed(ServedModel& model) {
  model.set_failed();
  tell_listeners();
  return std::ranges::any_of(*snapshot(), [](const auto& one) { return !one->failed(); });
}

bool ServerCore::all_loaded() const {
  return std::ranges::all_of(*snapshot(), [](const auto& model) { return model->loaded(); });
}

void ServerCore::load(ServedModel& model, std::shared_ptr<const Tokenizer> tokenizer,
                      ServingInfo info, Chat chat) {
  const std::string name = info.model_name;
  model.text.access = &access;
  model.load(std::move(tokenizer), std::move(info), std::move(chat), options.max_prompt_tokens,
             options.max_generated_tokens, options.max_tokens_default, metrics.of_model(name));
}

void ServerCore::add(const std::shared_ptr<ServedModel>& model) {
  {
    std::lock_guard lock(models_mutex_);
    auto models = std::make_shared<ServedModels>(*models_);
    models->push_back(model);
    models_ = std::move(models);
  }
  tell_listeners();
}

void ServerCore::remove(ServedModel& model) {
  model.set_unloading();
  {
    std::lock_guard lock(models_mutex_);
    auto models = std::make_shared<ServedModels>(*models_);
    std::erase_if(*models, [&](const auto& one) { return one.get() == &model; });
    models_ = std::move(models);
  }
  tell_listeners();
}

void ServerCore::end(ServedModel& model) {
  model.end();
  registry.abort_all(CallRegistry::Reason::kModelEnds);
}

void ServerCore::serve(ServedModel& model, std::shared_ptr<const Tokenizer> tokenizer,
                       ServingInfo info, Chat chat) {
  load(model, std::move(tokenizer), std::move(info), std::move(chat));
  if (!all_loaded()) return;
  auto loading = State::kLoading;
  state_.compare_exchange_strong(loading, State::kServing);  // not where it drains already
  tell_listeners();
}

void ServerCore::stop_serving() {
  state_ = State::kDraining;
  tell_listeners();
}

bool ServerCore::drain(Clock::time_point deadline) {
  stop_serving();
  if (registry.wait_until_all_served(deadline)) {
    // Clients that retry at once would delay the end forever.
    registry.wait_until_empty(std::min(deadline, Clock::now() + kRefusalTimeout));
    return true;
  }
  registry.abort_all(CallRegistry::Reason::kShutdown);
  wait_for_cancelled_calls();
  return false;
}

void ServerCore::wait_for_cancelled_calls() {
  registry.wait_until_empty(Clock::now() + kCancelTimeout);
}

void ServerCore::set_durable(const std::string& folder, bool durable) {
  {
    std::lock_guard lock(mutex_);
    if (durable) lost_folders_.erase(folder);
    if (!durable) lost_folders_.insert(folder);
    durable_ = lost_folders_.empty();
  }
  tell_listeners();
}

// A caller may have as many requests as there are slots, and kShareOfFree times what is unused. So
// a single tenant cannot fill the last quarter of the queue, several get a part each, and a new one
// always finds room. Without keys, addresses are bounded in the same way, except this machine's.
QueueBounds ServerCore::queue_bounds(const Identity& caller, int slots, int waiting,
                                     int under_way) const {
  if (!is_shared(caller)) return {};
  const int all = slots + waiting, unused = std::max(0, all - under_way);
  const int most = slots + kShareOfFree * unused;
  const bool others = caller.group() != kThisMachine;
  return {.most = most,
          .most_of_group = others ? most : TenantLimits::kNone,
          .first_only = unused <= all / kFirstPart};
}

QueueBounds ServerCore::queue_bounds_of(const Identity& caller) const {
  int slots = 0, waiting = 0;
  const Snapshot models = snapshot();
  for (const auto& model : *models) {
    slots += model->info.slots;
    waiting += model->queue.max_waiting();
  }
  return queue_bounds(caller, slots, waiting, under_way());
}

QueueBounds ServerCore::queue_bounds_of(const Identity& caller, const ServedModel& model) const {
  return queue_bounds(caller, model.info.slots, model.queue.max_waiting(),
                      model.stats.read().running + model.queue.waiting());
}

int ServerCore::max_requests_of(const Identity& caller, const ServedModel& model) const {
  const int waiting = model.queue.max_waiting();
  const int share = model.info.slots + kShareOfFree * waiting / (1 + kShareOfFree);
  return std::max(is_shared(caller) ? std::min(waiting, share) : waiting, 1);
}

bool ServerCore::queues_are_full() const {
  return std::ranges::all_of(*snapshot(), [](const auto& model) {
    return model->queue.waiting() >= model->queue.max_waiting();
  });
}

Refused ServerCore::enter(const Identity& caller, Clock::time_point now) {
  const double wait = tenants.seconds_to_wait(caller, now);
  if (wait > 0) {
    audit("limit", auditee(caller), "RESOURCE_EXHAUSTED", "tokens_per_minute");
    Refusal spent =
        refuse(EndReason::kExhausted,
               fmt::format("tenant \"{}\" has used its {} tokens per minute: try again in {:.1f} s",
                           caller.tenant_name, caller.limits.tokens_per_minute, wait));
    spent.retry_seconds = wait;
    return spent;
  }
  const QueueBounds most = queue_bounds_of(caller);
  if (tenants.enter(caller, most)) return {};
  if (most.most < caller.limits.waiting || most.first_only) return refuse_share(caller);
  audit("limit", auditee(caller), "RESOURCE_EXHAUSTED", "waiting");
  return refuse(EndReason::kExhausted,
                fmt::format("tenant \"{}\" has {} requests in progress, which is its limit: wait "
                            "for one of them to end",
                            caller.tenant_name, caller.limits.waiting));
}

Refusal ServerCore::refuse_share(const Identity& caller) const {
  audit("limit", auditee(caller), "RESOURCE_EXHAUSTED", "queue");
  const std::string who = caller.visitor != 0 ? fmt::format("the connection or address {}",
                                                            std::string_view(caller.peer))
                                              : fmt::format("tenant \"{}\"", caller.tenant_name);
  return refuse(EndReason::kExhausted,
                fmt::format("{} has used its share of the queue: try again later", who));
}

Refused ServerCore::enter(const Identity& caller, ServedModel& model) const {
  if (!several_) return {};
  if (model.tenants.enter(caller, queue_bounds_of(caller, model))) return {};
  return refuse_share(caller);
}

void ServerCore::leave(const Identity& caller, ServedModel& model) const {
  if (several_) model.tenants.leave(caller);
}

Refused ServerCore::post(SessionCommand command) {
  if (shared_ != nullptr && !command.name.starts_with(kReserved)) {
    return shared_->post(std::move(command));
  }
  if (command.durability == Durability::kRemote) return needs_store();
  return post_to_engine(std::move(command));
}

Refused ServerCore::post_to_engine(SessionCommand command) {
  using enum SessionCommand::Kind;
  if (command.kind == kList && command.model.empty() && several_) {
    return list_all(std::move(command));
  }
  const bool creates = command.kind == kOpen || command.kind == kImport || command.kind == kList;
  FoundModel found;
  Refused unknown = find({.name = command.model,
                          .caller = command.caller,
                          .session = creates ? std::string() : command.name},
                         &found);
  const bool has_binding = command.kind == kOpen || command.kind == kImport;
  if (!unknown && has_binding) unknown = choose_adapter(found, &command.chosen);
  if (unknown) return unknown;
  const std::shared_ptr<ServedModel>& model = found.model;
  if (command.kind != kRewind || !command.position) return post(std::move(command), model);
  const Identity caller = command.caller;
  if (Refused refused = enter(caller, Clock::now())) return refused;
  command.done = [this, caller, done = std::move(command.done)](SessionResult result) {
    tenants.spend(caller, result.absorbed, Clock::now());
    tenants.leave(caller);
    done(std::move(result));
  };
  Refused refused = post(std::move(command), model);
  if (refused) tenants.leave(caller);
  return refused;
}

Refused ServerCore::post(SessionCommand command, const std::shared_ptr<ServedModel>& model) const {
  Refused refused = model->post(with_model(model, std::move(command)));
  if (refused && refused->reason == EndReason::kClosed) return refuse_closed(*model);
  return refused;
}

// The first of all names that the engines list.
Refused ServerCore::list_all(SessionCommand command) const {
  struct Gathered {
    std::mutex mutex;
    size_t missing;
    SessionResult result;
    int limit;
    std::function<void(SessionResult)> done;
  };
  const Snapshot models = snapshot();
  const auto all = std::make_shared<Gathered>();
  all->missing = models->size();
  all->limit = command.limit;
  all->done = std::move(command.done);
  const auto add = [all](SessionResult part) {
    std::lock_guard lock(all->mutex);
    SessionResult& result = all->result;
    std::ranges::move(part.sessions, std::back_inserter(result.sessions));
    result.more |= part.more;
    if (--all->missing > 0) return;
    std::ranges::sort(result.sessions, {}, &SessionInfo::name);
    const auto most = static_cast<size_t>(all->limit);
    result.more |= result.sessions.size() > most;
    if (result.sessions.size() > most) result.sessions.resize(most);
    all->done(std::move(result));
  };
  for (const auto& model : *models) {
    SessionCommand one = command;
    one.done = add;
    if (model->post(with_model(model, std::move(one)))) add({});  // it has failed
  }
  return {};
}

void ServerCore::add_listener(const void* owner, ServingListener listener) {
  std::lock_guard lock(mutex_);
  listener(state_ == State::kServing, durable_);
  listeners_.emplace(owner, std::move(listener));
}

void ServerCore::remove_listener(const void* owner) {
  std::lock_guard lock(mutex_);
  listeners_.erase(owner);
}

// Reads the state under the lock, so that the last call has the current one.
void ServerCore::tell_listeners() {
  std::lock_guard lock(mutex_);
  for (const auto& [owner, listener] : listeners_) listener(state_ == State::kServing, durable_);
}

Refused ServerCore::availability() const {
  switch (state_.load()) {
    case State::kServing:
      return {};
    case State::kLoading:
      return refuse(EndReason::kLoading);
    case State::kDraining:
      break;
  }
  return refuse(EndReason::kClosed);
}

Refused ServerCore::report(Refused refusal, const ServedModel* model) const {
  if (!refusal) return {};
  metrics.request_failed(refusal->row().code);
  if (refusal->row().retry == Retry::kLater) {
    double expected = 0;
    const Snapshot models = snapshot();
    for (const auto& one : *models) {
      if (model != nullptr && one.get() != model) continue;
      expected = std::max(expected, one->stats.read().expected_queue_seconds);
    }
    const double seconds = refusal->retry_seconds.value_or(expected);
    refusal->retry_seconds = std::clamp(seconds, kMinRetrySeconds, kMaxRetrySeconds);
  }
  return refusal;
}

void ServerCore::drain_for_client(double seconds) {
  delivery_threads.post([this, seconds] {
    registry.end_by(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                       std::chrono::duration<double>(seconds)));
    options.on_drain(seconds);
  });
}

Refusal needs_store() {
  return refuse(EndReason::kUnsupported,
                "durability remote needs a store: start the server with --state-store");
}

Refused guarded(const char* field, const std::function<Refused()>& work) {
  try {
    return work();
  } catch (const JsonRefused& error) {
    return invalid(error.field, "{}", error.what());
  } catch (const WorkUnwanted&) {
    return refuse(EndReason::kClientGone);
  } catch (const TextRefused& error) {
    return invalid(field, "{}", error.what());
  } catch (const std::bad_alloc&) {
    return refuse(EndReason::kNoMemory);
  } catch (const std::exception& error) {
    log_event(LogLevel::kError, "request_failed", {{"what", error.what()}});
    return refuse(
        EndReason::kInternal,
        "the server could not serve the request because of an internal error: see its log");
  }
}

}  // namespace recurve
