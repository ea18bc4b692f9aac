#pragma once
#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "recurve/v1/control.grpc.pb.h"
#include "recurve/v1/inference.grpc.pb.h"
#include "recurve/v1/sessions.grpc.pb.h"

// A server of the protocol without a model: it answers with what a test says, and remembers what it
// was asked.
namespace recurve::testing {

using GenerateWriter = grpc::ServerWriter<v1::GenerateResponse>;
using OnGenerate =
    std::function<grpc::Status(grpc::ServerContext*, const v1::GenerateRequest&, GenerateWriter*)>;

inline v1::GenerateResponse prompt_message(const v1::GenerateRequest& request) {
  v1::GenerateResponse response;
  auto* prompt = response.mutable_prompt();
  prompt->set_request_id(request.request_id().empty() ? "made-1" : request.request_id());
  prompt->set_model("fake");
  prompt->set_prompt_tokens(3);
  prompt->set_seed(request.sampling().has_seed() ? request.sampling().seed() : 42);
  return response;
}

inline v1::GenerateResponse chunk_message(const std::string& text, int choice = 0) {
  v1::GenerateResponse response;
  response.mutable_chunk()->set_text(text);
  response.mutable_chunk()->set_choice(choice);
  response.mutable_chunk()->add_ids(7);
  return response;
}

inline v1::GenerateResponse final_message(int choices = 1) {
  v1::GenerateResponse response;
  auto* final = response.mutable_final();
  for (int i = 0; i < choices; ++i) {
    final->add_choices()->set_reason(v1::FINISH_REASON_LENGTH);
    final->mutable_choices(i)->set_generated_tokens(3);
  }
  final->mutable_usage()->set_prompt_tokens(3);
  final->mutable_usage()->set_generated_tokens(3 * choices);
  return response;
}

// Writes a whole answer of these texts.
inline OnGenerate answer_with(std::vector<std::string> texts) {
  return [texts = std::move(texts)](grpc::ServerContext*, const v1::GenerateRequest& request,
                                    GenerateWriter* writer) {
    writer->Write(prompt_message(request));
    for (const auto& text : texts) writer->Write(chunk_message(text));
    writer->Write(final_message());
    return grpc::Status::OK;
  };
}

// What a server says that loads its model.
inline grpc::Status loading(grpc::ServerContext* context) {
  context->AddTrailingMetadata("recurve-state", "loading");
  return {grpc::StatusCode::UNAVAILABLE, "the model loads"};
}

// Until the client cancels, or for 20 seconds. Says whether it did.
inline bool wait_for_cancel(grpc::ServerContext* context) {
  for (int i = 0; i < 2000 && !context->IsCancelled(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return context->IsCancelled();
}

class FakeInference final : public v1::Inference::Service {
 public:
  void set_on_generate(OnGenerate on_generate) {
    std::lock_guard lock(mutex_);
    on_generate_ = std::move(on_generate);
  }
  std::vector<v1::GenerateRequest> generate_requests() const { return copy(generate_requests_); }
  // All messages of the last Score call.
  std::vector<v1::ScoreRequest> score_requests() const { return copy(score_requests_); }
  v1::EmbedRequest embed_request() const { return copy(embed_request_); }
  v1::TokenizeRequest tokenize_request() const { return copy(tokenize_request_); }
  v1::DetokenizeRequest detokenize_request() const { return copy(detokenize_request_); }
  std::string aborted() const { return copy(aborted_); }

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        GenerateWriter* writer) override {
    OnGenerate on_generate;
    {
      std::lock_guard lock(mutex_);
      generate_requests_.push_back(*request);
      on_generate = on_generate_;
    }
    return on_generate(context, *request, writer);
  }

  // Four tokens of probability 1/4 each, in a text of as many bytes as came.
  grpc::Status Score(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::ScoreResponse, v1::ScoreRequest>* stream) override {
    constexpr double kLogQuarter = -1.3862943611198906;
    std::vector<v1::ScoreRequest> requests;
    int64_t bytes = 0;
    for (v1::ScoreRequest request; stream->Read(&request);) {
      bytes += static_cast<int64_t>(request.text().size());
      requests.push_back(request);
    }
    v1::ScoreResponse response;
    response.mutable_prompt()->set_prompt_tokens(5);
    stream->Write(response);
    auto* progress = response.mutable_progress();
    progress->set_scored_tokens(4);
    for (int i = 0; !requests.empty() && requests[0].options().has_top() && i < 4; ++i) {
      auto* token = progress->add_tokens();
      token->set_id(i);
      token->set_logprob(static_cast<float>(kLogQuarter));
    }
    stream->Write(response);
    response.mutable_final()->set_scored_tokens(4);
    response.mutable_final()->set_sum_logprob(4 * kLogQuarter);
    response.mutable_final()->set_text_bytes(bytes);
    stream->Write(response);
    std::lock_guard lock(mutex_);
    score_requests_ = std::move(requests);
    return grpc::Status::OK;
  }

  // The vector (index, 0.5) of each input.
  grpc::Status Embed(grpc::ServerContext*, const v1::EmbedRequest* request,
                     grpc::ServerWriter<v1::EmbedResponse>* writer) override {
    v1::EmbedResponse response;
    response.mutable_prompt()->set_request_id(request->request_id());
    writer->Write(response);
    for (int i = 0; i < request->inputs_size(); ++i) {
      response.mutable_embedding()->set_input(i);
      response.mutable_embedding()->clear_values();
      response.mutable_embedding()->add_values(static_cast<float>(i));
      response.mutable_embedding()->add_values(0.5F);
      writer->Write(response);
    }
    response.mutable_final()->mutable_usage()->set_prompt_tokens(3);
    writer->Write(response);
    std::lock_guard lock(mutex_);
    embed_request_ = *request;
    return grpc::Status::OK;
  }

  grpc::Status Tokenize(grpc::ServerContext*, const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override {
    std::lock_guard lock(mutex_);
    tokenize_request_ = *request;
    response->add_ids(1);
    response->add_ids(20);
    if (request->with_bytes()) {
      response->add_token_bytes("a b");
      response->add_token_bytes("\xc3\n");
    }
    return grpc::Status::OK;
  }

  grpc::Status Detokenize(grpc::ServerContext*, const v1::DetokenizeRequest* request,
                          v1::DetokenizeResponse* response) override {
    std::lock_guard lock(mutex_);
    detokenize_request_ = *request;
    response->set_text("some text");
    return grpc::Status::OK;
  }

  grpc::Status Abort(grpc::ServerContext*, const v1::AbortRequest* request,
                     v1::AbortResponse*) override {
    std::lock_guard lock(mutex_);
    aborted_ = request->request_id();
    if (aborted_ == "unknown") return {grpc::StatusCode::NOT_FOUND, "no request 'unknown'"};
    return grpc::Status::OK;
  }

 private:
  template <class T>
  T copy(const T& value) const {
    std::lock_guard lock(mutex_);
    return value;
  }

  mutable std::mutex mutex_;
  OnGenerate on_generate_ = answer_with({"Once", " upon", " a time"});
  std::vector<v1::GenerateRequest> generate_requests_;
  std::vector<v1::ScoreRequest> score_requests_;
  v1::EmbedRequest embed_request_;
  v1::TokenizeRequest tokenize_request_;
  v1::DetokenizeRequest detokenize_request_;
  std::string aborted_;
};

// Keeps names and marks, no states.
class FakeSessions final : public v1::Sessions::Service {
 public:
  std::map<std::string, v1::Session> sessions() const {
    std::lock_guard lock(mutex_);
    return sessions_;
  }
  int opened() const {
    std::lock_guard lock(mutex_);
    return opened_;
  }
  // Each Open takes so long from now on.
  void set_opening_time(std::chrono::milliseconds time) { opening_time_ = time; }
  // A session that is open from the start.
  void put(const std::string& name, v1::Durability durability) {
    std::lock_guard lock(mutex_);
    sessions_[name].set_name(name);
    sessions_[name].set_durability(durability);
  }
  // A session that serves a request is not closed.
  void set_busy(const std::string& name, bool busy) {
    std::lock_guard lock(mutex_);
    sessions_.at(name).set_busy(busy);
  }

  // What the last Open, Fork, Export or Import said to proxies: its x-recurve-session.
  std::string said_to_proxies() const {
    std::lock_guard lock(mutex_);
    return said_to_proxies_;
  }

  grpc::Status Open(grpc::ServerContext* context, const v1::OpenSessionRequest* request,
                    v1::Session* session) override {
    hear(context);
    std::this_thread::sleep_for(opening_time_.load());
    std::lock_guard lock(mutex_);
    const grpc::Status status =
        add(request->name(), request->has_ttl_seconds() ? request->ttl_seconds() : 600, session);
    if (!status.ok()) return status;
    session->set_model(request->model());
    sessions_.at(session->name()) = *session;
    return status;
  }
  grpc::Status Get(grpc::ServerContext*, const v1::GetSessionRequest* request,
                   v1::Session* session) override {
    return with(request->name(), session, [](v1::Session&) {});
  }
  // Two a page, whatever was asked for.
  grpc::Status List(grpc::ServerContext*, const v1::ListSessionsRequest* request,
                    v1::ListSessionsResponse* response) override {
    std::lock_guard lock(mutex_);
    for (auto it = sessions_.upper_bound(request->page_token()); it != sessions_.end(); ++it) {
      if (!it->first.starts_with(request->prefix())) continue;
      if (response->sessions_size() == 2) {
        response->set_next_page_token(response->sessions(1).name());
        break;
      }
      *response->add_sessions() = it->second;
    }
    return grpc::Status::OK;
  }
  grpc::Status Close(grpc::ServerContext*, const v1::CloseSessionRequest* request,
                     v1::CloseSessionResponse*) override {
    std::lock_guard lock(mutex_);
    const auto found = sessions_.find(request->name());
    if (found == sessions_.end()) return unknown(request->name());
    if (found->second.busy()) return {grpc::StatusCode::FAILED_PRECONDITION, "it is busy"};
    sessions_.erase(found);
    return grpc::Status::OK;
  }
  grpc::Status Fork(grpc::ServerContext* context, const v1::ForkSessionRequest* request,
                    v1::Session* session) override {
    hear(context);
    std::lock_guard lock(mutex_);
    if (!sessions_.contains(request->name())) return unknown(request->name());
    const grpc::Status status = add(request->new_name(), request->ttl_seconds(), session);
    if (status.ok()) sessions_.at(session->name()).set_parent(request->name());
    return status;
  }
  grpc::Status Export(grpc::ServerContext* context, const v1::ExportRequest*,
                      grpc::ServerWriter<v1::StateChunk>*) override {
    hear(context);
    return grpc::Status::OK;
  }
  grpc::Status Import(grpc::ServerContext* context, grpc::ServerReader<v1::ImportRequest>* reader,
                      v1::Session* session) override {
    hear(context);
    v1::ImportRequest first, next;
    reader->Read(&first);
    while (reader->Read(&next)) {
    }
    std::lock_guard lock(mutex_);
    return add(first.name(), first.ttl_seconds(), session);
  }
  grpc::Status Mark(grpc::ServerContext*, const v1::MarkSessionRequest* request,
                    v1::Session* session) override {
    return with(request->name(), session,
                [&](v1::Session& s) { s.add_marks()->set_name(request->mark()); });
  }
  grpc::Status Unmark(grpc::ServerContext*, const v1::UnmarkSessionRequest* request,
                      v1::Session* session) override {
    return with(request->name(), session, [](v1::Session& s) { s.clear_marks(); });
  }
  grpc::Status Accept(grpc::ServerContext*, const v1::AcceptSessionRequest* request,
                      v1::Session* session) override {
    return with(request->name(), session, [](v1::Session& s) { s.set_in_doubt(false); });
  }
  grpc::Status Rewind(grpc::ServerContext*, const v1::RewindSessionRequest* request,
                      v1::Session* session) override {
    return with(request->name(), session, [&](v1::Session& s) {
      s.set_position(request->has_position() ? request->position() : 17);
      s.set_epoch(s.epoch() + 1);
    });
  }

 private:
  void hear(const grpc::ServerContext* context) {
    const auto said = context->client_metadata().find("x-recurve-session");
    std::lock_guard lock(mutex_);
    said_to_proxies_ = said == context->client_metadata().end()
                           ? ""
                           : std::string(said->second.data(), said->second.size());
  }
  static grpc::Status unknown(const std::string& name) {
    return {grpc::StatusCode::NOT_FOUND, "there is no session '" + name + "'"};
  }
  grpc::Status add(std::string name, double ttl, v1::Session* out) {
    if (name.empty()) name = "made-" + std::to_string(opened_);
    if (sessions_.contains(name)) {
      return {grpc::StatusCode::ALREADY_EXISTS, "session '" + name + "' is open"};
    }
    ++opened_;
    v1::Session& session = sessions_[name];
    session.set_name(name);
    session.set_ttl_seconds(ttl);
    session.set_tier(v1::SESSION_TIER_EMPTY);
    *out = session;
    return grpc::Status::OK;
  }
  grpc::Status with(const std::string& name, v1::Session* out,
                    const std::function<void(v1::Session&)>& change) {
    std::lock_guard lock(mutex_);
    const auto found = sessions_.find(name);
    if (found == sessions_.end()) return unknown(name);
    change(found->second);
    *out = found->second;
    return grpc::Status::OK;
  }

  mutable std::mutex mutex_;
  std::map<std::string, v1::Session> sessions_;
  std::string said_to_proxies_;
  int opened_ = 0;
  std::atomic<std::chrono::milliseconds> opening_time_{};
};

class FakeControl final : public v1::Control::Service {
 public:
  void set_operator(bool is_one) { operator_ = is_one; }  // whether the caller is one
  void set_state(v1::ServerState state) { state_ = state; }

  // Before any call. The model "chatty" has one in any case.
  void set_chat_template(bool usable, const std::string& problem = "") {
    has_chat_template_ = usable;
    chat_template_problem_ = problem;
  }

  grpc::Status GetModelInfo(grpc::ServerContext* context, const v1::GetModelInfoRequest* request,
                            v1::ModelInfo* info) override {
    if (state_ == v1::SERVER_STATE_LOADING) return loading(context);
    info->set_name("fake-8m");
    info->set_has_chat_template(has_chat_template_ || request->model() == "chatty");
    info->set_chat_template_problem(chat_template_problem_);
    info->set_family("xlstm");
    info->set_parameters(8'000'000);
    info->set_state_bytes(3 << 20);
    info->set_token_count(100);
    info->set_bos_id(1);
    info->add_eos_ids(2);
    info->add_eos_ids(5);
    auto* op = info->add_ops();
    op->set_name("mlstm_chunk");
    op->set_implementation("cpu avx2");
    return grpc::Status::OK;
  }
  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::ServerInfo* info) override {
    info->set_version("9.9.9");
    info->set_state(state_);
    info->mutable_limits()->set_slots(8);
    info->mutable_limits()->set_max_prompt_tokens(100'000);
    info->mutable_limits()->set_max_generated_tokens(100'000);
    info->mutable_limits()->set_max_choices(16);
    return grpc::Status::OK;
  }
  grpc::Status GetLoad(grpc::ServerContext*, const v1::GetLoadRequest*, v1::Load* load) override {
    if (!operator_) return {grpc::StatusCode::PERMISSION_DENIED, "the role is user"};
    load->set_requests_running(3);
    return grpc::Status::OK;
  }
  grpc::Status Drain(grpc::ServerContext*, const v1::DrainRequest* request,
                     v1::DrainResponse* response) override {
    response->set_requests_under_way(request->has_deadline_seconds() ? 2 : 1);
    return grpc::Status::OK;
  }

 private:
  std::atomic<v1::ServerState> state_ = v1::SERVER_STATE_SERVING;
  std::atomic<bool> operator_ = true;
  bool has_chat_template_ = false;
  std::string chat_template_problem_;
};

// The three services and health on a free port of this machine, from construction to destruction.
class FakeServer {
 public:
  FakeServer() {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&inference);
    builder.RegisterService(&sessions);
    builder.RegisterService(&control);
    server_ = builder.BuildAndStart();
  }
  ~FakeServer() {
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  }

  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void set_serving(bool serving) { server_->GetHealthCheckService()->SetServingStatus(serving); }

  FakeInference inference;
  FakeSessions sessions;
  FakeControl control;

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace recurve::testing
