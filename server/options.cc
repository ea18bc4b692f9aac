#include "server/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <string>
#include <type_traits>

#include "kernels/weight_formats.h"
#include "server/environment.h"
#include "server/flag_values.h"
#include "server/rpc/server.h"
#include "server/text/chat_forms.h"
#include "server/version.h"

namespace recurve {
namespace {

// A flag whose values have names; its default is the value as it is.
template <typename T>
CLI::Option* add_named(CLI::App& app, const char* name, T* value,
                       const std::map<std::string, std::type_identity_t<T>>& values,
                       const char* what) {
  std::string otherwise;
  for (const auto& [of_value, one] : values) {
    if (one == *value) otherwise = of_value;
  }
  return takes_names<T>(app.add_option(name, *value, what), values)->default_str(otherwise);
}

void add_switch(CLI::App& app, const char* name, bool* value, const char* what) {
  add_named(app, name, value, {{"on", true}, {"off", false}}, what)->group("Service");
}

// Returns what is wrong with it, or makes it a number.
std::string count_or_auto(std::string& value) {
  if (value == "auto") value = "0";
  return CLI::Range(0, 1 << 20)(value);
}
std::string size_or_auto(std::string& value) {
  if (value != "auto") return CLI::AsSizeValue(false)(value);
  value = std::to_string(kAutomatic);
  return {};
}

// A flag that is "auto" unless told. KIND: what else it takes, as the help names it.
CLI::Option* or_auto(CLI::Option* flag, std::string (*read)(std::string&), const char* kind) {
  return flag->transform(CLI::Validator(read, ""))
      ->type_name(std::string(kind) + "|auto")
      ->default_str("auto");
}

// Parses the command line, and from the environment what it leaves open: see parse_options().
int parse(CLI::App& app, int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const EnvironmentFlags environment = read_environment(app, arguments);
  arguments.insert(arguments.end(), environment.arguments.begin(), environment.arguments.end());
  std::reverse(arguments.begin(), arguments.end());  // which is how CLI11 wants them
  try {
    app.parse(std::move(arguments));
    if (!environment.unknown.empty()) {
      throw CLI::ValidationError(
          fmt::format("{}: no flag has that variable; --help names each flag's, as Env",
                      fmt::join(environment.unknown, ", ")));
    }
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error);
    if (status == 0) return 0;
    if (!environment.variables.empty()) {
      fmt::print(stderr, "Flags that come from the environment: {}\n",
                 fmt::join(environment.variables, ", "));
    }
    return 2;
  }
  return -1;
}

}  // namespace

int parse_options(int argc, char** argv, Options* o) {
  CLI::App app(
      "Serves a recurrent language model over gRPC.\n"
      "Example: recurve-server --model weights_tools/demo/xlstm-books --listen 127.0.0.1:50051\n"
      "What the command line leaves open may stand in the environment: each flag names its\n"
      "variable, as Env.");
  app.set_version_flag("--version", version_line("recurve-server"),
                       "Print the version and the commit and exit");
  app.option_defaults()->always_capture_default();

  app.add_option(
         "--model", o->model,
         "Checkpoint: a directory as on the Hugging Face Hub, with config.json, safetensors "
         "and tokenizer.json or tokenizer.model")
      ->required()
      ->group("Model");
  app.add_flag("--random-weights", o->random_weights,
               "For benchmarks: --model is a config.json alone, or a directory with one; weights "
               "are random, and prompts must be token ids")
      ->group("Model");
  app.add_option("--tokenizer", o->tokenizer,
                 "Directory with the tokenizer and chat template, where they are not the model's; "
                 "none: there is none, and prompts must be token ids")
      ->group("Model");
  app.add_option("--chat-template", o->chat_template,
                 "Chat template, where the model has none or another one is wanted: a file, or one "
                 "of " +
                     chat_form_names())
      ->group("Model");
  app.add_option("--name", o->name, "Name to show for the model; default: the directory's")
      ->group("Model");
  std::vector<std::string> formats = {"auto"};
  for (const WeightFormat* format : kWeightFormats) formats.emplace_back(format->name);
  app.add_option("--weights", o->weights,
                 "Format of the weights of linear layers in memory; int8 and int4 keep a scale for "
                 "64 columns, on the CPU. auto: bf16, or as the checkpoint was quantized")
      ->check(CLI::IsMember(formats))
      ->group("Model");
  app.add_option("--head-weights", o->head_weights,
                 "The same of the embedding and the head; default: as --weights")
      ->check(CLI::IsMember(formats))
      ->group("Model");
  add_named(app, "--activations", &o->activations,
            {{"f32", ActivationType::kF32},
             {"bf16", ActivationType::kBF16},
             {"int8", ActivationType::kInt8}},
            "Narrowest type that linear layers of the CPU may round what they read to, where "
            "the processor is of a kind that multiplies it sooner: bf16 beside weights in bf16; "
            "int8 that, and eight bits beside weights in int8 and int4. Faster, above all prompts, "
            "and less exact")
      ->group("Model");
  add_named(app, "--state", &o->state, {{"f32", DType::kF32}, {"bf16", DType::kBF16}},
            "Type of the states that are matrices; bf16 halves their memory and traffic and "
            "rounds them after every token")
      ->group("Model");

  app.add_option("--device", o->device,
                 "cpu; cuda:N where built with CUDA; or reference, the slow definition of every op")
      ->group("Machine");
  app.add_option(
         "--threads", o->threads,
         "Threads of the CPU backend; 0: one a core, of those that the quota of a container leaves")
      ->check(CLI::Range(0, 1024))
      ->group("Machine");
  or_auto(app.add_option(
              "--slots", o->slots,
              "Sequences that can run at once; each holds one state. auto: 16, or on a GPU as "
              "many as fit its free memory, 256 at most"),
          count_or_auto, "INT")
      ->group("Machine");
  or_auto(app.add_option(
              "--rows-per-step", o->rows_per_step,
              "Tokens computed in one step at most, of all sequences together; more make prompts "
              "faster. auto: 256, or on a GPU 1024"),
          count_or_auto, "INT")
      ->group("Machine");
  app.add_option("--tpot-ms", o->tpot_ms,
                 "Time between two tokens of a stream to keep to: prompts get as many tokens of a "
                 "step as fit into it, at least a chunk; 0: all they can")
      ->check(CLI::Range(0.0, 1e6))
      ->group("Machine");
  app.add_option("--ttft-ms", o->ttft_ms,
                 "Time to the first token to keep to: a request that others would make later gets "
                 "RESOURCE_EXHAUSTED at once, with the time after which to try again; 0: they wait")
      ->check(CLI::Range(0.0, 1e9))
      ->group("Machine");

  app.add_option("--listen", o->listen, "HOST:PORT or unix:PATH to serve on; port 0: any free one")
      ->group("Service");
  app.add_option("--http", o->http,
                 "HOST:PORT for clients of OpenAI's API and browsers: /v1/models, /v1/completions, "
                 "/v1/chat/completions, /v1/responses, /v1/sessions, /tokenize, /health, /metrics, "
                 "and a page at /; default: none")
      ->group("Service");
  app.add_option(
         "--http-origin", o->http_origins,
         "https://HOST[:PORT] whose pages may use --http, and by whose name it may be called, or "
         "HOST for the name alone; *: all. Addresses, localhost, names of one part and names under "
         ".internal and .svc need not be named. Several: comma-separated, or again")
      ->delimiter(',')
      ->default_str("")
      ->group("Service");
  add_switch(app, "--http-page", &o->http_page, "A page to try the model, at / of --http");
  app.add_option(
         "--http-comment-ms", o->http_comment_ms,
         "Send a comment in a stream of --http that has been silent for so long, so that no "
         "proxy cuts it; milliseconds")
      ->check(CLI::Range(1, 15'000))
      ->group("Service");
  app.add_option("--metrics", o->metrics,
                 "HOST:PORT for /metrics, which Prometheus reads, and /health, and nothing else; "
                 "default: none")
      ->group("Service");
  auto* cert =
      app.add_option("--tls-cert", o->tls_cert,
                     "File of PEM with the server's certificate and those between it and a "
                     "root: --listen, --http and --metrics speak TLS alone, but on sockets of this "
                     "machine. Read again whenever it changes");
  auto* key = app.add_option("--tls-key", o->tls_key, "File of PEM with its key");
  cert->needs(key)->group("Service");
  key->needs(cert)->group("Service");
  app.add_option("--tls-client-ca", o->tls_client_ca,
                 "File of PEM with the certificates that must have signed those of clients; "
                 "default: clients need none")
      ->needs(cert)
      ->group("Service");
  app.add_option("--keys", o->keys,
                 "File of keys, as `recurve keys new` writes it: without one of them, or a "
                 "certificate that the file names, a client is told nothing but health. Read again "
                 "whenever it changes; default: none, and whoever reaches the server may do all")
      ->group("Service");
  app.add_option("--admin", o->admin,
                 "HOST:PORT for operators, with gRPC: load, drain, others' aborts and reflection "
                 "are there, and nowhere else; default: with all the rest")
      ->group("Service");
  app.add_flag("--insecure-network", o->insecure_network,
               "Listen on addresses that other machines reach without TLS, or without keys")
      ->group("Service");
  add_switch(app, "--sandbox", &o->sandbox,
             "Give up what a server of a CPU has no use for: files that the other flags do not "
             "name, programs, connections to elsewhere; where the system's Landlock and seccomp "
             "can");
  app.add_option("--max-queue", o->max_queue,
                 "Requests that may wait for a slot; further ones get RESOURCE_EXHAUSTED")
      ->check(CLI::Range(0, 1 << 24))
      ->group("Service");
  app.add_option("--request-memory", o->request_memory,
                 "Bytes of request messages under way, all together, e.g. 256MB; what does not fit "
                 "gets RESOURCE_EXHAUSTED")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(uint64_t{1} << 20, uint64_t{1} << 40))
      ->group("Service");
  app.add_option("--stall-seconds", o->stall_seconds,
                 "Time that a slot waits for a client that reads nothing of its answer, or sends "
                 "nothing of its text; then its request is ended")
      ->check(CLI::Range(0.1, 86400.0))
      ->group("Service");
  app.add_option("--max-prompt-tokens", o->max_prompt_tokens, "Longest prompt, in tokens")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->group("Service");
  app.add_option("--max-generated-tokens", o->max_generated_tokens, "Longest answer, in tokens")
      ->check(CLI::Range(1, 1 << 30))
      ->group("Service");
  app.add_option("--max-message-bytes", o->max_message_bytes,
                 "Largest request message, e.g. 16MB; larger ones get RESOURCE_EXHAUSTED")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(uint64_t{1024}, static_cast<uint64_t>(kMostMessageBytes)))
      ->group("Service");
  or_auto(app.add_option(
              "--max-connections", o->max_connections,
              "Connections at once; further ones are closed as they come. auto: what the limit "
              "of open files leaves, 10000 at most"),
          count_or_auto, "INT")
      ->group("Service");
  or_auto(app.add_option(
              "--max-connections-by-address", o->max_connections_by_address,
              "Of those, from one address, or one IPv6 network of 64 bits. auto: half of all"),
          count_or_auto, "INT")
      ->group("Service");
  add_switch(app, "--request-compression", &o->request_compression,
             "Take compressed request messages, of which a small one may take much memory");
  add_switch(app, "--reflection", &o->reflection,
             "Tell clients that ask which services and messages there are");
  app.add_option("--drain-seconds", o->drain_seconds,
                 "Time that requests under way have to end after SIGTERM")
      ->check(CLI::Range(0.0, 86400.0))
      ->group("Service");

  or_auto(app.add_option(
              "--session-memory", o->session_memory,
              "Host memory for sessions and marks, e.g. 4GB; each of them reserves its state "
              "outside a slot and all else that it may take. auto: half of what the host, its "
              "control group and resource limits leave beside everything else"),
          size_or_auto, "SIZE")
      ->group("Sessions");
  app.add_option("--session-ttl", o->session_ttl,
                 "Seconds of idleness after which a session is closed; 0: never")
      ->check(CLI::Range(0.0, 1e9))
      ->group("Sessions");

  or_auto(app.add_option(
              "--prefix-memory", o->prefix_memory,
              "Host memory for states that prompts leave, from which prompts that begin alike "
              "start, e.g. 4GB; 0: none are kept. auto: an eighth of what the host leaves "
              "beside everything else but sessions, 4096 states at most"),
          size_or_auto, "SIZE")
      ->group("Sessions");
  app.add_flag("--prefix-shared", o->prefix_shared,
               "Prompts of one tenant may start from states that another's have left: how long a "
               "prompt takes tells then what others have asked")
      ->group("Sessions");
  auto* states =
      app.add_option(
             "--state-dir", o->state_dir,
             "Folder for sessions: durable ones are there after the server ends, however it "
             "ends, and others' states move there where host memory is short. States that "
             "prompts leave go there too, for this server and the next; default: none")
          ->group("Sessions");
  app.add_option("--state-keys", o->state_keys,
                 "File of keys, as `recurve keys state new` makes it: what is in --state-dir is "
                 "encrypted by keys, one for each tenant, that are wrapped with its first one; the "
                 "others open what was wrapped with them; default: it is not encrypted")
      ->needs(states)
      ->group("Sessions");
  or_auto(app.add_option(
              "--state-disk", o->state_disk,
              "Bytes that --state-dir may take, e.g. 40GB; a durable session reserves twice its "
              "state. auto: what it has and half of what is free there"),
          size_or_auto, "SIZE")
      ->group("Sessions");

  add_named(app, "--log-level", &o->log_level,
            {{"debug", LogLevel::kDebug},
             {"info", LogLevel::kInfo},
             {"warning", LogLevel::kWarning},
             {"error", LogLevel::kError},
             {"off", LogLevel::kOff}},
            "Logs go to standard error")
      ->group("Logs");
  add_named(app, "--log-format", &o->log_format,
            {{"text", LogFormat::kText}, {"json", LogFormat::kJson}}, "One line an event")
      ->group("Logs");
  app.add_option("--traces", o->traces,
                 "http://HOST[:PORT] of an OpenTelemetry collector that takes OTLP over HTTP; "
                 "default: none")
      ->group("Logs");
  app.add_option("--trace-ratio", o->trace_ratio,
                 "Of requests whose clients name no trace, the part that is traced; of others, "
                 "those that their clients trace are")
      ->check(CLI::Range(0.0, 1.0))
      ->group("Logs");

  return parse(app, argc, argv);
}

}  // namespace recurve
