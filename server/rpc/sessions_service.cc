#include <utility>

#include "recurve/v1/sessions.pb.h"
#include "server/rpc/calls.h"
#include "server/rpc/conversions.h"
#include "server/rpc/messages.h"
#include "server/rpc/raw_service.h"
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
          .model = request.model(),
          .name = request.name(),
          .ttl_seconds = ttl_of(request),
          .durability = durability_of(request),
          .chosen = chosen_of(request),
          .rewind_tokens = request.rewind_tokens()};
}
SessionCommand to_command(const v1::GetSessionRequest& request) {
  return {.kind = Kind::kGet, .name = request.name()};
}
SessionCommand to_command(const v1::ListSessionsRequest& request) {
  return {.kind = Kind::kList,
          .model = request.model(),
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
          .expected_epoch = epoch_of(request),
          .position = request.has_position() ? std::optional(request.position()) : std::nullopt};
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
  return context.core.post(std::move(command));
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

// Each call becomes a command to the engine, which owns the sessions.
class SessionsService final : public RawService {
 public:
  static constexpr const char* kName = "recurve.v1.Sessions";

  explicit SessionsService(ServiceContext& context) : RawService(context, kName) {
    command<v1::OpenSessionRequest>("Open", one_session);
    command<v1::GetSessionRequest>("Get", one_session);
    command<v1::ListSessionsRequest>("List", page);
    command<v1::CloseSessionRequest>("Close", closed);
    command<v1::ForkSessionRequest>("Fork", one_session);
    command<v1::MarkSessionRequest>("Mark", one_session);
    command<v1::UnmarkSessionRequest>("Unmark", one_session);
    command<v1::RewindSessionRequest>("Rewind", one_session);
    command<v1::AcceptSessionRequest>("Accept", one_session);
    server_stream("Export", [&context](Call* call, const Bytes* request) {
      return export_state(context, call, *request);
    });
    client_stream("Import", [&context](Call* call, Bytes* response) {
      return import_state(context, call, response);
    });
  }

 private:
  template <typename Request>
  void command(const char* method, Answer answer) {
    unary(method, [this, answer](Call* call, const Bytes* request, Bytes* response) {
      return handle<Request>(context_, call, *request, answer, response);
    });
  }
};

}  // namespace

RpcService sessions_service() {
  RpcService service = rpc_service<SessionsService>();
  service.durable = true;
  return service;
}

}  // namespace recurve
