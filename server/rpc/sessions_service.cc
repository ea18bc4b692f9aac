#include "server/rpc/sessions_service.h"

#include <utility>

#include "server/rpc/conversions.h"
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

}  // namespace

SessionsService::SessionsService(ServiceContext& context) : context_(context) {
  headers_first(context, "recurve.v1.Sessions.Open", &SessionsService::Open);
  headers_first(context, "recurve.v1.Sessions.Get", &SessionsService::Get);
  headers_first(context, "recurve.v1.Sessions.List", &SessionsService::List);
  headers_first(context, "recurve.v1.Sessions.Close", &SessionsService::Close);
  headers_first(context, "recurve.v1.Sessions.Fork", &SessionsService::Fork);
  headers_first(context, "recurve.v1.Sessions.Mark", &SessionsService::Mark);
  headers_first(context, "recurve.v1.Sessions.Unmark", &SessionsService::Unmark);
  headers_first(context, "recurve.v1.Sessions.Rewind", &SessionsService::Rewind);
  headers_first(context, "recurve.v1.Sessions.Accept", &SessionsService::Accept);
  headers_first(context, "recurve.v1.Sessions.Export", &SessionsService::Export);
}

grpc::ServerUnaryReactor* SessionsService::Open(Call* call, const Bytes* request, Bytes* response) {
  return handle<v1::OpenSessionRequest>(context_, call, *request, one_session, response);
}
grpc::ServerUnaryReactor* SessionsService::Get(Call* call, const Bytes* request, Bytes* response) {
  return handle<v1::GetSessionRequest>(context_, call, *request, one_session, response);
}
grpc::ServerUnaryReactor* SessionsService::List(Call* call, const Bytes* request, Bytes* response) {
  return handle<v1::ListSessionsRequest>(context_, call, *request, page, response);
}
grpc::ServerUnaryReactor* SessionsService::Close(Call* call, const Bytes* request,
                                                 Bytes* response) {
  return handle<v1::CloseSessionRequest>(context_, call, *request, closed, response);
}
grpc::ServerUnaryReactor* SessionsService::Fork(Call* call, const Bytes* request, Bytes* response) {
  return handle<v1::ForkSessionRequest>(context_, call, *request, one_session, response);
}
grpc::ServerUnaryReactor* SessionsService::Mark(Call* call, const Bytes* request, Bytes* response) {
  return handle<v1::MarkSessionRequest>(context_, call, *request, one_session, response);
}
grpc::ServerUnaryReactor* SessionsService::Unmark(Call* call, const Bytes* request,
                                                  Bytes* response) {
  return handle<v1::UnmarkSessionRequest>(context_, call, *request, one_session, response);
}
grpc::ServerUnaryReactor* SessionsService::Rewind(Call* call, const Bytes* request,
                                                  Bytes* response) {
  return handle<v1::RewindSessionRequest>(context_, call, *request, one_session, response);
}

grpc::ServerUnaryReactor* SessionsService::Accept(Call* call, const Bytes* request,
                                                  Bytes* response) {
  return handle<v1::AcceptSessionRequest>(context_, call, *request, one_session, response);
}

grpc::ServerWriteReactor<SessionsService::Bytes>* SessionsService::Export(Call* call,
                                                                          const Bytes* request) {
  return new ExportCall(context_, call, *request);
}
grpc::ServerReadReactor<SessionsService::Bytes>* SessionsService::Import(Call* call,
                                                                         Bytes* response) {
  return new ImportCall(context_, call, response);
}

}  // namespace recurve
