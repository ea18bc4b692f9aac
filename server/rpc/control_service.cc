#include <fmt/format.h>

#include <functional>
#include <utility>

#include "recurve/v1/control.grpc.pb.h"
#include "server/request/refusal.h"
#include "server/rpc/headers_first.h"
#include "server/sampling/params.h"
#include "server/text/stop_matcher.h"

namespace recurve {
namespace {

using State = ServerCore::State;
constexpr double kMaxDrainSeconds = 1e6;

grpc::ServerUnaryReactor* finish(const ServiceContext& context, grpc::CallbackServerContext* call,
                                 const Refused& refused = {}) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(context.status_for(call, context.core.report(refused)));
  return reactor;
}

// Calls `then` after the response was sent.
class ThenReactor : public grpc::ServerUnaryReactor {
 public:
  explicit ThenReactor(std::function<void()> then) : then_(std::move(then)) { Finish({}); }
  void OnDone() override {
    then_();
    delete this;
  }

 private:
  std::function<void()> then_;
};

v1::ServerState state_of(State state) {
  switch (state) {
    case State::kLoading:
      return v1::SERVER_STATE_LOADING;
    case State::kServing:
      return v1::SERVER_STATE_SERVING;
    case State::kDraining:
      return v1::SERVER_STATE_DRAINING;
  }
  return v1::SERVER_STATE_UNSPECIFIED;
}

void fill(const ServedModel& model, v1::ModelInfo* to) {
  const ServingInfo& info = model.info;
  to->set_name(info.model_name);
  to->set_family(info.family);
  to->set_parameters(info.parameters);
  to->set_weight_bytes(info.weight_bytes);
  to->set_weight_type(info.weight_type);
  to->set_vocab_size(info.vocab_rows);
  to->set_token_count(model.text.vocab.usable);
  to->set_tokenizer(model.text.tokenizer->description());
  if (info.tokens.bos) to->set_bos_id(*info.tokens.bos);
  for (const int32_t id : info.tokens.eos) to->add_eos_ids(id);
  to->set_state_bytes(info.state_bytes);
  to->set_state_bytes_per_token(info.state_bytes_per_token);
  to->set_max_session_tokens(info.max_session_tokens);
  to->set_chunk_tokens(info.chunk_tokens);
  to->set_fingerprint(info.fingerprint);
  to->set_backend(info.backend);
  to->set_has_chat_template(model.text.chat.format != nullptr);
  if (model.text.chat.exists) to->set_chat_template_problem(model.text.chat.problem);
  for (const ServingInfo::Op& op : info.ops) {
    v1::ModelInfo::OpInfo* out = to->add_ops();
    out->set_name(op.name);
    out->set_implementation(op.implementation);
  }
}

void fill(const ServiceContext& context, v1::ServerInfo::Limits* to) {
  const ServerCore& core = context.core;
  const ServedModel& model = *core.model();
  to->set_max_queue(model.queue.max_waiting());
  to->set_max_message_bytes(context.options.max_message_bytes);
  to->set_max_prompt_tokens(core.options.max_prompt_tokens);
  to->set_max_generated_tokens(core.options.max_generated_tokens);
  to->set_max_stop_strings(StopMatcher::kMaxStops);
  to->set_max_stop_string_bytes(StopMatcher::kMaxStopBytes);
  to->set_max_stop_token_ids(kMaxStopIds);
  to->set_max_logprobs(kMaxLogprobs);
  if (!model.loaded()) return;
  to->set_slots(model.info.slots);
  to->set_max_choices(model.text.max_choices);
  to->set_max_host_bytes(model.info.max_host_bytes);
  to->set_default_ttl_seconds(model.info.default_ttl_seconds);
}

Refused check_deadline(double seconds) {
  if (seconds >= 0 && seconds <= kMaxDrainSeconds) return {};
  return invalid("deadline_seconds", "deadline_seconds must be in [0, {}], got {}",
                 kMaxDrainSeconds, seconds);
}

// Model, load and drain of the server. Its requests have no strings, so gRPC may parse them.
class ControlService final
    : public HeadersFirstService<ControlService, v1::Control::CallbackService> {
 public:
  explicit ControlService(ServiceContext& context) : context_(context) {
    using Self = ControlService;
    headers_first(context, "recurve.v1.Control.GetModelInfo", &Self::GetModelInfo);
    headers_first(context, "recurve.v1.Control.GetServerInfo", &Self::GetServerInfo);
    headers_first(context, "recurve.v1.Control.GetLoad", &Self::GetLoad);
    headers_first(context, "recurve.v1.Control.Drain", &Self::Drain);
  }

  Reactor* GetModelInfo(Call* call, const v1::GetModelInfoRequest*,
                        v1::ModelInfo* response) override {
    const ServerCore& core = context_.core;
    Identity caller;
    if (auto refused = context_.identify(call, Role::kUser, &caller)) {
      return finish(context_, call, refused);
    }
    if (!core.model()->loaded()) return finish(context_, call, core.availability());
    fill(*core.model(), response);
    return finish(context_, call);
  }

  Reactor* GetServerInfo(Call* call, const v1::GetServerInfoRequest*,
                         v1::ServerInfo* response) override {
    Identity caller;
    if (auto refused = context_.identify(call, Role::kUser, &caller)) {
      return finish(context_, call, refused);
    }
    response->set_version(context_.core.options.version);
    response->set_state(state_of(context_.core.state()));
    response->set_uptime_seconds(seconds_between(context_.core.started, Clock::now()));
    fill(context_, response->mutable_limits());
    return finish(context_, call);
  }

  Reactor* GetLoad(Call* call, const v1::GetLoadRequest*, v1::Load* response) override {
    Identity caller;
    if (auto refused = may_operate(call, Role::kObserver, &caller)) {
      return finish(context_, call, refused);
    }
    const ServedModel& model = *context_.core.model();
    const EngineStats stats = model.stats.read();
    response->set_requests_running(stats.running);
    response->set_requests_waiting(model.queue.waiting());
    response->set_max_queue(model.queue.max_waiting());
    v1::Load::Slots& slots = *response->mutable_slots();
    slots.set_total(stats.slots);
    slots.set_free(stats.slots_free);
    slots.set_running(stats.running);
    slots.set_idle_session(stats.slots_idle);
    if (model.info.page_bytes > 0) {
      v1::Load::Pages& pages = *response->mutable_pages();
      pages.set_total(stats.pages);
      pages.set_free(stats.pages_free);
      pages.set_bytes(stats.pages * model.info.page_bytes);
      pages.set_preemptions(stats.preemptions);
    }
    v1::Load::SessionCounts& sessions = *response->mutable_sessions();
    sessions.set_total(stats.sessions);
    sessions.set_responses(stats.responses);
    sessions.set_host(stats.sessions_host);
    sessions.set_host_bytes(stats.host_bytes);
    sessions.set_disk(stats.sessions_disk);
    sessions.set_disk_bytes(stats.disk_bytes);
    v1::Load::Prefixes& prefixes = *response->mutable_prefixes();
    prefixes.set_states(stats.prefix_states);
    prefixes.set_bytes(stats.prefix_bytes);
    prefixes.set_disk_states(stats.prefix_states_disk);
    prefixes.set_disk_bytes(stats.prefix_bytes_disk);
    prefixes.set_spared_tokens(stats.prefix_tokens);
    response->set_prompt_tokens(stats.prompt_tokens);
    response->set_generated_tokens(stats.generated_tokens);
    response->set_steps(stats.steps);
    response->set_expected_queue_seconds(stats.expected_queue_seconds);
    return finish(context_, call);
  }

  Reactor* Drain(Call* call, const v1::DrainRequest* request,
                 v1::DrainResponse* response) override {
    Identity caller;
    if (auto refused = may_operate(call, Role::kAdmin, &caller)) {
      return finish(context_, call, refused);
    }
    const double seconds = request->has_deadline_seconds() ? request->deadline_seconds()
                                                           : context_.core.options.drain_seconds;
    Refused refused = check_deadline(seconds);
    if (!refused && !context_.core.options.on_drain) {
      refused = refuse(EndReason::kUnsupported, "this server cannot be stopped by a call");
    }
    if (refused) return finish(context_, call, refused);
    audit("drain", auditee(caller), "OK", fmt::format("{} s", seconds));
    response->set_requests_under_way(context_.core.under_way());
    return new ThenReactor([this, seconds] { context_.core.drain_for_client(seconds); });
  }

 private:
  // For what only operators may do, at the listener for operators.
  Refused may_operate(const Call* call, Role least, Identity* caller) const {
    Refused refused = context_.identify(call, least, caller);
    if (refused || context_.options.operators) return refused;
    return refuse(EndReason::kForbidden, "this call is only answered at the address of --admin");
  }

  ServiceContext& context_;
};

}  // namespace

RpcService control_service() { return rpc_service<ControlService>("recurve.v1.Control"); }

}  // namespace recurve
