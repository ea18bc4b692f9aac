#include <fmt/format.h>

#include <functional>
#include <utility>

#include "recurve/v1/control.pb.h"
#include "server/request/refusal.h"
#include "server/rpc/raw_service.h"
#include "server/sampling/params.h"
#include "server/serving/bind.h"
#include "server/serving/model_loader.h"
#include "server/text/stop_matcher.h"

namespace recurve {
namespace {

using State = ServerCore::State;
constexpr double kMaxDrainSeconds = 1e6;

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

// As the caller sees it.
void fill(const ServedModel& model, const Identity& caller, v1::ModelInfo* to) {
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
  to->set_embedding_dimensions(info.hidden_width);
  to->set_fingerprint(info.fingerprint);
  to->set_backend(info.backend);
  to->set_failed(model.failed());
  to->set_has_chat_template(model.text.chat.format != nullptr);
  if (model.text.chat.exists) to->set_chat_template_problem(model.text.chat.problem);
  for (const InitialStatePtr& state : visible_initial_states(model.text, caller)) {
    v1::ModelInfo::InitialState* out = to->add_initial_states();
    out->set_name(state->id.name);
    out->set_position(state->position);
    out->set_state_bytes(state->bytes);
  }
  for (const BoundAdapterPtr& adapter : visible_adapters(model.text, caller)) {
    const AdapterInfo& of = info_of(*adapter->weights);
    v1::ModelInfo::Adapter* out = to->add_adapters();
    out->set_name(adapter->id.name);
    out->set_rank(static_cast<int32_t>(of.rank));
    out->set_matrices(static_cast<int32_t>(of.matrices));
    out->set_bytes(static_cast<int64_t>(of.bytes));
    out->set_digest(adapter->id.digest);
  }
  for (const ServingInfo::Op& op : info.ops) {
    v1::ModelInfo::OpInfo* out = to->add_ops();
    out->set_name(op.name);
    out->set_implementation(op.implementation);
  }
}

void fill(const ServiceContext& context, v1::ServerInfo::Limits* to) {
  const ServerCore& core = context.core;
  const ServedModel& model = core.first();
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

void fill(const ModelLoad& load, v1::Load* to) {
  const EngineStats& stats = load.stats;
  to->set_requests_running(stats.running);
  to->set_requests_waiting(load.waiting);
  to->set_max_queue(load.max_queue);
  v1::Load::Slots& slots = *to->mutable_slots();
  slots.set_total(stats.slots);
  slots.set_free(stats.slots_free);
  slots.set_running(stats.running);
  slots.set_idle_session(stats.slots_idle);
  if (load.page_bytes > 0) {
    v1::Load::Pages& pages = *to->mutable_pages();
    pages.set_total(stats.pages);
    pages.set_free(stats.pages_free);
    pages.set_bytes(load.page_bytes);
    pages.set_preemptions(stats.preemptions);
  }
  v1::Load::SessionCounts& sessions = *to->mutable_sessions();
  sessions.set_total(stats.sessions);
  sessions.set_responses(stats.responses);
  sessions.set_host(stats.sessions_host);
  sessions.set_host_bytes(stats.host_bytes);
  sessions.set_disk(stats.sessions_disk);
  sessions.set_disk_bytes(stats.disk_bytes);
  v1::Load::Prefixes& prefixes = *to->mutable_prefixes();
  prefixes.set_states(stats.prefix_states);
  prefixes.set_bytes(stats.prefix_bytes);
  prefixes.set_limit_bytes(stats.prefix_limit);
  prefixes.set_disk_states(stats.prefix_states_disk);
  prefixes.set_disk_bytes(stats.prefix_bytes_disk);
  prefixes.set_spared_tokens(stats.prefix_tokens);
  to->set_prompt_tokens(stats.prompt_tokens);
  to->set_generated_tokens(stats.generated_tokens);
  to->set_steps(stats.steps);
  to->set_expected_queue_seconds(stats.expected_queue_seconds);
}

// For users, once all models are loaded.
Refused describes(const ServiceContext& context, const grpc::CallbackServerContext* call,
                  Identity* caller) {
  Refused refused = context.identify(call, Role::kUser, caller);
  if (!refused && !context.core.all_loaded()) refused = context.core.availability();
  return refused;
}

// Model, load and drain of the server.
class ControlService final : public RawService {
 public:
  static constexpr const char* kName = "recurve.v1.Control";

  explicit ControlService(ServiceContext& context) : RawService(context, kName) {
    immediate<v1::GetModelInfoRequest, v1::ModelInfo>(
        "GetModelInfo", [&context](Call* call, const auto& request, v1::ModelInfo* to) {
          FoundModel model;
          Identity caller;
          Refused refused = describes(context, call, &caller);
          if (!refused) {
            refused = context.core.find(
                {.name = request.model(), .caller = caller, .of_failed = true}, &model);
          }
          if (!refused) fill(*model, caller, to);
          return refused;
        });
    immediate<v1::ListModelsRequest, v1::ListModelsResponse>(
        "ListModels", [&context](Call* call, const auto&, v1::ListModelsResponse* to) {
          Identity caller;
          Refused refused = describes(context, call, &caller);
          if (refused) return refused;
          for (const auto& model : context.core.models()) fill(*model, caller, to->add_models());
          if (const ModelLoader* loader = context.core.model_loader()) {
            const ModelLoader::Changing changing = loader->changing();
            to->mutable_loading()->Assign(changing.loading.begin(), changing.loading.end());
            to->mutable_unloading()->Assign(changing.unloading.begin(), changing.unloading.end());
          }
          return refused;
        });
    immediate<v1::GetServerInfoRequest, v1::ServerInfo>(
        "GetServerInfo", [&context](Call* call, const auto&, v1::ServerInfo* to) -> Refused {
          Identity caller;
          if (Refused refused = context.identify(call, Role::kUser, &caller)) return refused;
          to->set_version(context.core.options.version);
          to->set_state(state_of(context.core.state()));
          to->set_uptime_seconds(seconds_between(context.core.started, Clock::now()));
          fill(context, to->mutable_limits());
          return {};
        });
    immediate<v1::GetLoadRequest, v1::Load>(
        "GetLoad", [this](Call* call, const auto&, v1::Load* to) {
          Identity caller;
          Refused refused = may_operate(call, Role::kObserver, &caller);
          if (refused) return refused;
          fill(load_of(context_.core.models()), to);
          if (!context_.core.several()) return refused;
          for (const auto& model : context_.core.models()) {
            v1::Load& one = *to->add_models();
            fill(load_of({model}), &one);
            one.set_model(model->name());
            one.set_failed(model->failed());
          }
          return refused;
        });
    unary("LoadModel", [this](Call* call, const Bytes* request, Bytes* response) {
      return load(call, *request, response);
    });
    unary("UnloadModel", [this](Call* call, const Bytes* request, Bytes* response) {
      return unload(call, *request, response);
    });
    unary("Drain", [this](Call* call, const Bytes* request, Bytes* response) {
      return drain(call, *request, response);
    });
  }

 private:
  Reactor* drain(Call* call, const Bytes& bytes, Bytes* response) {
    Identity caller;
    v1::DrainRequest request;
    Refused refused = may_operate(call, Role::kAdmin, &caller);
    if (!refused) refused = parse(bytes, &request);
    ServerCore& core = context_.core;
    const double seconds =
        request.has_deadline_seconds() ? request.deadline_seconds() : core.options.drain_seconds;
    if (!refused) refused = check_deadline(seconds);
    if (!refused && !core.options.on_drain) {
      refused = refuse(EndReason::kUnsupported, "this server cannot be stopped by a call");
    }
    if (refused) {
      auto* const unary = new UnaryCall(context_, call);
      unary->finish(std::move(refused));
      return unary;
    }
    audit("drain", auditee(caller), "OK", fmt::format("{} s", seconds));
    v1::DrainResponse reply;
    reply.set_requests_under_way(core.under_way());
    *response = serialize(reply);
    return new ThenReactor([&core, seconds] { core.drain_for_client(seconds); });
  }

  // A call that a change of models answers. begin(caller, request, done) hands it to the model
  // loader; answer() fills the response.
  template <typename Request>
  Reactor* change_models(
      Call* call, const Bytes& bytes,
      const std::function<Refused(const Identity&, const Request&, ModelLoader::Done)>& begin,
      std::function<Refused(const Identity&, const Request&)> answer) {
    auto* const unary = new UnaryCall(context_, call);
    Request request;
    Identity caller;
    Refused refused = may_change_models(call, &caller);
    if (!refused) refused = parse(bytes, &request);
    if (!refused) {
      const auto done = [this, unary, caller, request, answer = std::move(answer)](Refused result) {
        unary->answer_on(context_.core.delivery_threads, [answer, caller, request, result] {
          return result ? result : answer(caller, request);
        });
      };
      refused = begin(caller, request, done);
    }
    if (refused) unary->finish(std::move(refused));
    return unary;
  }

  Reactor* load(Call* call, const Bytes& bytes, Bytes* response) {
    return change_models<v1::LoadModelRequest>(
        call, bytes,
        [this](const Identity& caller, const v1::LoadModelRequest& request,
               ModelLoader::Done done) {
          ModelLoader::Load load{.caller = caller, .name = request.name(), .path = request.path()};
          load.flags = {request.flags().begin(), request.flags().end()};
          return context_.core.model_loader()->load(std::move(load), std::move(done));
        },
        [this, response](const Identity& caller, const v1::LoadModelRequest& request) -> Refused {
          FoundModel model;
          Refused gone = context_.core.find({.name = request.name(), .of_failed = true}, &model);
          if (gone) return gone;
          v1::ModelInfo info;
          fill(*model, caller, &info);
          *response = serialize(info);
          return {};
        });
  }

  Reactor* unload(Call* call, const Bytes& bytes, Bytes* response) {
    return change_models<v1::UnloadModelRequest>(
        call, bytes,
        [this](const Identity& caller, const v1::UnloadModelRequest& request,
               ModelLoader::Done done) {
          ModelLoader::Unload unload{.caller = caller, .name = request.name()};
          if (request.has_drain_seconds()) unload.drain_seconds = request.drain_seconds();
          return context_.core.model_loader()->unload(std::move(unload), std::move(done));
        },
        [response](const Identity&, const v1::UnloadModelRequest&) -> Refused {
          *response = serialize(v1::UnloadModelResponse());
          return {};
        });
  }

  Refused may_change_models(const Call* call, Identity* caller) const {
    Refused refused = may_operate(call, Role::kAdmin, caller);
    if (!refused) refused = context_.core.availability();
    if (refused || context_.core.model_loader() != nullptr) return refused;
    return refuse(EndReason::kUnsupported,
                  "this server loads no models while it serves: start it with --model-root");
  }

  // For what only operators may do, at the listener for operators.
  Refused may_operate(const Call* call, Role least, Identity* caller) const {
    Refused refused = context_.identify(call, least, caller);
    if (refused || context_.options.operators) return refused;
    return refuse(EndReason::kForbidden, "this call is only answered at the address of --admin");
  }
};

}  // namespace

RpcService control_service() { return rpc_service<ControlService>(); }

}  // namespace recurve
