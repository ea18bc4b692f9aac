#include "server/rpc/sessions_service.h"

#include <utility>

#include "server/request/session_rules.h"
#include "server/rpc/messages.h"
#include "server/rpc/responses.h"
#include "server/rpc/unary_call.h"

namespace recurve {
namespace {

using Kind = SessionCommand::Kind;
v1::SessionTier tier_of(Tier tier) {
  switch (tier) {
    case Tier::kEmpty:
      return v1::SESSION_TIER_EMPTY;
    case Tier::kSlot:
      return v1::SESSION_TIER_SLOT;
    case Tier::kHost:
      return v1::SESSION_TIER_HOST;
    case Tier::kDisk:
      return v1::SESSION_TIER_DISK;
  }
  return v1::SESSION_TIER_UNSPECIFIED;
}

void fill(const SessionInfo& info, v1::Session* session) {
  session->set_name(info.name);
  session->set_parent(info.parent);
  session->set_position(info.position);
  if (info.pending_token) session->set_pending_token(*info.pending_token);
  session->set_tier(tier_of(info.tier));
  session->set_busy(info.busy);
  session->set_epoch(info.epoch);
  session->set_idle_seconds(info.idle_seconds);
  session->set_ttl_seconds(info.ttl_seconds);
  session->set_state_bytes(info.state_bytes);
  session->set_host_bytes(info.host_bytes);
  session->set_durability(info.durability == Durability::kLocal ? v1::DURABILITY_LOCAL
                                                                : v1::DURABILITY_NONE);
  if (info.commit) fill(*info.commit, session->mutable_commit());
  for (const MarkInfo& mark : info.marks) {
    v1::SessionMark* to = session->add_marks();
    to->set_name(mark.name);
    to->set_position(mark.position);
  }
}

// The answers, by what they hold.
grpc::ByteBuffer one_session(const SessionResult& result) {
  v1::Session session;
  if (!result.sessions.empty()) fill(result.sessions.front(), &session);
  return serialise(session);
}

grpc::ByteBuffer page(const SessionResult& result) {
  v1::ListSessionsResponse list;
  for (const SessionInfo& info : result.sessions) fill(info, list.add_sessions());
  if (result.more) list.set_next_page_token(result.sessions.back().name);
  return serialise(list);
}

grpc::ByteBuffer closed(const SessionResult&) { return serialise(v1::CloseSessionResponse()); }

// What the requests mean.
template <typename Request>
std::optional<double> ttl_of(const Request& request) {
  return request.has_ttl_seconds() ? std::optional(request.ttl_seconds()) : std::nullopt;
}

template <typename Request>
std::optional<Durability> durability_of(const Request& request) {
  switch (request.durability()) {
    case v1::DURABILITY_NONE:
      return Durability::kNone;
    case v1::DURABILITY_LOCAL:
      return Durability::kLocal;
    default:
      return std::nullopt;
  }
}
template <typename Request>
std::optional<uint64_t> epoch_of(const Request& request) {
  return request.has_expected_epoch() ? std::optional(request.expected_epoch()) : std::nullopt;
}

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

using Answer = grpc::ByteBuffer (*)(const SessionResult&);

// Hands the command to the engine; the call ends on the delivery executor.
Refused hand_over(ServiceContext& context, SessionCommand command, UnaryCall* unary, Answer answer,
                  grpc::ByteBuffer* response) {
  command.done = [&context, unary, answer, response](SessionResult result) {
    unary->answer_on(context.serving.delivery, [answer, response, result = std::move(result)] {
      const Refused refused = refusal_of(result);
      if (!refused) *response = answer(result);
      return refused;
    });
  };
  return post(context.serving.queue, std::move(command));
}

template <typename Request>
grpc::ServerUnaryReactor* handle(ServiceContext& context, grpc::CallbackServerContext* call,
                                 const grpc::ByteBuffer& bytes, Answer answer,
                                 grpc::ByteBuffer* response) {
  auto* unary = new UnaryCall(context, call);
  Request request;
  SessionCommand command;
  Identity caller;
  Refused refused = context.identify(call, Role::kUser, &caller);
  if (!refused) refused = context.serving.availability();
  if (!refused) refused = parse(bytes, &request);
  if (!refused) {
    command = to_command(request);
    command.caller = caller;
    refused = prepare(&command);
  }
  if (!refused) refused = hand_over(context, std::move(command), unary, answer, response);
  if (refused) unary->finish(std::move(refused));
  return unary;
}

}  // namespace

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

}  // namespace recurve
