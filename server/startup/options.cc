#include "server/startup/options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/command_line/program_page.h"
#include "server/startup/flag_values.h"
#include "server/startup/model_flags.h"
#include "server/startup/model_list.h"
#include "server/startup/models_file.h"
#include "server/startup/usage.h"
#include "server/startup/version.h"
#include "server/text/chat/chat_template.h"

namespace recurve {
namespace {

// A flag whose values have names; the default is the present value.
template <typename T>
CLI::Option* add_named(CLI::App& app, const char* name, T* value,
                       const std::map<std::string, std::type_identity_t<T>>& values,
                       const char* what) {
  std::string default_name;
  for (const auto& [value_name, one] : values) {
    if (one == *value) default_name = value_name;
  }
  return takes_names<T>(app.add_option(name, *value, what), values)->default_str(default_name);
}

void add_switch(CLI::App& app, const char* name, bool* value, const char* what) {
  add_named(app, name, value, {{"on", true}, {"off", false}}, what)->group("Service");
}

std::string milliseconds_or_auto(std::string& value) {
  constexpr double kMax = 1e9;
  if (value == "auto") {
    value = std::to_string(kAutomaticTtft);
    return {};
  }
  if (CLI::Range(0.0, kMax)(value).empty()) return {};
  return fmt::format("wanted auto or a number in [0, {}], found {}", kMax, value);
}

constexpr const char* kServerVariables = "RECURVE_SERVER_";

// RECURVE_SERVER_MAX_QUEUE=16 is --max-queue 16, unless the command line has that flag. An empty
// variable counts as not set. The prefix keeps the server's TLS files apart from those of clients
// on the same machine, which use RECURVE_TLS_CERT.
struct EnvironmentFlags {
  std::vector<std::string> arguments;  // "--max-queue=16"
  std::vector<std::string> variables;  // "RECURVE_SERVER_MAX_QUEUE", of each argument
  std::vector<std::string> unknown;    // with the prefix, but of no flag: refused, as typing errors
};

// "--max-queue": RECURVE_SERVER_MAX_QUEUE.
std::string variable_of(std::string_view flag) {
  std::string name = kServerVariables;
  for (const char c : flag.substr(2)) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

bool has_flag(const std::vector<std::string>& arguments, const std::string& flag) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& argument) {
    return argument == flag || argument.starts_with(flag + "=");
  });
}

// Kubernetes sets RECURVE_SERVER_PORT, ..._SERVICE_HOST and more for a service "recurve-server".
bool set_by_kubernetes(std::string_view variable) {
  const std::string_view rest = variable.substr(std::string_view(kServerVariables).size());
  return rest == "PORT" || rest.starts_with("PORT_") || rest.starts_with("SERVICE_");
}

// Names each option's variable, which --help then shows, and reads the variables of flags that are
// not in the arguments.
EnvironmentFlags read_environment(CLI::App& app, const std::vector<std::string>& arguments) {
  EnvironmentFlags found;
  std::set<std::string> known;
  for (CLI::Option* option : app.get_options()) {
    const std::string flag = option->get_name();  // the long one, where there is one
    const bool hidden = option->get_group().empty();
    if (!flag.starts_with("--") || flag == "--help" || flag == "--version" || hidden) continue;
    const std::string variable = variable_of(flag);
    option->envname(variable);
    known.insert(variable);
    const char* value = std::getenv(variable.c_str());
    if (value == nullptr || *value == '\0' || has_flag(arguments, flag)) continue;
    found.arguments.push_back(flag + "=" + value);
    found.variables.push_back(variable);
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view whole = *entry;
    const std::string variable(whole.substr(0, whole.find('=')));
    if (variable.starts_with(kServerVariables) && !known.contains(variable) &&
        !set_by_kubernetes(variable)) {
      found.unknown.push_back(variable);
    }
  }
  return found;
}

// The flags that name models.
struct ModelFlags {
  std::string directory;  // MODEL_DIR
  std::vector<std::string> models;
  std::string file;
  std::vector<std::string> initial_states, adapters;
};

// The models, and the flag whose default depends on another. A command line that names models
// replaces those of the environment.
void resolve(const CLI::App& app, const ModelFlags& flags,
             const std::vector<std::string>& arguments, Options* o) {
  const bool listed = has_flag(arguments, "--model"), in_file = has_flag(arguments, "--models");
  const bool named = !flags.directory.empty() || listed || in_file;
  if (!flags.directory.empty()) o->models.push_back({.path = flags.directory});
  try {
    for (const std::string& text : flags.models) {
      if (named && !listed) break;
      std::ranges::move(read_models(text), std::back_inserter(o->models));
    }
    if (!flags.file.empty() && named == in_file) {
      std::ranges::move(read_models_file(flags.file), std::back_inserter(o->models));
    }
    if (o->models.empty()) {
      throw CLI::ValidationError("MODEL_DIR is required: the directory of a checkpoint");
    }
    for (const std::string& text : flags.initial_states) {
      std::ranges::move(read_named_paths("--initial-state", text),
                        std::back_inserter(o->initial_states));
    }
    for (const std::string& text : flags.adapters) {
      std::ranges::move(read_named_paths("--adapter", text), std::back_inserter(o->adapters));
    }
    for (ModelEntry& model : o->models) {
      std::ranges::move(std::exchange(model.initial_states, {}),
                        std::back_inserter(o->initial_states));
      std::ranges::move(std::exchange(model.adapters, {}), std::back_inserter(o->adapters));
    }
    check_models(*o);
  } catch (const std::invalid_argument& error) {
    throw CLI::ValidationError(error.what());
  }
  o->model = o->models.front().path;
  if (!o->state_keys.empty() && o->state_dir.empty() && o->state_store.empty()) {
    throw CLI::ValidationError("--state-keys requires --state-dir or --state-store");
  }
  // --listen may name a socket that only some users reach: no port is opened next to it unasked.
  const bool moved = app.count("--listen") > 0 && app.count("--http") == 0;
  if (moved || o->http == "none") o->http.clear();
}

// Parses the command line and the environment: see parse_options().
int parse(CLI::App& app, int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const EnvironmentFlags environment = read_environment(app, arguments);
  arguments.insert(arguments.end(), environment.arguments.begin(), environment.arguments.end());
  std::reverse(arguments.begin(), arguments.end());  // CLI11 expects the last one first
  try {
    app.parse(std::move(arguments));
    if (!environment.unknown.empty()) {
      throw CLI::ValidationError(fmt::format(
          "{}: no flag has this variable; --help shows the variable of each flag as Env",
          fmt::join(environment.unknown, ", ")));
    }
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error);
    if (status == 0) return 0;
    if (!environment.variables.empty()) {
      fmt::print(stderr, "Flags set by the environment: {}\n",
                 fmt::join(environment.variables, ", "));
    }
    return 2;
  }
  return -1;
}

}  // namespace

int parse_options(int argc, char** argv, Options* o) {
  CLI::App app(
      "Serve a recurrent language model over gRPC and HTTP.\n"
      "Example: recurve-server weights_tools/demo/xlstm-books\n"
      "Each flag can also be set by the environment variable that is shown as Env.",
      "recurve-server");
  app.set_version_flag("-V,--version", version_line("recurve-server"),
                       "Print the version and the commit and exit");
  app.option_defaults()->always_capture_default();
  app.failure_message([](const CLI::App* program, const CLI::Error& error) {
    return fmt::format("recurve-server: {}\nRun with --help for more information.\n",
                       usage_text(*program, error));
  });

  add_page_flag(app);
  ModelFlags models;
  app.add_option("MODEL_DIR", models.directory,
                 "Load the checkpoint in this directory, as on the Hugging Face Hub: config.json, "
                 "safetensors, and tokenizer.json or tokenizer.model")
      ->type_name("DIR");
  app.add_option(
         "--model", models.models,
         "Serve the checkpoint in DIR by the name NAME, or by that of its directory; several: "
         "comma-separated, or repeat the flag. Requests choose one by its name; those that "
         "name none go to the first. Other flags are for each model; memory, disk and "
         "threads of a flag are shared. In DIR, write \\, for a comma, and \\= for an equals "
         "sign that only letters, digits, '.', '_' and '-' precede")
      ->type_name("[NAME=]DIR")
      ->allow_extra_args(false)
      ->group("Model");
  app.add_option("--models", models.file,
                 "Serve the models of this TOML file, too: for each a table [NAME] with path, with "
                 "adapters and initial_states, tables of names and paths, and "
                 "with device, weights, map_weights, slots, kv_memory, session_memory or "
                 "prefix_memory where it is to differ from the flag of that name; default: none")
      ->type_name("FILE")
      ->group("Model");
  app.add_option("--model-root", o->model_root,
                 "Allow administrators to load models from directories below DIR, and to unload "
                 "models, while the server runs: `recurve models`; default: not allowed")
      ->type_name("DIR")
      ->group("Model");
  app.add_option(
         "--adapter", models.adapters,
         "Read a LoRA adapter that requests and sessions can choose, by the name NAME: a folder "
         "with adapter_config.json and adapter_model.safetensors, as PEFT writes it. Of the model "
         "MODEL, or of the first; several: comma-separated, or repeat the flag; quoting as in "
         "--model")
      ->type_name("[MODEL:]NAME=DIR")
      ->allow_extra_args(false)
      ->group("Model");
  app.add_flag("--random-weights", o->random_weights,
               "Use random weights, for benchmarks: MODEL_DIR is a config.json or a directory with "
               "one, and prompts must be token ids")
      ->group("Model");
  app.add_option("--tokenizer", o->tokenizer,
                 "Read tokenizer and chat template from this directory; default: the model's; "
                 "none: no tokenizer, prompts must be token ids")
      ->type_name("DIR")
      ->group("Model");
  app.add_option("--chat-template", o->chat_template,
                 "Use this chat template instead of the model's: a file, or one of " +
                     chat_template_names())
      ->type_name("FILE")
      ->group("Model");
  add_named(app, "--reasoning", &o->reasoning, {{"auto", true}, {"off", false}},
            "Separate the reasoning of a model from the text of its answers, if the chat template "
            "has tags for it: auto or off; off: it is part of the text")
      ->group("Model");
  app.add_option("--name", o->name,
                 "Name of the model in answers; default: the name of its directory")
      ->group("Model");
  const std::vector<std::string> formats = weights_values();
  app.add_option("--weights", o->weights,
                 "Format of the weights of linear layers in memory; int8 and int4 have a scale for "
                 "each 64 columns. With the family gla, prefer int8: int4 increases the bits per "
                 "byte of a text by up to 3 %. auto: bf16, or the format of a quantized checkpoint")
      ->check(CLI::IsMember(formats))
      ->group("Model");
  app.add_option("--head-weights", o->head_weights,
                 "Format of the embedding and the head; default: as --weights")
      ->check(CLI::IsMember(formats))
      ->group("Model");
  add_named(app, "--map-weights", &o->map_weights, map_weights_values(),
            "Use weights in place, in the mapped files, where these have them in the format of "
            "memory, as those of `python -m weights_tools quantize` do; others are copied. Files "
            "in use must not be changed. auto: if all weights take more than half of the free "
            "memory. GPUs always copy")
      ->group("Model");
  add_named(app, "--activations", &o->activations,
            {{"f32", ActivationType::kF32},
             {"bf16", ActivationType::kBF16},
             {"int8", ActivationType::kInt8}},
            "Narrowest type to which the CPU may round the inputs of linear layers, where its "
            "products are faster: bf16 applies to weights in bf16, int8 also to weights in int8 "
            "and int4. Makes prompts faster and results less exact")
      ->group("Model");
  add_named(app, "--state", &o->state, {{"f32", DType::kF32}, {"bf16", DType::kBF16}},
            "Type of states that are matrices; bf16 halves their memory and traffic and rounds "
            "them after every token")
      ->group("Model");
  add_named(app, "--kv", &o->kv, {{"bf16", DType::kBF16}, {"f32", DType::kF32}},
            "Type of keys and values of attention over a whole session")
      ->group("Model");

  app.add_option("--device", o->device,
                 "Compute on cpu, cuda:N (if built with CUDA), or reference, the slow definition "
                 "of every op")
      ->group("Machine");
  app.add_option("--threads", o->threads,
                 "Threads of the CPU backend; 0: one for each core within the CPU quota of the "
                 "container")
      ->check(CLI::Range(0, 1024))
      ->group("Machine");
  or_auto(
      app.add_option("--slots", o->slots,
                     "Sequences that can run at once; each has one state. auto: 16, or on a GPU as "
                     "many as fit its free memory, at most 256"),
      count_or_auto, "INT")
      ->group("Machine");
  or_auto(app.add_option("--kv-memory", o->kv_memory,
                         "Device memory for keys and values of attention over whole sessions, e.g. "
                         "4GB; a request waits until enough of it is free. auto: on a GPU all free "
                         "memory, on the host an eighth of it"),
          size_or_auto, "SIZE")
      ->group("Machine");
  or_auto(app.add_option("--rows-per-step", o->rows_per_step,
                         "Maximum tokens of all sequences in one step; more make prompts faster. "
                         "auto: 256, or on a GPU 1024"),
          count_or_auto, "INT")
      ->group("Machine");
  app.add_option("--tpot-ms", o->tpot_ms,
                 "Target time between two tokens of a stream, in milliseconds: a step computes "
                 "only as many tokens of prompts as fit into it, at least one chunk; 0: no limit")
      ->check(CLI::Range(0.0, 1e6))
      ->group("Machine");
  or_auto(
      app.add_option("--ttft-ms", o->ttft_ms,
                     "Target time to the first token, in milliseconds: a request that other "
                     "requests would delay beyond it gets RESOURCE_EXHAUSTED with the time after "
                     "which to retry; 0: requests wait. auto: 500, or four times what the request "
                     "takes alone if that is more; 10000 in the first second of a queue"),
      milliseconds_or_auto, "FLOAT")
      ->group("Machine");

  app.add_option("--listen", o->listen,
                 "Serve gRPC on HOST:PORT or unix:PATH; port 0: any free port, which the log shows")
      ->type_name("HOST:PORT")
      ->group("Service");
  app.add_option("--http", o->http,
                 "Serve HTTP on HOST:PORT: OpenAI's API (/v1/models, /v1/completions, "
                 "/v1/chat/completions, /v1/responses), Anthropic's (/v1/messages), /v1/sessions, "
                 "/tokenize, /health, /metrics, and a page at /; none: no HTTP. Default: "
                 "127.0.0.1:8000, or none if --listen is given")
      ->type_name("HOST:PORT")
      ->default_str("")
      ->group("Service");
  app.add_option("--http-origin", o->http_origins,
                 "Allow pages of https://HOST[:PORT] to use --http, and HOST as its name; HOST "
                 "alone allows the name; *: all. Always allowed: addresses, localhost, names of "
                 "one part, names under .internal and .svc. Several: comma-separated, or repeat "
                 "the flag")
      ->delimiter(',')
      ->default_str("")
      ->group("Service");
  add_switch(app, "--http-page", &o->http_page, "Serve a page to try the model at / of --http");
  app.add_option("--http-comment-ms", o->http_comment_ms,
                 "Send a comment in a stream of --http that was silent for this time, so that no "
                 "proxy closes it; milliseconds")
      ->check(CLI::Range(1, 15'000))
      ->group("Service");
  app.add_option("--metrics", o->metrics,
                 "Serve /metrics for Prometheus and /health on HOST:PORT, and nothing else; "
                 "default: none")
      ->type_name("HOST:PORT")
      ->group("Service");
  auto* cert =
      app.add_option("--tls-cert", o->tls_cert,
                     "PEM file with the server's certificate chain: --listen, --http and --metrics "
                     "then accept TLS only, except on local sockets. Read again when it changes")
          ->type_name("FILE");
  auto* key = app.add_option("--tls-key", o->tls_key, "PEM file with the key of --tls-cert")
                  ->type_name("FILE");
  cert->needs(key)->group("Service");
  key->needs(cert)->group("Service");
  app.add_option("--tls-client-ca", o->tls_client_ca,
                 "Require client certificates that a certificate in this PEM file has signed; "
                 "default: not required")
      ->type_name("FILE")
      ->needs(cert)
      ->group("Service");
  app.add_option("--keys", o->keys,
                 "File of keys, as `recurve keys new` writes it. A client needs one of them, or a "
                 "client certificate that the file names, for everything but health. Read again "
                 "when it changes; default: none, every client may do everything")
      ->type_name("FILE")
      ->group("Service");
  app.add_option("--admin", o->admin,
                 "Serve gRPC for operators on HOST:PORT: load, drain, reflection and aborting "
                 "requests of other tenants are then available only there; default: on --listen")
      ->type_name("HOST:PORT")
      ->group("Service");
  app.add_flag("--insecure-network", o->insecure_network,
               "Allow addresses that other machines can reach, without TLS or without keys")
      ->group("Service");
  add_switch(app, "--sandbox", &o->sandbox,
             "Drop the rights to open files and connections that no flag names, start programs and "
             "use other system calls, by Landlock and seccomp where available; on a CPU only");
  app.add_option("--max-queue", o->max_queue,
                 "Requests that may wait for a slot; further ones get RESOURCE_EXHAUSTED")
      ->check(CLI::Range(0, 1 << 24))
      ->group("Service");
  app.add_option("--request-memory", o->request_memory,
                 "Bytes of all request messages in progress, e.g. 256MB; a message that does not "
                 "fit gets RESOURCE_EXHAUSTED")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(uint64_t{1} << 20, uint64_t{1} << 40))
      ->group("Service");
  app.add_option("--stall-seconds", o->stall_seconds,
                 "End a request whose client does not read its answer, or does not send its text, "
                 "for this time; seconds")
      ->check(CLI::Range(0.1, 86400.0))
      ->group("Service");
  app.add_option("--max-prompt-tokens", o->max_prompt_tokens, "Longest prompt, in tokens")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->group("Service");
  app.add_option("--max-generated-tokens", o->max_generated_tokens, "Longest answer, in tokens")
      ->check(CLI::Range(1, 1 << 30))
      ->group("Service");
  app.add_option("--max-tokens-default", o->max_tokens_default,
                 "Longest answer of a chat or response whose request has no max_tokens, in tokens; "
                 "0: that of --max-generated-tokens")
      ->check(CLI::Range(0, 1 << 30))
      ->group("Service");
  app.add_option("--max-message-bytes", o->max_message_bytes,
                 "Largest request message, e.g. 16MB; larger ones get RESOURCE_EXHAUSTED")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(uint64_t{1024}, uint64_t{INT32_MAX}))
      ->group("Service");
  or_auto(app.add_option(
              "--max-connections", o->max_connections,
              "Connections at once; further ones are closed on accept. auto: as the limit of "
              "open files allows, at most 10000"),
          count_or_auto, "INT")
      ->group("Service");
  or_auto(
      app.add_option("--max-connections-by-address", o->max_connections_by_address,
                     "Connections from one address, or one IPv6 network of 64 bits. auto: half of "
                     "--max-connections"),
      count_or_auto, "INT")
      ->group("Service");
  add_switch(app, "--request-compression", &o->request_compression,
             "Accept compressed request messages, which may expand to much memory");
  add_switch(app, "--reflection", &o->reflection, "Offer gRPC server reflection");
  app.add_option("--drain-seconds", o->drain_seconds,
                 "Time for running requests to end after SIGTERM; seconds")
      ->check(CLI::Range(0.0, 86400.0))
      ->group("Service");

  or_auto(app.add_option("--session-memory", o->session_memory,
                         "Host memory for sessions and marks, e.g. 4GB; each reserves host memory "
                         "for its state. auto: half of the host memory that is free after "
                         "everything else, within control group and resource limits"),
          size_or_auto, "SIZE")
      ->group("Sessions");
  app.add_option("--session-ttl", o->session_ttl,
                 "Close a session after this time without use; seconds; 0: never")
      ->check(CLI::Range(0.0, 1e9))
      ->group("Sessions");

  or_auto(app.add_option("--prefix-memory", o->prefix_memory,
                         "Most host memory for cached states of prompts, which prompts with the "
                         "same prefix reuse, e.g. 4GB; 0: no cache. They use what sessions have "
                         "not reserved of --session-memory or, if that is more, of this. auto: "
                         "--session-memory and an eighth of the host memory that is free before "
                         "sessions, at most 4096 states"),
          size_or_auto, "SIZE")
      ->group("Sessions");
  app.add_flag("--prefix-shared", o->prefix_shared,
               "Share cached states of prompts between tenants: the time to the first token then "
               "reveals which prompts other tenants have sent")
      ->group("Sessions");
  app.add_option(
         "--initial-state", models.initial_states,
         "Read a state from which requests and sessions can start, by the name NAME: an "
         "exported session of the same model, or a tuned state of RWKV-7 that `python -m "
         "weights_tools convert` has written. Of the model MODEL, or of the first; several: "
         "comma-separated, or repeat the flag; quoting as in --model")
      ->type_name("[MODEL:]NAME=FILE")
      ->allow_extra_args(false)
      ->group("Sessions");
  app.add_option("--state-dir", o->state_dir,
                 "Folder for sessions and cached prefixes: durable sessions survive a restart or a "
                 "crash, and other states move there when host memory is short; default: none")
      ->type_name("DIR")
      ->group("Sessions");
  app.add_option("--state-keys", o->state_keys,
                 "Encrypt --state-dir, and states in --state-store, with the keys in this file, as "
                 "`recurve keys state new` writes it: the first key encrypts the key of each "
                 "tenant, the others decrypt keys that were encrypted with them; default: not "
                 "encrypted")
      ->type_name("FILE")
      ->group("Sessions");
  or_auto(
      app.add_option("--state-disk", o->state_disk,
                     "Maximum bytes of --state-dir, e.g. 40GB; a durable session reserves twice "
                     "the bytes of its state. auto: its present size and half of the free space"),
      size_or_auto, "SIZE")
      ->group("Sessions");

  auto* store =
      app.add_option("--state-store", o->state_store,
                     "Object store for sessions of durability remote, which several servers share, "
                     "as s3://BUCKET/PREFIX. Credentials and region are those of AWS's environment "
                     "variables and files; default: none")
          ->type_name("URL")
          ->group("Sessions");
  app.add_option("--state-endpoint", o->state_endpoint,
                 "Address of the server of --state-store, as https://HOST[:PORT]; default: AWS's "
                 "own of the region")
      ->type_name("URL")
      ->needs(store)
      ->group("Sessions");
  app.add_option("--prefix-store", o->prefix_store,
                 "Most bytes of cached states of prompts in --state-store, for each model, e.g. "
                 "100GB: servers that compute the same bits share them. 0: none; default: 0")
      ->transform(CLI::AsSizeValue(false))
      ->needs(store)
      ->type_name("SIZE")
      ->group("Sessions");
  app.add_flag("--state-store-optional", o->state_store_optional,
               "Start although --state-store cannot be used: durability remote is then refused "
               "until it can")
      ->needs(store)
      ->group("Sessions");

  app.add_flag(
         "--drain-to-store", o->drain_to_store,
         "Before the server ends, move all sessions to --state-store, within --drain-seconds: "
         "other servers continue them")
      ->needs(store)
      ->group("Sessions");

  add_named(app, "--log-level", &o->log_level,
            {{"debug", LogLevel::kDebug},
             {"info", LogLevel::kInfo},
             {"warning", LogLevel::kWarning},
             {"error", LogLevel::kError},
             {"off", LogLevel::kOff}},
            "Level of the log, which goes to standard error")
      ->group("Logs");
  add_named(app, "--log-format", &o->log_format,
            {{"text", LogFormat::kText}, {"json", LogFormat::kJson}},
            "Format of the log: one line for each event")
      ->group("Logs");
  app.add_option("--traces", o->traces,
                 "Send spans to the OpenTelemetry collector at http://HOST[:PORT], OTLP over HTTP; "
                 "default: none")
      ->group("Logs");
  app.add_option("--trace-ratio", o->trace_ratio,
                 "Sampling ratio of requests without a trace context; a trace context has the "
                 "client's decision")
      ->check(CLI::Range(0.0, 1.0))
      ->group("Logs");

  app.final_callback([&] { resolve(app, models, {argv + 1, argv + argc}, o); });
  return parse(app, argc, argv);
}

}  // namespace recurve
