// recurve-server: options -> objects -> run. Everything is owned here, in the order of its life.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>

#include "kernels/arithmetic.h"
#include "model/load_model.h"
#include "server/crypto/encrypted_folder.h"
#include "server/engine/engine.h"
#include "server/http/openai/api.h"
#include "server/http/server.h"
#include "server/http/server_api.h"
#include "server/kserve/kserve_service.h"
#include "server/net/connections.h"
#include "server/observe/audit.h"
#include "server/observe/log.h"
#include "server/rpc/server.h"
#include "server/serving/server_core.h"
#include "server/session/state_transfer.h"
#include "server/startup/engine_options.h"
#include "server/startup/heap_trimmer.h"
#include "server/startup/memory_plan.h"
#include "server/startup/options.h"
#include "server/startup/security.h"
#include "server/startup/startup_table.h"
#include "server/startup/stop_signal.h"
#include "server/startup/token_rules.h"
#include "server/startup/version.h"
#include "server/text/tokenizers/tokenizer.h"

namespace recurve {
namespace {

// How long the process waits at its end for the reader of the log.
constexpr std::chrono::seconds kFlushTimeout(1);

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
  std::vector<HttpApi> apis = {openai_api(core), server_api(core), load_api(core)};
  if (o.http_page) apis.push_back(page_api());
  return apis;
}

// Scrapers use any name for a server, and its metrics are all they can ask for.
HttpOptions metrics_options(const Options& o, std::shared_ptr<TlsHandshaker> tls) {
  return {.listen = o.metrics,
          .max_body_bytes = 0,
          .tls = std::move(tls),
          .origins = {"*"},
          .counted = false};
}

// An instance is named by its host, which is the name of a pod, and its process.
TracerOptions tracer_options(const Options& o) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return {.target = parse_otlp_url(o.traces),
          .source = {.service = "recurve",
                     .instance = fmt::format("{}-{}", host, getpid()),
                     .version = kVersion},
          .ratio = o.trace_ratio};
}

ServerCoreOptions core_options(const Options& o, StopSignal& stop, Failure& failure,
                               Tracer* tracer) {
  return {.version = kVersion,
          .max_bytes_under_way = static_cast<int64_t>(o.request_memory),
          .max_prompt_tokens = o.max_prompt_tokens,
          .stall_seconds = o.stall_seconds,
          .max_generated_tokens = o.max_generated_tokens,
          .keys = make_keys(o),
          .tracer = tracer,
          .drain_seconds = o.drain_seconds,
          .on_drain = [&stop](double seconds) { stop.raise(seconds); },
          .on_failure = failure.listener("the server's threads")};
}

// Shows the progress of loading: every two seconds, or in place on a terminal.
class LoadProgress {
 public:
  explicit LoadProgress(const StopSignal& stop) : stop_(stop) {}
  void operator()(uint64_t done, uint64_t total) {
    if (stop_.raised()) throw std::runtime_error("stopped while loading");
    const Clock::time_point now = Clock::now();
    if (done < total && now < next_) return;
    next_ = now + (terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(2000));
    const double percent =
        total == 0 ? 100 : 100.0 * static_cast<double>(done) / static_cast<double>(total);
    log_text(fmt::format("{}loading weights {:3.0f}% of {}{}", terminal_ ? "\r" : "", percent,
                         human_bytes(static_cast<double>(total)),
                         terminal_ && done < total ? "" : "\n"));
  }

 private:
  const StopSignal& stop_;
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  Clock::time_point next_ = Clock::now() + std::chrono::milliseconds(500);
};

// Shows the progress of recording steps as CUDA graphs.
class RecordProgress {
 public:
  void operator()(int done, int total) {
    if (done < total && !terminal_) return;
    const std::chrono::duration<double> passed = Clock::now() - began_;
    log_text(fmt::format("{}recording decode steps {} of {}, {:.1f} s{}", terminal_ ? "\r" : "",
                         done, total, passed.count(), done < total ? "" : "\n"));
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  const Clock::time_point began_ = Clock::now();
};

void print_times(const Checkpoint::Times& times) {
  const double bytes = static_cast<double>(times.bytes);
  log_text(fmt::format(
      "loaded {} in {:.2f} s, {:.2f} GB/s; reading {:.2f} GB/s{}\n", human_bytes(bytes),
      times.seconds, bytes / times.seconds / 1e9, bytes / times.reading / 1e9,
      times.copying_rate == 0 ? ""
                              : fmt::format(", copying {:.2f} GB/s", times.copying_rate / 1e9)));
}

struct Loaded {
  std::unique_ptr<const Model> model;
  std::string fingerprint;  // of config and weights
  std::string weight_type;  // the formats of the weights
};

Loaded load(const Options& o, Backend& backend, const StopSignal& stop) {
  Checkpoint checkpoint = open_checkpoint(o);
  auto model = load_model(checkpoint, backend, load_options(o), LoadProgress(stop));
  print_times(checkpoint.times());
  return {std::move(model), checkpoint.fingerprint(), checkpoint.weight_formats()};
}

// Conversion between text and ids.
struct Text {
  std::shared_ptr<const Tokenizer> tokenizer;
  Chat chat;
  TokenRules rules;
};

// The folder of the tokenizer's files; none if prompts are ids only.
std::optional<std::filesystem::path> tokenizer_dir(const Options& o) {
  if (o.tokenizer == "none" || (o.tokenizer.empty() && o.random_weights)) return std::nullopt;
  return o.tokenizer.empty() ? o.model : o.tokenizer;
}

Text load_text(const Options& o, const ModelInfo& model) {
  const auto dir = tokenizer_dir(o);
  Text text;
  TokenFiles files;
  if (!dir.has_value()) {
    text.tokenizer = std::make_shared<IdTokenizer>(static_cast<int32_t>(model.vocab));
  } else {
    files = token_files(model, *dir);
    text = {.tokenizer = load_tokenizer(*dir, files), .chat = load_chat(*dir, o.chat_template)};
    check_fits(*text.tokenizer, model.vocab, *dir);
  }
  // With random weights, no id ends a text.
  if (!o.random_weights) text.rules = resolve_token_rules(model, files, *text.tokenizer);
  return text;
}

// The last part of the path to the model, without the suffix of a file.
std::string model_name(const std::filesystem::path& model) {
  if (std::filesystem::is_regular_file(model)) return model.stem().string();
  return (model / "").parent_path().filename().string();
}

ServingInfo serving_info(const Options& o, const Model& model, const Backend& backend,
                         const TokenRules& rules, const std::string& fingerprint,
                         const std::string& weight_type, int slots, size_t session_bytes) {
  ServingInfo info{.model_name = o.name.empty() ? model_name(o.model) : o.name,
                   .family = model.info().family,
                   .parameters = model.info().parameters,
                   .weight_bytes = model.info().weight_bytes,
                   .weight_type = weight_type,
                   .vocab_rows = static_cast<int32_t>(model.info().vocab),
                   .state_bytes = static_cast<int64_t>(model.state_layout().bytes()),
                   .chunk_tokens = model.info().chunk,
                   .fingerprint = fingerprint,
                   .backend = backend.name(),
                   .ops = {},
                   .tokens = rules,
                   .slots = slots,
                   .max_host_bytes = static_cast<int64_t>(session_bytes),
                   .default_ttl_seconds = o.session_ttl};
  backend.kernels().for_each([&](const char* name, const char* implementation) {
    info.ops.push_back({name, implementation});
  });
  return info;
}

std::unique_ptr<FileSystem> open_state_folder(const Options& o) {
  std::unique_ptr<FileSystem> folder = open_folder(o.state_dir);
  if (!o.state_keys.empty()) return encrypt_folder(std::move(folder), o.state_keys);
  if (is_encrypted(*folder)) {
    throw std::runtime_error("--state-dir is encrypted: give its key with --state-keys");
  }
  return folder;
}

// What a serialized state must match.
StateHeader identity_of(const Model& model, const ServingInfo& info) {
  return {.model = info.fingerprint,
          .weights = info.weight_type,
          .chunk = static_cast<int32_t>(model.info().chunk),
          .layout = model.state_layout(),
          .vocab = info.vocab_rows};
}

// What a cached state of a prompt must match as well, so that a request that starts from it
// computes the same bits: another version or device may sum in another order.
std::string made_by(const Backend& backend) {
  std::string made_by = fmt::format("{} {} {}", kVersion, kCommit, arithmetic_of(backend.name()));
  backend.kernels().for_each([&](const char* op, const char* implementation) {
    made_by += fmt::format(" {}:{}", op, implementation);
  });
  return made_by;
}

// Connects the sessions to the folder of states, and logs what is in it.
void store_sessions(const Options& o, const StateStore& states, Archive* archive,
                    SessionLimits* limits) {
  limits->archive = archive;
  limits->disk_bytes = static_cast<int64_t>(state_store_options(o).most_bytes);
  const StateStore::Usage usage = states.usage();
  log_event(LogLevel::kInfo, "state_dir",
            {{"folder", o.state_dir},
             {"records", usage.records},
             {"bytes", static_cast<int64_t>(usage.bytes)},
             {"set_aside", usage.set_aside}});
  const StateStore::Damage& damage = states.damage();
  if (damage.journal || damage.records_lost || damage.in_doubt + damage.states_gone > 0) {
    log_event(LogLevel::kError, "state_dir_damaged",
              {{"journal", damage.journal},
               {"records_lost", damage.records_lost},
               {"records_in_doubt", damage.in_doubt},
               {"states_gone", damage.states_gone}});
  }
  if (!states.not_writable().empty()) {
    log_event(LogLevel::kError, "state_dir_not_writable", {{"why", states.not_writable()}});
  }
}

// Reports in health and log when the folder of states disappears and returns.
Archive::OnLost report_loss(ServerCore& core) {
  return [&core](const std::string& why) {
    if (why.empty() == core.durable()) return;
    core.set_durable(why.empty());
    if (!why.empty()) log_event(LogLevel::kError, "state_dir_lost", {{"why", why}});
    if (why.empty()) log_event(LogLevel::kInfo, "state_dir_back", {});
  };
}

int run(const Options& o, StopSignal& stop) {
  check_network(o);
  allow_many_files();
  const HeapTrimmer trimmer;
  Metrics metrics;
  const auto served = std::make_shared<ServedModel>(o.max_queue);
  Failure failure(stop);
  std::optional<Tracer> tracer;
  if (!o.traces.empty()) tracer.emplace(tracer_options(o), metrics);
  ServerCore core(core_options(o, stop, failure, tracer ? &*tracer : nullptr), served, metrics);
  const std::shared_ptr<TlsHandshaker> tls = make_tls(o);
  RpcServer rpc(rpc_options(o, tls), core, {kserve_service()});
  std::optional<RpcServer> admin;
  if (!o.admin.empty()) admin.emplace(admin_options(o, tls), core);
  std::optional<HttpServer> http;
  if (!o.http.empty())
    http.emplace(http_options(o, tls), http_apis(o, core), core, rpc.connections());
  // Separate from clients' connections, so that these cannot lock scrapers out.
  Connections scrapers({.in_all = 64, .by_network = 32});
  std::optional<HttpServer> metrics_http;
  if (!o.metrics.empty()) {
    metrics_http.emplace(metrics_options(o, tls), std::vector{server_api(core)}, core, scrapers);
  }

  // Locks the folder of states first: loading takes long.
  std::optional<StateStore> states;
  std::optional<Archive> archive;
  if (!o.state_dir.empty()) {
    states.emplace(open_state_folder(o), state_store_options(o));
    archive.emplace(*states);
    archive->when_lost(report_loss(core));
  }

  const auto backend = make_backend(o.device, o.threads, o.activations);
  MemoryPlan plan = plan_memory(o, *backend);
  const int slots = choose_slots(o, plan);
  plan_sessions(o, slots, &plan);
  plan_prefixes(o, slots, &plan);
  const auto [model, checkpoint_fingerprint, weight_type] = load(o, *backend, stop);
  const Text text = load_text(o, model->info());
  const std::string fingerprint = model_fingerprint(checkpoint_fingerprint, tokenizer_dir(o));
  ServingInfo info =
      serving_info(o, *model, *backend, text.rules, fingerprint, weight_type, slots, plan.sessions);
  EngineOptions options = engine_options(o, slots, plan.sessions, plan.prefixes);
  options.sessions.identity = identity_of(*model, info);
  info.read_state = state_reader(options.sessions.identity);
  info.check_front = front_checker(options.sessions.identity);
  info.most_written_bytes =
      static_cast<int64_t>(most_written_bytes(model->state_layout(), info.vocab_rows, 4096));
  if (archive) store_sessions(o, *states, &*archive, &options.sessions);
  options.sessions.on_expired = [](std::string_view tenant, std::string_view name) {
    audit("session_expired", {.tenant = tenant, .key_id = {}, .peer = {}}, "OK", name);
  };
  options.sessions.model_name = info.model_name;
  options.sessions.on_other_model = [](const StoredModel& other, int sessions) {
    log_event(LogLevel::kWarning, "sessions_of_another_model",
              {{"sessions", sessions},
               {"model", other.name},
               {"fingerprint", other.fingerprint},
               {"weights", other.weights}});
  };
  options.sessions.on_state_lost = [](std::string_view tenant, std::string_view name,
                                      const std::string& why) {
    log_event(LogLevel::kError, "session_state_lost",
              {{"tenant", tenant}, {"name", name}, {"why", why}});
  };
  options.made_by = made_by(*backend);
  options.prefix.on_unreadable = [](const std::string& why) {
    log_event(LogLevel::kWarning, "prefix_not_read", {{"why", why}});
  };
  options.on_recorded = RecordProgress();
  options.on_failure = failure.listener("the engine");
  Engine engine(
      *model, *backend,
      {.rows = info.vocab_rows, .usable = text.tokenizer->size(), .eos_ids = text.rules.eos},
      served->queue, served->stats, metrics, options);
  if (const int lost = served->stats.sessions_not_restored; lost > 0) {
    log_event(LogLevel::kError, "sessions_not_restored", {{"sessions", lost}});
  }
  served->start_engine([&engine] { engine.run(); });

  log_text(startup_table(o, *model, *text.tokenizer, text.chat, *backend, info, plan, served->stats,
                         rpc.port()));
  core.serve(text.tokenizer, info, text.chat);
  log_event(LogLevel::kInfo, "serving", {{"listen", o.listen}, {"port", rpc.port()}});
  if (http)
    log_event(LogLevel::kInfo, "serving_http", {{"listen", o.http}, {"port", http->port()}});
  if (metrics_http)
    log_event(LogLevel::kInfo, "serving_metrics",
              {{"listen", o.metrics}, {"port", metrics_http->port()}});

  if (admin) {
    log_event(LogLevel::kInfo, "serving_admin", {{"listen", o.admin}, {"port", admin->port()}});
  }

  const double seconds = stop.wait().value_or(o.drain_seconds);
  log_event(LogLevel::kInfo, "draining", {{"seconds", seconds}, {"requests", core.under_way()}});
  const bool all_ended = core.drain(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                       std::chrono::duration<double>(seconds)));
  if (http) http->shutdown();
  if (admin) admin->shutdown();
  rpc.shutdown();
  served->stop_engine();
  log_event(LogLevel::kInfo, "stopped", {{"all_requests_ended", all_ended}});
  return failure.happened() ? 1 : 0;
}

// A file that is opened while one of the three is closed would get its number, and what is printed.
void open_standard_files() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) == -1 && errno == EBADF) open("/dev/null", O_RDWR);
  }
}

// Privileges are given up before threads are started.
int run_and_report(const Options& options) {
  const std::string sandbox = give_up_privileges(options);
  StopSignal stop;
  init_logging(options.log_level, options.log_format);
  log_event(LogLevel::kInfo, "sandbox", {{"what", sandbox}});
  int status = 1;
  try {
    status = run(options, stop);
  } catch (const std::exception& error) {
    log_text(fmt::format("recurve-server: {}\n", error.what()));
  }
  flush_log(kFlushTimeout);
  return status;
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
