#include "clients/cpp/client.h"

#include <fmt/format.h>
#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <exception>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "clients/cpp/made_name.h"

namespace recurve {
namespace {

// A stream whose reader threw must still be ended before its context goes.
template <class Stream>
class StreamGuard {
 public:
  StreamGuard(Stream& stream, grpc::ClientContext* context) : stream_(stream), context_(context) {}
  ~StreamGuard() {
    if (finished_) return;
    context_->TryCancel();
    stream_.Finish();
  }
  grpc::Status finish() {
    finished_ = true;
    return stream_.Finish();
  }

 private:
  Stream& stream_;
  grpc::ClientContext* context_;
  bool finished_ = false;
};

ClientError no_final_message() {
  return ClientError(ClientError::Kind::kRefused, grpc::StatusCode::INTERNAL,
                     "the server ended the stream without its last message");
}

// Says which session a call is of to proxies that keep a session on one server. A name that no
// header can carry is invalid, and the server's error is more specific.
template <class Request>
void name_session(const Request& request, grpc::ClientContext* context) {
  std::string name;
  if constexpr (requires { request.session(); }) {
    name = request.session();
  } else if constexpr (requires { request.name(); }) {  // only requests of sessions have a name
    name = request.name();
  }
  const bool fits =
      std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c < 127; });
  if (!name.empty() && fits) context->AddMetadata("x-recurve-session", name);
}

// Every message of a streamed answer, to its last one.
template <class Response, class Reader, class On>
auto read_to_end(Reader& reader, Call& call, const ServerConnection& connection,
                 const On& on_response) {
  StreamGuard guard(reader, call.context());
  Response response;
  std::optional<std::decay_t<decltype(response.final())>> final;
  while (reader.Read(&response)) {
    if (response.has_final()) final = response.final();
    on_response(response);
  }
  connection.throw_unless_ok(guard.finish(), *call.context());
  if (!final) throw no_final_message();
  return *final;
}

}  // namespace

Client::Client(const Endpoint& endpoint)
    : connection_(endpoint),
      inference_(v1::Inference::NewStub(connection_.channel())),
      sessions_(v1::Sessions::NewStub(connection_.channel())),
      control_(v1::Control::NewStub(connection_.channel())) {}

template <class Stub, class Request, class Response>
Response Client::unary(Stub& stub,
                       grpc::Status (Stub::*rpc)(grpc::ClientContext*, const Request&, Response*),
                       const Request& request, const CallOptions& options) {
  Call call(options);
  name_session(request, call.context());
  Response response;
  connection_.throw_unless_ok((stub.*rpc)(call.context(), request, &response), *call.context());
  return response;
}

v1::GenerateFinal Client::generate(const v1::GenerateRequest& request,
                                   const OnGenerate& on_response, const CallOptions& options) {
  Call call(options);
  name_session(request, call.context());
  const auto reader = inference_->Generate(call.context(), request);
  return read_to_end<v1::GenerateResponse>(*reader, call, connection_, on_response);
}

v1::EmbedFinal Client::embed(const v1::EmbedRequest& request, const OnEmbed& on_response,
                             const CallOptions& options) {
  Call call(options);
  const auto reader = inference_->Embed(call.context(), request);
  return read_to_end<v1::EmbedResponse>(*reader, call, connection_, on_response);
}

v1::ScoreFinal Client::score(const v1::ScoreOptions& score_options, const NextPiece& next,
                             const OnScore& on_response, const CallOptions& options) {
  bool first = true;
  const auto pieces = [&](std::stop_token stop, v1::ScoreRequest* request) {
    const bool more = next(stop, request->mutable_text());
    if (first) *request->mutable_options() = score_options;
    return std::exchange(first, false) || more;  // the server judges an empty text
  };
  return score_pieces(pieces, on_response, options);
}

v1::ScoreFinal Client::score(const v1::ScoreOptions& score_options, std::string_view text,
                             const OnScore& on_response, const CallOptions& options) {
  constexpr size_t kPieceBytes = 64 * 1024;
  const auto next = [&](std::stop_token, std::string* piece) {
    const size_t size = std::min(text.size(), kPieceBytes);
    piece->assign(text.substr(0, size));
    text.remove_prefix(size);
    return size > 0;
  };
  return score(score_options, next, on_response, options);
}

v1::ScoreFinal Client::score(const v1::ScoreOptions& score_options, std::span<const int32_t> ids,
                             const OnScore& on_response, const CallOptions& options) {
  constexpr size_t kPieceIds = 16 * 1024;
  bool first = true;
  const auto next = [&](std::stop_token, v1::ScoreRequest* request) {
    if (!first && ids.empty()) return false;
    if (first) *request->mutable_options() = score_options;
    first = false;
    const auto piece = ids.first(std::min(ids.size(), kPieceIds));
    request->mutable_ids()->mutable_ids()->Add(piece.begin(), piece.end());
    ids = ids.subspan(piece.size());
    return true;
  };
  return score_pieces(next, on_response, options);
}

// Writes from a separate thread: a server may answer before it has read everything, and each side
// would wait for the other to read.
v1::ScoreFinal Client::score_pieces(const ScorePieces& next, const OnScore& on_response,
                                    const CallOptions& options) {
  Call call(options);
  const auto stream = inference_->Score(call.context());
  StreamGuard guard(*stream, call.context());
  std::exception_ptr failure;  // of next()
  std::jthread writer([&](std::stop_token stop) {
    try {
      v1::ScoreRequest request;
      while (next(stop, &request)) {
        if (!stream->Write(request)) break;  // the call has ended; its status has the reason
        request.Clear();
      }
      stream->WritesDone();
    } catch (...) {
      failure = std::current_exception();
      call.context()->TryCancel();
    }
  });
  v1::ScoreResponse response;
  std::optional<v1::ScoreFinal> final;
  try {
    while (stream->Read(&response)) {
      if (response.has_final()) final = response.final();
      on_response(response);
    }
  } catch (...) {
    call.context()->TryCancel();  // or the writer might wait for ever
    throw;
  }
  writer.request_stop();
  writer.join();
  if (failure) std::rethrow_exception(failure);
  connection_.throw_unless_ok(guard.finish(), *call.context());
  if (!final) throw no_final_message();
  return *final;
}

v1::TokenizeResponse Client::tokenize(const v1::TokenizeRequest& request,
                                      const CallOptions& options) {
  return unary(*inference_, &v1::Inference::Stub::Tokenize, request, options);
}

v1::DetokenizeResponse Client::detokenize(const v1::DetokenizeRequest& request,
                                          const CallOptions& options) {
  return unary(*inference_, &v1::Inference::Stub::Detokenize, request, options);
}

v1::AbortResponse Client::abort(const std::string& request_id, const CallOptions& options) {
  v1::AbortRequest request;
  request.set_request_id(request_id);
  return unary(*inference_, &v1::Inference::Stub::Abort, request, options);
}

v1::Session Client::open_session(const v1::OpenSessionRequest& request,
                                 const CallOptions& options) {
  v1::OpenSessionRequest named = request;
  if (named.name().empty()) named.set_name(made_name());
  return unary(*sessions_, &v1::Sessions::Stub::Open, named, options);
}

v1::Session Client::get_session(const std::string& name, const CallOptions& options) {
  v1::GetSessionRequest request;
  request.set_name(name);
  return unary(*sessions_, &v1::Sessions::Stub::Get, request, options);
}

std::vector<v1::Session> Client::list_sessions(const std::string& prefix,
                                               const CallOptions& options,
                                               const std::string& model) {
  v1::ListSessionsRequest request;
  request.set_model(model);
  request.set_prefix(prefix);
  request.set_page_size(1000);
  std::vector<v1::Session> sessions;
  do {
    auto page = unary(*sessions_, &v1::Sessions::Stub::List, request, options);
    std::move(page.mutable_sessions()->begin(), page.mutable_sessions()->end(),
              std::back_inserter(sessions));
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return sessions;
}

v1::Session Client::accept_session(const std::string& name, const CallOptions& options) {
  v1::AcceptSessionRequest request;
  request.set_name(name);
  return unary(*sessions_, &v1::Sessions::Stub::Accept, request, options);
}

v1::CloseSessionResponse Client::close_session(const std::string& name, const CallOptions& options,
                                               std::optional<uint64_t> expected_epoch) {
  v1::CloseSessionRequest request;
  request.set_name(name);
  if (expected_epoch) request.set_expected_epoch(*expected_epoch);
  return unary(*sessions_, &v1::Sessions::Stub::Close, request, options);
}

v1::Session Client::fork_session(const v1::ForkSessionRequest& request,
                                 const CallOptions& options) {
  v1::ForkSessionRequest named = request;
  if (named.new_name().empty()) named.set_new_name(made_name());
  return unary(*sessions_, &v1::Sessions::Stub::Fork, named, options);
}

void Client::export_session(const v1::ExportRequest& request, const TakeState& take,
                            const CallOptions& options) {
  Call call(options);
  name_session(request, call.context());
  const auto stream = sessions_->Export(call.context(), request);
  StreamGuard guard(*stream, call.context());
  v1::StateChunk chunk;
  while (stream->Read(&chunk)) take(chunk.data(), chunk.total_bytes());
  connection_.throw_unless_ok(guard.finish(), *call.context());
}

v1::Session Client::import_session(const v1::ImportRequest& first, const NextState& next,
                                   const CallOptions& options) {
  Call call(options);
  v1::ImportRequest request = first;
  if (request.name().empty()) request.set_name(made_name());
  name_session(request, call.context());
  v1::Session session;
  const auto stream = sessions_->Import(call.context(), &session);
  StreamGuard guard(*stream, call.context());
  bool more = next(request.mutable_data());
  do {                                   // the server judges a state of no bytes
    if (!stream->Write(request)) break;  // the call has ended; its status has the reason
    request.Clear();
    more = more && next(request.mutable_data());
  } while (more);
  stream->WritesDone();
  connection_.throw_unless_ok(guard.finish(), *call.context());
  return session;
}

v1::Session Client::mark_session(const std::string& name, const std::string& mark,
                                 const CallOptions& options) {
  v1::MarkSessionRequest request;
  request.set_name(name);
  request.set_mark(mark);
  return unary(*sessions_, &v1::Sessions::Stub::Mark, request, options);
}

v1::Session Client::unmark_session(const std::string& name, const std::string& mark,
                                   const CallOptions& options) {
  v1::UnmarkSessionRequest request;
  request.set_name(name);
  request.set_mark(mark);
  return unary(*sessions_, &v1::Sessions::Stub::Unmark, request, options);
}

v1::Session Client::rewind_session(const std::string& name, const std::string& mark,
                                   const CallOptions& options) {
  v1::RewindSessionRequest request;
  request.set_name(name);
  request.set_mark(mark);
  return rewind_session(request, options);
}

v1::Session Client::rewind_session(const v1::RewindSessionRequest& request,
                                   const CallOptions& options) {
  return unary(*sessions_, &v1::Sessions::Stub::Rewind, request, options);
}

v1::ModelInfo Client::model_info(const CallOptions& options, const std::string& model) {
  v1::GetModelInfoRequest request;
  request.set_model(model);
  return unary(*control_, &v1::Control::Stub::GetModelInfo, request, options);
}

v1::ServerInfo Client::server_info(const CallOptions& options) {
  return unary(*control_, &v1::Control::Stub::GetServerInfo, v1::GetServerInfoRequest(), options);
}

v1::Load Client::load(const CallOptions& options) {
  return unary(*control_, &v1::Control::Stub::GetLoad, v1::GetLoadRequest(), options);
}

v1::ListModelsResponse Client::list_models(const CallOptions& options) {
  return unary(*control_, &v1::Control::Stub::ListModels, v1::ListModelsRequest(), options);
}

v1::ModelInfo Client::load_model(const v1::LoadModelRequest& request, const CallOptions& options) {
  return unary(*control_, &v1::Control::Stub::LoadModel, request, options);
}

v1::UnloadModelResponse Client::unload_model(const v1::UnloadModelRequest& request,
                                             const CallOptions& options) {
  return unary(*control_, &v1::Control::Stub::UnloadModel, request, options);
}

v1::DrainResponse Client::drain(std::optional<double> deadline_seconds,
                                const CallOptions& options) {
  v1::DrainRequest request;
  if (deadline_seconds) request.set_deadline_seconds(*deadline_seconds);
  return unary(*control_, &v1::Control::Stub::Drain, request, options);
}

// grpc.health.v1 has a string as field 1 of its request and an enumeration as field 1 of its
// response, which on the wire are exactly these two well-known types: no code need be generated.
Health Client::health(const CallOptions& options, const std::string& service) {
  Call call(options);
  google::protobuf::StringValue request;
  request.set_value(service);
  google::protobuf::Int32Value response;
  grpc::TemplatedGenericStub<google::protobuf::StringValue, google::protobuf::Int32Value> stub(
      connection_.channel());
  std::promise<grpc::Status> done;
  stub.UnaryCall(call.context(), "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request,
                 &response, [&](grpc::Status status) { done.set_value(std::move(status)); });
  connection_.throw_unless_ok(done.get_future().get(), *call.context());
  switch (response.value()) {
    case 1:
      return Health::kServing;
    case 2:
      return Health::kNotServing;
    default:
      return Health::kUnknown;
  }
}

void Client::wait_until_serving(std::chrono::system_clock::time_point deadline,
                                const CallOptions& options) {
  using namespace std::chrono_literals;
  // What the last probe that was answered in time found; the next may be held up.
  ClientError found(ClientError::Kind::kUnreachable, grpc::StatusCode::UNAVAILABLE,
                    fmt::format("nothing answers at {}", address()),
                    "check that a Recurve server listens there, and the load of its machine");
  for (;;) {
    const auto remaining = deadline - std::chrono::system_clock::now();
    const bool last = remaining <= 0ms;
    CallOptions probe = options;
    probe.timeout = std::clamp<std::chrono::duration<double>>(remaining, 500ms, 5s);
    try {
      if (health(probe) == Health::kServing) return;
      found =
          ClientError(ClientError::Kind::kUnavailable, grpc::StatusCode::UNAVAILABLE,
                      fmt::format("the server at {} is loading its model or stopping", address()),
                      "'recurve info' prints which");
    } catch (const ClientError& error) {
      const bool answered = error.code() != grpc::StatusCode::DEADLINE_EXCEEDED;
      const bool may_come = error.kind() == ClientError::Kind::kUnreachable ||
                            error.kind() == ClientError::Kind::kUnavailable;
      if (answered && !may_come) throw;
      if (answered) found = error;
    }
    if (last) throw found;
    std::this_thread::sleep_for(50ms);
  }
}

}  // namespace recurve
