#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "clients/cpp/call.h"
#include "clients/cpp/client_error.h"
#include "clients/cpp/connection.h"
#include "recurve/v1/control.grpc.pb.h"
#include "recurve/v1/inference.grpc.pb.h"
#include "recurve/v1/sessions.grpc.pb.h"

namespace recurve {

enum class Health { kUnknown = 0, kServing = 1, kNotServing = 2 };

// Whether the server does this request of the session once if it comes several times with one id.
bool is_done_once(const v1::GenerateRequest& request, const v1::Session& session);

// A connection to a Recurve server, made when this is constructed or, where nothing answers yet,
// with a later call, and again whenever it was lost. Calls block, throw ClientError, and may run in
// several threads at once.
class Client {
 public:
  // Throws std::invalid_argument where the address is none, or a file cannot be read. Waits for the
  // connection for half a second at most; that there is none shows with the first call.
  explicit Client(const Endpoint& endpoint);

  const std::string& address() const { return connection_.address(); }

  // on_response sees every message in order, the last included. If it throws, the call is cancelled
  // and the exception passes on.
  using OnGenerate = std::function<void(const v1::GenerateResponse&)>;
  v1::GenerateFinal generate(const v1::GenerateRequest& request, const OnGenerate& on_response,
                             const CallOptions& options = {});
  // A turn of a durable session, for which is_done_once() holds. If the answer is lost, or the
  // server cannot take the turn now, the same request is sent again, up to 5 times: with a
  // request_id and a seed, which are chosen here if the request has none, so the session has the
  // turn once. The timeout is that of all attempts. After the first chunk the turn is repeated only
  // with on_restart: on_response then sees the same answer from its beginning.
  using OnRestart = std::function<void()>;
  v1::GenerateFinal generate_turn(const v1::GenerateRequest& request, const OnGenerate& on_response,
                                  const OnRestart& on_restart = {},
                                  const CallOptions& options = {});

  // on_response as in generate().
  using OnEmbed = std::function<void(const v1::EmbedResponse&)>;
  v1::EmbedFinal embed(const v1::EmbedRequest& request, const OnEmbed& on_response,
                       const CallOptions& options = {});

  // The text goes out in pieces, so it may be longer than the limit of a message.
  using OnScore = std::function<void(const v1::ScoreResponse&)>;
  // Fills the next piece, of at least a byte and at most a message; false at the end of the text.
  // Called from a thread of the client's own, as fast as the server takes what came before; should
  // return soon once a stop is requested: the call has ended. What it throws ends the call and
  // passes on.
  using NextPiece = std::function<bool(std::stop_token, std::string* piece)>;
  v1::ScoreFinal score(const v1::ScoreOptions& score_options, const NextPiece& next,
                       const OnScore& on_response, const CallOptions& options = {});
  v1::ScoreFinal score(const v1::ScoreOptions& score_options, std::string_view text,
                       const OnScore& on_response, const CallOptions& options = {});
  v1::ScoreFinal score(const v1::ScoreOptions& score_options, std::span<const int32_t> ids,
                       const OnScore& on_response, const CallOptions& options = {});

  v1::TokenizeResponse tokenize(const v1::TokenizeRequest& request,
                                const CallOptions& options = {});
  v1::DetokenizeResponse detokenize(const v1::DetokenizeRequest& request,
                                    const CallOptions& options = {});
  // Ends the request of that id, from any client of the tenant.
  v1::AbortResponse abort(const std::string& request_id, const CallOptions& options = {});

  // Calls of a session carry its name as x-recurve-session, for proxies that keep a session on one
  // server; open, fork and import choose one where none is given.
  v1::Session open_session(const v1::OpenSessionRequest& request, const CallOptions& options = {});
  v1::Session get_session(const std::string& name, const CallOptions& options = {});
  // All sessions whose names begin with `prefix`, whatever the number of pages.
  // model: of that one alone; empty: of all.
  std::vector<v1::Session> list_sessions(const std::string& prefix = "",
                                         const CallOptions& options = {},
                                         const std::string& model = "");
  // expected_epoch: only if the session has it.
  v1::CloseSessionResponse close_session(const std::string& name, const CallOptions& options = {},
                                         std::optional<uint64_t> expected_epoch = {});
  v1::Session fork_session(const v1::ForkSessionRequest& request, const CallOptions& options = {});
  // The session's written state, from the offset on: `take` gets the bytes in their order, and how
  // many there are of the whole state.
  using TakeState = std::function<void(std::string_view bytes, uint64_t total)>;
  void export_session(const v1::ExportRequest& request, const TakeState& take,
                      const CallOptions& options = {});
  // first: with the name and what it is to become; next: fills in the next bytes, false at the end.
  using NextState = std::function<bool(std::string* bytes)>;
  v1::Session import_session(const v1::ImportRequest& first, const NextState& next,
                             const CallOptions& options = {});
  v1::Session mark_session(const std::string& name, const std::string& mark,
                           const CallOptions& options = {});
  v1::Session unmark_session(const std::string& name, const std::string& mark,
                             const CallOptions& options = {});
  // Goes on with a session that answers DATA_LOSS from the position that is still there.
  v1::Session accept_session(const std::string& name, const CallOptions& options = {});
  v1::Session rewind_session(const std::string& name, const std::string& mark,
                             const CallOptions& options = {});
  v1::Session rewind_session(const v1::RewindSessionRequest& request,
                             const CallOptions& options = {});

  // Of the first model, or that of the name.
  v1::ModelInfo model_info(const CallOptions& options = {}, const std::string& model = "");
  v1::ServerInfo server_info(const CallOptions& options = {});
  v1::Load load(const CallOptions& options = {});
  v1::ListModelsResponse list_models(const CallOptions& options = {});
  // Of a server with --model-root: return when the model serves, or its memory is free.
  v1::ModelInfo load_model(const v1::LoadModelRequest& request, const CallOptions& options = {});
  v1::UnloadModelResponse unload_model(const v1::UnloadModelRequest& request,
                                       const CallOptions& options = {});
  // Seconds for running requests; absent: the server's own limit.
  v1::DrainResponse drain(std::optional<double> deadline_seconds = {},
                          const CallOptions& options = {});

  // The state of a service in the standard health service, as "recurve.v1.Sessions"; "": of the
  // whole server.
  Health health(const CallOptions& options = {}, const std::string& service = "");
  // Returns once the server serves; at the deadline throws ClientError: kUnreachable where nothing
  // answers, kUnavailable where the server does not serve. A server may be started after this call.
  // Of the options only the Canceller counts.
  void wait_until_serving(std::chrono::system_clock::time_point deadline,
                          const CallOptions& options = {});

 private:
  // Fills the next message; false: there is none.
  using ScorePieces = std::function<bool(std::stop_token, v1::ScoreRequest*)>;
  v1::ScoreFinal score_pieces(const ScorePieces& next, const OnScore& on_response,
                              const CallOptions& options);
  template <class Stub, class Request, class Response>
  Response unary(Stub& stub,
                 grpc::Status (Stub::*rpc)(grpc::ClientContext*, const Request&, Response*),
                 const Request& request, const CallOptions& options);

  ServerConnection connection_;
  std::unique_ptr<v1::Inference::Stub> inference_;
  std::unique_ptr<v1::Sessions::Stub> sessions_;
  std::unique_ptr<v1::Control::Stub> control_;
};

}  // namespace recurve
