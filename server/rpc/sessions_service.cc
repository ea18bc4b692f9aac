#include "server/rpc/sessions_service.h"

#include <utility>

#include "server/rpc/messages.h"
#include "server/rpc/status.h"
#include "server/rpc/unary_call.h"

namespace recurve {
namespace {

using grpc::Status;
using grpc::StatusCode;
using Kind = SessionCommand::Kind;

constexpr double kMaxTtlSeconds = 1e9;
constexpr int kDefaultPageSize = 100;
constexpr int kMaxPageSize = 1000;

v1::SessionTier tier_of(Tier tier) {
  switch (tier) {
    case Tier::kEmpty:
      return v1::SESSION_TIER_EMPTY;
    case Tier::kSlot:
      return v1::SESSION_TIER_SLOT;
    case Tier::kHost:
      return v1::SESSION_TIER_HOST;
  }
  return v1::SESSION_TIER_UNSPECIFIED;
}

void fill(const SessionInfo& info, v1::Session* session) {
  session->set_name(info.name);
  session->set_position(info.position);
  if (info.pending_token) session->set_pending_token(*info.pending_token);
  session->set_tier(tier_of(info.tier));
  session->set_busy(info.busy);
  session->set_epoch(info.epoch);
  session->set_idle_seconds(info.idle_seconds);
  session->set_ttl_seconds(info.ttl_seconds);
  session->set_state_bytes(info.state_bytes);
  session->set_host_bytes(info.host_bytes);
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
Status check_ttl(double seconds) {
  if (seconds >= 0 && seconds <= kMaxTtlSeconds) return {};
  return invalid("ttl_seconds must be in [0, {}], got {}", kMaxTtlSeconds, seconds);
}

template <typename Request>
Status read_ttl(const Request& request, SessionCommand* command) {
  if (!request.has_ttl_seconds()) return {};
  command->ttl_seconds = request.ttl_seconds();
  return check_ttl(request.ttl_seconds());
}

Status read(const v1::OpenSessionRequest& request, SessionCommand* command) {
  command->kind = Kind::kOpen;
  command->name = request.name().empty() ? make_name("s-") : request.name();
  const Status status = check_name("name", command->name);
  return status.ok() ? read_ttl(request, command) : status;
}

Status read(const v1::GetSessionRequest& request, SessionCommand* command) {
  command->kind = Kind::kGet;
  command->name = request.name();
  return check_name("name", command->name);
}

Status read(const v1::ListSessionsRequest& request, SessionCommand* command) {
  command->kind = Kind::kList;
  command->name = request.prefix();
  command->other = request.page_token();
  command->limit = request.has_page_size() ? request.page_size() : kDefaultPageSize;
  if (command->limit >= 1 && command->limit <= kMaxPageSize) return {};
  return invalid("page_size must be in [1, {}], got {}", kMaxPageSize, command->limit);
}

Status read(const v1::CloseSessionRequest& request, SessionCommand* command) {
  command->kind = Kind::kClose;
  command->name = request.name();
  return check_name("name", command->name);
}

Status read(const v1::ForkSessionRequest& request, SessionCommand* command) {
  command->kind = Kind::kFork;
  command->name = request.name();
  command->other = request.new_name().empty() ? make_name("s-") : request.new_name();
  Status status = check_name("name", command->name);
  if (status.ok()) status = check_name("new_name", command->other);
  return status.ok() ? read_ttl(request, command) : status;
}

template <typename Request>
Status read_mark(const Request& request, Kind kind, SessionCommand* command) {
  command->kind = kind;
  command->name = request.name();
  command->other = request.mark();
  const Status status = check_name("name", command->name);
  return status.ok() ? check_name("mark", command->other) : status;
}

Status read(const v1::MarkSessionRequest& request, SessionCommand* command) {
  return read_mark(request, Kind::kMark, command);
}
Status read(const v1::UnmarkSessionRequest& request, SessionCommand* command) {
  return read_mark(request, Kind::kUnmark, command);
}
Status read(const v1::RewindSessionRequest& request, SessionCommand* command) {
  return read_mark(request, Kind::kRewind, command);
}

using Answer = grpc::ByteBuffer (*)(const SessionResult&);

// Hands the command to the engine; the call ends on the delivery executor.
Status post(ServiceContext& context, SessionCommand command, UnaryCall* unary, Answer answer,
            grpc::ByteBuffer* response) {
  command.done = [&context, unary, answer, response](SessionResult result) {
    unary->answer_on(context.delivery, [answer, response, result = std::move(result)] {
      const Status status = status_of(result);
      if (status.ok()) *response = answer(result);
      return status;
    });
  };
  switch (context.queue.post(std::move(command))) {
    case AdmissionQueue::Admission::kAccepted:
      return {};
    case AdmissionQueue::Admission::kClosed:
      return {StatusCode::UNAVAILABLE, "the server is draining: use another one"};
    case AdmissionQueue::Admission::kFull:
      break;
  }
  return {StatusCode::RESOURCE_EXHAUSTED, "too many commands wait: try again later"};
}

template <typename Request>
grpc::ServerUnaryReactor* handle(ServiceContext& context, grpc::CallbackServerContext* call,
                                 const grpc::ByteBuffer& bytes, Answer answer,
                                 grpc::ByteBuffer* response) {
  auto* unary = new UnaryCall(context, call);
  Request request;
  SessionCommand command;
  Status status = context.availability();
  if (status.ok()) status = parse(bytes, &request);
  if (status.ok()) status = read(request, &command);
  if (status.ok()) status = post(context, std::move(command), unary, answer, response);
  if (!status.ok()) unary->finish(status);
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
