#include <utility>

#include "recurve/v1/sessions.grpc.pb.h"
#include "server/rpc/conversions.h"
#include "server/rpc/headers_first.h"
#include "server/rpc/messages.h"
#include "server/rpc/state_calls.h"
#include "server/rpc/unary_call.h"

namespace recurve {
namespace {

using Kind = SessionCommand::Kind;

grpc::ByteBuffer page(const SessionResult& result) {
  v1::ListSessionsResponse list;
  for (const SessionInfo& info : result.sessions) fill(info, list.add_sessions());
  if (result.more) list.set_next_page_token(result.sessions.back().name);
  return serialize(list);
}

grpc::ByteBuffer closed(const SessionResult&) { return serialize(v1::CloseSessionResponse()); }

SessionCommand to_command(const v1::OpenSessionRequest& request) {
  return {.kind = Kind::kOpen,
          .name = request.name(),
          .ttl_seconds = ttl_of(request),
          .durability = durability_of(request)};
}
SessionCommand to_command(const v1::GetSessionRequest& request) {
  return {.kind = Kind::kGet, .name = request.name()};
}
SessionCommand to_command(const v1::ListSessionsRequest& request) {
  return {.kind = Kind::kList,
          .name = request.prefix(),
          .other = request.page_token(),
          .limit = request.has_page_size() ? request.page_size() : kDefaultPageSize};
}
SessionCommand to_command(const v1::CloseSessionRequest& request) {
  return {.kind = Kind::kClose, .name = request.name(), .expected_epoch = epoch_of(request)};
}
SessionCommand to_command(const v1::ForkSessionRequest& request) {
  return {.kind = Kind::kFork,
          .name = request.name(),
          .other = request.new_name(),
          .ttl_seconds = ttl_of(request),
          .durability = durability_of(request),
          .expected_epoch = epoch_of(request)};
}
SessionCommand to_command(const v1::MarkSessionRequest& request) {
  return {.kind = Kind::kMark,
          .name = request.name(),
          .other = request.mark(),
          .expected_epoch = epoch_of(request)};
}
SessionCommand to_command(const v1::UnmarkSessionRequest& request) {
  return {.kind = Kind::kUnmark,
          .name = request.name(),
          .other = request.mark(),
          .expected_epoch = epoch_of(request)};
}
SessionCommand to_command(const v1::RewindSessionRequest& request) {
  return {.kind = Kind::kRewind,
          .name = request.name(),
          .other = request.mark(),
          .expected_epoch = epoch_of(request)};
}

SessionCommand to_command(const v1::AcceptSessionRequest& request) {
  return {.kind = Kind::kAccept, .name = request.name(), .expected_epoch = epoch_of(request)};
}

using Answer = grpc::ByteBuffer (*)(const SessionResult&);

// Hands the command to the engine; the call ends on the delivery executor.
Refused hand_over(ServiceContext& context, SessionCommand command, UnaryCall* unary, Answer answer,
                  grpc::ByteBuffer* response) {
  command.done = [&context, unary, answer, response](SessionResult result) {
    unary->answer_on(context.core.delivery_threads, [answer, response, result = std::move(result)] {
      const Refused refused = refusal_of(result);
      if (!refused) *response = answer(result);
      return refused;
    });
  };
  return context.core.model()->post(std::move(command));
}

template <typename Request>
grpc::ServerUnaryReactor* handle(ServiceContext& context, grpc::CallbackServerContext* call,
                                 const grpc::ByteBuffer& bytes, Answer answer,
                                 grpc::ByteBuffer* response) {
  auto* unary = new UnaryCall(context, call);
  Request request;
  SessionCommand command;
  Identity caller;
  Refused refused = context.admit(call, &caller);
  if (!refused) refused = parse(bytes, &request);
  if (!refused) {
    command = to_command(request);
    command.caller = caller;
    refused = validate(&command);
  }
  if (!refused) refused = hand_over(context, std::move(command), unary, answer, response);
  if (refused) unary->finish(std::move(refused));
  return unary;
}

// The methods of Sessions with messages as bytes: see messages.h.
template <typename S>
using RawSessions1 =
    v1::Sessions::WithRawCallbackMethod_Open<v1::Sessions::WithRawCallbackMethod_Get<
        v1::Sessions::WithRawCallbackMethod_List<v1::Sessions::WithRawCallbackMethod_Close<S>>>>;
template <typename S>
using RawSessions2 =
    v1::Sessions::WithRawCallbackMethod_Fork<v1::Sessions::WithRawCallbackMethod_Mark<
        v1::Sessions::WithRawCallbackMethod_Unmark<v1::Sessions::WithRawCallbackMethod_Rewind<S>>>>;
template <typename S>
using RawSessions3 = v1::Sessions::WithRawCallbackMethod_Export<
    v1::Sessions::WithRawCallbackMethod_Import<v1::Sessions::WithRawCallbackMethod_Accept<S>>>;

// Each call becomes a command to the engine, which owns the sessions.
class SessionsService final
    : public HeadersFirstService<SessionsService,
                                 RawSessions1<RawSessions2<RawSessions3<v1::Sessions::Service>>>> {
 public:
  explicit SessionsService(ServiceContext& context) : context_(context) {
    using Self = SessionsService;
    headers_first(context, "recurve.v1.Sessions.Open", &Self::Open);
    headers_first(context, "recurve.v1.Sessions.Get", &Self::Get);
    headers_first(context, "recurve.v1.Sessions.List", &Self::List);
    headers_first(context, "recurve.v1.Sessions.Close", &Self::Close);
    headers_first(context, "recurve.v1.Sessions.Fork", &Self::Fork);
    headers_first(context, "recurve.v1.Sessions.Mark", &Self::Mark);
    headers_first(context, "recurve.v1.Sessions.Unmark", &Self::Unmark);
    headers_first(context, "recurve.v1.Sessions.Rewind", &Self::Rewind);
    headers_first(context, "recurve.v1.Sessions.Accept", &Self::Accept);
    headers_first(context, "recurve.v1.Sessions.Export", &Self::Export);
  }

  Reactor* Open(Call* call, const Bytes* request, Bytes* response) override {
    return handle<v1::OpenSessionRequest>(context_, call, *request, one_session, response);
  }
  Reactor* Get(Call* call, const Bytes* request, Bytes* response) override {
    return handle<v1::GetSessionRequest>(context_, call, *request, one_session, response);
  }
  Reactor* List(Call* call, const Bytes* request, Bytes* response) override {
    return handle<v1::ListSessionsRequest>(context_, call, *request, page, response);
  }
  Reactor* Close(Call* call, const Bytes* request, Bytes* response) override {
    return handle<v1::CloseSessionRequest>(context_, call, *request, closed, response);
  }
  Reactor* Fork(Call* call, const Bytes* request, Bytes* response) override {
    return handle<v1::ForkSessionRequest>(context_, call, *request, one_session, response);
  }
  Reactor* Mark(Call* call, const Bytes* request, Bytes* response) override {
    return handle<v1::MarkSessionRequest>(context_, call, *request, one_session, response);
  }
  Reactor* Unmark(Call* call, const Bytes* request, Bytes* response) override {
    return handle<v1::UnmarkSessionRequest>(context_, call, *request, one_session, response);
  }
  Reactor* Rewind(Call* call, const Bytes* request, Bytes* response) override {
    return handle<v1::RewindSessionRequest>(context_, call, *request, one_session, response);
  }
  Reactor* Accept(Call* call, const Bytes* request, Bytes* response) override {
    return handle<v1::AcceptSessionRequest>(context_, call, *request, one_session, response);
  }
  grpc::ServerWriteReactor<Bytes>* Export(Call* call, const Bytes* request) override {
    return export_state(context_, call, *request);
  }
  grpc::ServerReadReactor<Bytes>* Import(Call* call, Bytes* response) override {
    return import_state(context_, call, response);
  }

 private:
  ServiceContext& context_;
};

}  // namespace

RpcService sessions_service() {
  RpcService service = rpc_service<SessionsService>("recurve.v1.Sessions");
  service.durable = true;
  return service;
}

}  // namespace recurve
