// recurve-server: options -> objects -> run. Everything is owned here, in the order of its life.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <functional>
#include <new>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "model/weights/mapped_file.h"
#include "server/http/anthropic/api.h"
#include "server/http/openai/api.h"
#include "server/http/server.h"
#include "server/http/server_api.h"
#include "server/kserve/kserve_service.h"
#include "server/net/connections.h"
#include "server/observe/log.h"
#include "server/rpc/server.h"
#include "server/serving/server_core.h"
#include "server/serving/shared_sessions.h"
#include "server/startup/heap_trimmer.h"
#include "server/startup/model_host.h"
#include "server/startup/model_list.h"
#include "server/startup/options.h"
#include "server/startup/security.h"
#include "server/startup/startup_table.h"
#include "server/startup/stop_signal.h"
#include "server/startup/store_access.h"
#include "server/startup/version.h"

namespace recurve {
namespace {

// How long the process waits at its end for the reader of the log.
constexpr std::chrono::seconds kFlushTimeout(1);
// How long it waits for its frontends' threads.
constexpr std::chrono::seconds kEndTimeout(5);
// How long it waits for them to end the calls that are still there after draining.
constexpr std::chrono::seconds kShutdownTimeout(15);

// A part that no longer works. It is logged, requests in progress are cancelled, and the process
// exits with 1.
class Failure {
 public:
  explicit Failure(StopSignal& stop) : stop_(stop) {}
  std::function<void(const char*)> listener(const char* part) {
    return [this, part](const char* what) {
      happened_ = true;
      stop_.raise(0);
      log_event(LogLevel::kError, "failed", {{"part", part}, {"what", what}});
    };
  }
  // `others_serve`: without it.
  void of_model(const std::string& name, const char* what, bool others_serve) {
    if (!others_serve) return listener("the engine")(what);
    happened_ = true;
    log_event(LogLevel::kError, "model_failed", {{"model", name}, {"what", what}});
  }
  bool happened() const { return happened_; }

 private:
  StopSignal& stop_;
  std::atomic<bool> happened_ = false;
};

// null: no TLS.
std::shared_ptr<TlsHandshaker> make_tls(const Options& o) {
  if (o.tls_cert.empty()) return nullptr;
  return std::make_shared<TlsHandshaker>(TlsFiles{o.tls_cert, o.tls_key, o.tls_client_ca});
}

RpcOptions rpc_options(const Options& o, std::shared_ptr<TlsHandshaker> tls) {
  return {.listen = o.listen,
          .max_message_bytes = static_cast<int64_t>(o.max_message_bytes),
          .request_compression = o.request_compression,
          .reflection = o.reflection && o.admin.empty(),
          .operators = o.admin.empty(),
          .max_connections = o.max_connections,
          .max_connections_by_address = o.max_connections_by_address,
          .tls = std::move(tls)};
}

// Has its own connections, so that clients cannot lock operators out.
RpcOptions admin_options(const Options& o, std::shared_ptr<TlsHandshaker> tls) {
  return {.listen = o.admin,
          .listen_flag = "--admin",
          .reflection = o.reflection,
          .admin = true,
          .max_connections = 64,
          .max_connections_by_address = 32,
          .tls = std::move(tls)};
}

HttpOptions http_options(const Options& o, std::shared_ptr<TlsHandshaker> tls) {
  return {.listen = o.http,
          .max_body_bytes = static_cast<int64_t>(o.max_message_bytes),
          .tls = std::move(tls),
          .origins = o.http_origins,
          .operators = o.admin.empty(),
          .times = {.silence = std::chrono::milliseconds(o.http_comment_ms)}};
}

// Another dialect is one more entry here.
std::vector<HttpApi> http_apis(const Options& o, ServerCore& core) {
  std::vector<HttpApi> apis = {openai_api(core), anthropic_api(core), server_api(core),
                               load_api(core)};
  if (o.http_page) apis.push_back(page_api());
  return apis;
}

// Scrapers use any name for a server, and its metrics are all they can ask for.
HttpOptions metrics_options(const Options& o, std::shared_ptr<TlsHandshaker> tls) {
  return {.listen = o.metrics,
          .listen_flag = "--metrics",
          .max_body_bytes = 0,
          .tls = std::move(tls),
          .origins = {"*"},
          .counted = false};
}

// By its host, which is the name of a pod, and its process.
std::string instance_name() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return fmt::format("{}-{}", host, getpid());
}

TracerOptions tracer_options(const Options& o) {
  return {.target = parse_otlp_url(o.traces),
          .source = {.service = "recurve", .instance = instance_name(), .version = kVersion},
          .ratio = o.trace_ratio};
}

ServerCoreOptions core_options(const Options& o, StopSignal& stop, Failure& failure,
                               Tracer* tracer) {
  return {.version = kVersion,
          .max_bytes_under_way = static_cast<int64_t>(o.request_memory),
          .max_prompt_tokens = o.max_prompt_tokens,
          .stall_seconds = o.stall_seconds,
          .max_generated_tokens = o.max_generated_tokens,
          .max_tokens_default = o.max_tokens_default,
          .keys = make_keys(o),
          .tracer = tracer,
          .drain_seconds = o.drain_seconds,
          .on_drain = [&stop](double seconds) { stop.raise(seconds); },
          .loads_models = !o.model_root.empty(),
          .on_failure = failure.listener("the server's threads")};
}

struct Frontends {
  void listen(const Options& o, ServerCore& core) {
    const std::shared_ptr<TlsHandshaker> tls = make_tls(o);
    rpc.emplace(rpc_options(o, tls), core, std::vector{kserve_service()});
    if (!o.admin.empty()) admin.emplace(admin_options(o, tls), core);
    if (!o.http.empty()) {
      http.emplace(http_options(o, tls), http_apis(o, core), core, rpc->connections());
    }
    if (!o.metrics.empty()) {
      metrics.emplace(metrics_options(o, tls), std::vector{server_api(core)}, core, scrapers);
    }
  }
  std::vector<Listening> listening(const Options& o) const {
    std::vector<Listening> found = {{"grpc", o.listen, rpc->port()}};
    if (http) found.push_back({"http", o.http, http->port()});
    if (metrics) found.push_back({"metrics", o.metrics, metrics->port()});
    if (admin) found.push_back({"admin", o.admin, admin->port()});
    return found;
  }
  void shutdown() {
    if (http) http->shutdown();
    if (admin) admin->shutdown();
    rpc->shutdown();
  }

  std::optional<RpcServer> rpc, admin;
  std::optional<HttpServer> http;
  // Separate from clients' connections, so that these cannot lock scrapers out.
  Connections scrapers{{.in_all = 64, .by_network = 32}};
  std::optional<HttpServer> metrics;
};

// The sentence for an exception that ends the process.
std::string sentence_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return "out of memory: raise the memory limit, or lower --slots or --threads";
  }
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again) {
    return fmt::format(
        "cannot start a thread: {}; raise the limit of processes or memory, or lower "
        "--threads",
        system->what());
  }
  return error.what();
}

// Logs why the server ends; returns the exit code.
int fail(const std::exception& error) {
  log_text(fmt::format("recurve-server: {}\n", sentence_of(error)));
  return 1;
}

// Ends the process, with a sentence, if it is still there after so long: gRPC waits for ever for a
// thread that it could not start.
void end_after(std::chrono::seconds timeout, int code, const char* sentence) {
  static std::atomic<int> exit_code;
  static std::atomic<const char*> said;
  exit_code = code;
  said = sentence;
  std::signal(SIGALRM, [](int) {
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, said, std::strlen(said));
    _exit(exit_code);
  });
  alarm(static_cast<unsigned>(timeout.count()));
}

// The exit code of the process from now on, however long the rest of its end takes.
int end(int code) {
  flush_log(kFlushTimeout);
  end_after(kEndTimeout, code, "");
  return code;
}

void drain_to_store(SharedSessions& shared, Clock::time_point deadline) {
  const SharedSessions::Moved sessions = shared.move_to_store(deadline);
  log_event(LogLevel::kInfo, "drained_to_store",
            {{"moved", sessions.moved},
             {"failed", sessions.failed},
             {"late", sessions.late},
             {"marks_left", sessions.marks}});
}

// Loads the models and serves them until a signal or a failure stops the process.
int serve_models(const Options& o, StopSignal& stop, Failure& failure, ServerCore& core,
                 std::vector<HostedModel> models, Frontends& frontends) {
  std::optional<StoreAccess> store;
  if (!o.state_store.empty()) store.emplace(o);
  ModelHost host(
      o, core, std::move(models), stop,
      [&failure](const std::string& model, const char* what, bool others_serve) {
        failure.of_model(model, what, others_serve);
      },
      store ? &*store : nullptr);
  host.load_models();
  std::optional<SharedSessions> shared;
  if (store) {
    shared.emplace(store->store(), store->seal(), store->is_checked(),
                   static_cast<int64_t>(host.models().front().loaded().plan.transfers),
                   instance_name(), core);
    core.share_sessions(&*shared);
  }
  host.start_models();

  const std::vector<Listening> listening = frontends.listening(o);
  for (const RunningModel& model : host.models()) log_text(model.table());
  log_text(listening_table(o, listening));
  for (const auto& [frontend, address, port] : listening) {
    const std::string event = frontend == "grpc" ? "serving" : "serving_" + frontend;
    log_event(LogLevel::kInfo, event, {{"listen", address}, {"port", port}});
  }

  const double seconds = stop.wait().value_or(o.drain_seconds);
  log_event(LogLevel::kInfo, "draining", {{"seconds", seconds}, {"requests", core.under_way()}});
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(seconds));
  const bool all_ended = core.drain(deadline);
  host.stop_changes();
  if (o.drain_to_store) drain_to_store(*shared, deadline);
  end_after(kShutdownTimeout, 1,  // with what is stored on the disk, as after a crash
            "recurve-server: gRPC has not stopped after 15 s, and the server ends without it; if "
            "memory or threads ran out at the start, raise their limits\n");
  if (store) store->stop();  // a call that fails is not repeated any more
  frontends.shutdown();
  alarm(0);
  core.wait_for_cancelled_calls();  // a turn that is given up leaves its session
  shared.reset();
  host.stop_engines();
  log_event(LogLevel::kInfo, "stopped", {{"all_requests_ended", all_ended}});
  return failure.happened() ? 1 : 0;
}

int run(const Options& o, StopSignal& stop) {
  check_network(o);
  check_key_files(o);
  allow_many_files();
  const HeapTrimmer trimmer;
  Metrics metrics({.models = names_of_models(o), .version = kVersion, .commit = kCommit});
  std::vector<HostedModel> models;
  ServedModels served;
  for (size_t m = 0; m < o.models.size(); ++m) {
    HostedModel& model = models.emplace_back(std::make_shared<ServedModel>(o.max_queue));
    served.push_back(model.use.begin(model.served));
  }
  Failure failure(stop);
  std::optional<Tracer> tracer;
  if (!o.traces.empty()) tracer.emplace(tracer_options(o), metrics);
  ServerCore core(core_options(o, stop, failure, tracer ? &*tracer : nullptr), served, metrics);
  Frontends frontends;
  try {
    frontends.listen(o, core);
    return end(serve_models(o, stop, failure, core, std::move(models), frontends));
  } catch (const std::exception& error) {
    return end(fail(error));
  }
}

// A file that is opened while one of the three is closed would get its number, and what is printed.
void open_standard_files() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) == -1 && errno == EBADF) open("/dev/null", O_RDWR);
  }
}

// For exceptions that no caller can catch, of threads and of destructors. It waits for no thread,
// since any may be the one that fails.
[[noreturn]] void end_with_a_sentence() {
  std::string sentence = "recurve-server: an internal error ends the server\n";
  try {
    if (const auto error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::exception& error) {
    sentence = fmt::format("recurve-server: {}\n", sentence_of(error));
  } catch (...) {
  }
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, sentence.data(), sentence.size());
  _exit(1);
}

// Privileges are given up before threads are started.
int serve(const Options& options) {
  const std::string sandbox = give_up_privileges(options);
  StopSignal stop;
  init_logging(options.log_level, options.log_format);
  log_event(LogLevel::kInfo, "sandbox", {{"what", sandbox}});
  int status = 0;
  try {
    status = run(options, stop);
  } catch (const std::exception& error) {
    status = fail(error);
  }
  flush_log(kFlushTimeout);
  return status;
}

// A library calls abort() where it cannot start a thread or allocate. The process ends when the
// handler returns.
extern "C" void log_abort(int) {
  static constexpr std::string_view kSentence =
      "recurve-server: a library ended the process: see the lines above; if memory or threads ran "
      "out, raise their limits\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kSentence.data(), kSentence.size());
}

// A file of weights was truncated, or its disk fails: its pages cannot be read. Any other SIGBUS
// ends the process as if there were no handler.
extern "C" void end_without_weights(int, siginfo_t* info, void*) {
  const char* const path = info->si_code > 0 ? MappedFile::path_at(info->si_addr) : nullptr;
  if (path == nullptr) {
    std::signal(SIGBUS, SIG_DFL);
    raise(SIGBUS);
    return;
  }
  const auto print = [](std::string_view text) {
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
  };
  print("recurve-server: ");
  print(path);
  print(
      ": weights in use cannot be read: the file was truncated, or its disk fails: restore it and "
      "start again; to change files while the server runs, start it with --map-weights off\n");
  _exit(1);
}

void handle_error_signals() {
  std::signal(SIGABRT, log_abort);
  struct sigaction action{};
  action.sa_sigaction = end_without_weights;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

int run_and_report(const Options& options) {
  std::set_terminate(end_with_a_sentence);
  handle_error_signals();
  try {
    return serve(options);
  } catch (const std::exception& error) {  // before the log has its thread
    fmt::print(stderr, "recurve-server: {}\n", sentence_of(error));
    return 1;
  }
}

}  // namespace
}  // namespace recurve

int main(int argc, char** argv) {
  recurve::open_standard_files();
  recurve::Options options;
  const int status = recurve::parse_options(argc, argv, &options);
  if (status >= 0) return status;
  return recurve::run_and_report(options);
}
