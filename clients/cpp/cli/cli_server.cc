#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>

#include "clients/cpp/cli/cli.h"
#include "clients/cpp/cli/cli_io.h"

// info, health and abort.
namespace recurve {
namespace {

std::string bytes_text(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) return fmt::format("{:.2f} GiB", value / (1 << 30));
  if (bytes >= int64_t{1} << 20) return fmt::format("{:.2f} MiB", value / (1 << 20));
  if (bytes >= int64_t{1} << 10) return fmt::format("{:.1f} KiB", value / (1 << 10));
  return fmt::format("{} bytes", bytes);
}

std::string seconds_text(double seconds) {
  if (seconds < 120) return fmt::format("{:.0f} s", seconds);
  if (seconds < 2 * 3600) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

void row(std::string& table, std::string_view name, const std::string& value) {
  table += fmt::format("  {:<22} {}\n", name, value);
}

std::string state_name(v1::ServerState state) {
  switch (state) {
    case v1::SERVER_STATE_LOADING:
      return "loading";
    case v1::SERVER_STATE_SERVING:
      return "serving";
    case v1::SERVER_STATE_DRAINING:
      return "draining";
    default:
      return "unknown";
  }
}

void append_server(std::string& table, const std::string& address, const v1::ServerInfo& info) {
  const auto& limits = info.limits();
  table += "server\n";
  row(table, "address", address);
  row(table, "version", info.version());
  row(table, "state",
      fmt::format("{}, up {}", state_name(info.state()), seconds_text(info.uptime_seconds())));
  row(table, "slots", fmt::format("{}", limits.slots()));
  row(table, "queue", fmt::format("{} requests", limits.max_queue()));
  row(table, "message", fmt::format("{} at most", bytes_text(limits.max_message_bytes())));
  row(table, "prompt", fmt::format("{} tokens at most", limits.max_prompt_tokens()));
  row(table, "answer",
      fmt::format("{} tokens, {} choices at most", limits.max_generated_tokens(),
                  limits.max_choices()));
  row(table, "stop",
      fmt::format("{} texts of {} bytes, {} ids at most", limits.max_stop_strings(),
                  limits.max_stop_string_bytes(), limits.max_stop_token_ids()));
  row(table, "log-probabilities", fmt::format("{} a token at most", limits.max_logprobs()));
  row(table, "session states",
      fmt::format("{} of host memory", bytes_text(limits.max_host_bytes())));
  row(table, "idle sessions close",
      limits.default_ttl_seconds() > 0 ? "after " + seconds_text(limits.default_ttl_seconds())
                                       : std::string("never"));
}

std::string ids_text(const google::protobuf::RepeatedField<int32_t>& ids) {
  return ids.empty() ? "none" : fmt::format("{}", fmt::join(ids, ", "));
}

void append_model(std::string& table, const v1::ModelInfo& info) {
  table += "model\n";
  row(table, "name", info.name());
  row(table, "family", info.family());
  row(table, "parameters",
      fmt::format("{:.2f} million, {}, {}", static_cast<double>(info.parameters()) / 1e6,
                  info.weight_type(), bytes_text(info.weight_bytes())));
  std::string state = bytes_text(info.state_bytes());
  if (info.state_bytes_per_token() > 0) {
    state += fmt::format(" and {} a token, up to {} tokens",
                         bytes_text(info.state_bytes_per_token()), info.max_session_tokens());
  }
  row(table, "state of a session", state);
  row(table, "chat",
      info.has_chat_template()               ? "messages"
      : info.chat_template_problem().empty() ? "no template: text only"
                                             : info.chat_template_problem());
  row(table, "tokenizer",
      fmt::format("{}; {} tokens, {} logits", info.tokenizer(), info.token_count(),
                  info.vocab_size()));
  row(table, "begin id", info.has_bos_id() ? std::to_string(info.bos_id()) : "none");
  row(table, "end ids", ids_text(info.eos_ids()));
  for (const auto& initial : info.initial_states()) {
    row(table, "initial state",
        fmt::format("{}, {} tokens, {}", initial.name(), initial.position(),
                    bytes_text(initial.state_bytes())));
  }
  for (const auto& adapter : info.adapters()) {
    row(table, "adapter",
        fmt::format("{}, rank {}, {} matrices, {}", adapter.name(), adapter.rank(),
                    adapter.matrices(), bytes_text(adapter.bytes())));
  }
  row(table, "prompt grid", fmt::format("{} tokens", info.chunk_tokens()));
  row(table, "fingerprint", info.fingerprint().empty() ? "none" : info.fingerprint());
  row(table, "backend", info.backend());
  for (const auto& op : info.ops()) row(table, "  " + op.name(), op.implementation());
}

void append_load(std::string& table, const v1::Load& load) {
  table += "load\n";
  row(table, "requests",
      fmt::format("{} running, {} waiting of {}", load.requests_running(), load.requests_waiting(),
                  load.max_queue()));
  row(table, "slots",
      fmt::format("{} free, {} running, {} held by sessions, of {}", load.slots().free(),
                  load.slots().running(), load.slots().idle_session(), load.slots().total()));
  if (load.has_pages()) {
    row(table, "pages",
        fmt::format("{} free of {} ({}); {} requests preempted", load.pages().free(),
                    load.pages().total(), bytes_text(load.pages().bytes()),
                    load.pages().preemptions()));
  }
  row(table, "sessions",
      fmt::format("{}, and {} stored responses; {} in host memory ({})", load.sessions().total(),
                  load.sessions().responses(), load.sessions().host(),
                  bytes_text(load.sessions().host_bytes())));
  row(table, "tokens so far",
      fmt::format("{} of prompts, {} generated, in {} steps", load.prompt_tokens(),
                  load.generated_tokens(), load.steps()));
}

// Absent with the key of a user: the load is for operators.
std::optional<v1::Load> load_info(Client& client, const CallOptions& options) {
  try {
    return client.load(options);
  } catch (const ClientError& error) {
    if (error.code() == grpc::StatusCode::PERMISSION_DENIED) return std::nullopt;
    throw;
  }
}

// Absent while the model loads.
std::optional<v1::ModelInfo> model_info(Client& client, const CallOptions& options,
                                        const std::string& name) {
  try {
    return client.model_info(options, name);
  } catch (const ClientError& error) {
    if (error.kind() == ClientError::Kind::kUnavailable) return std::nullopt;
    throw;
  }
}

int info(CliContext& context, const std::string& name) {
  Client client = context.client();
  Interrupts::Scope interrupt(context.interrupts);
  const CallOptions options = context.call_options(interrupt.canceller());
  const auto server = client.server_info(options);
  const auto model = model_info(client, options, name);
  const auto load = load_info(client, options);
  if (context.json) {
    write_out(fmt::format("{{\"server\":{},\"model\":{},\"load\":{}}}\n", to_json(server),
                          model ? to_json(*model) : "null", load ? to_json(*load) : "null"));
    return kExitOk;
  }
  std::string table;
  append_server(table, client.address(), server);
  if (model) append_model(table, *model);
  if (load) append_load(table, *load);
  if (!load) table += "load\n  needs a key with the role observer or admin\n";
  write_out(table);
  return kExitOk;
}

int health(CliContext& context, double wait_seconds) {
  Client client = context.client();
  Interrupts::Scope interrupt(context.interrupts);
  const CallOptions options = context.call_options(interrupt.canceller());
  Health health = Health::kServing;
  if (wait_seconds > 0) {
    const std::chrono::duration<double> wait(wait_seconds);
    client.wait_until_serving(
        std::chrono::system_clock::now() +
            std::chrono::duration_cast<std::chrono::system_clock::duration>(wait),
        options);
  } else {
    health = client.health(options);
  }
  const std::string name = health == Health::kServing      ? "SERVING"
                           : health == Health::kNotServing ? "NOT_SERVING"
                                                           : "UNKNOWN";
  write_out(context.json ? fmt::format("{{\"status\":\"{}\"}}\n", name) : name + "\n");
  return health == Health::kServing ? kExitOk : kExitUnavailable;
}

int abort(CliContext& context, const std::string& request_id) {
  Client client = context.client();
  Interrupts::Scope interrupt(context.interrupts);
  const auto response = client.abort(request_id, context.call_options(interrupt.canceller()));
  if (context.json) write_json_line(response);
  return kExitOk;
}

}  // namespace

void add_info(CLI::App& app, CliContext& context) {
  CLI::App& command = *app.add_subcommand("info", "Print the server, its model and its load");
  const auto model = std::make_shared<std::string>();
  command.add_option("--model", *model, "Name of the model to print [default: the first]");
  command.callback(
      [&context, model] { context.run = [&context, model] { return info(context, *model); }; });
}

void add_health(CLI::App& app, CliContext& context) {
  CLI::App& command = *app.add_subcommand("health",
                                          "Check whether the server serves: print SERVING and exit "
                                          "with 0");
  const auto wait = std::make_shared<double>(0);
  command
      .add_option("--wait", *wait,
                  "Wait up to this long for the server to serve; seconds [default: 0]")
      ->check(CLI::Range(0.0, 1e6));
  command.callback(
      [&context, wait] { context.run = [&context, wait] { return health(context, *wait); }; });
}

void add_abort(CLI::App& app, CliContext& context) {
  CLI::App& command =
      *app.add_subcommand("abort",
                          "Abort a running request of your tenant; with an administrator's key, "
                          "of any tenant");
  const auto id = std::make_shared<std::string>();
  command
      .add_option("request-id", *id, "The request's id, which --request-id sets and --stats prints")
      ->required();
  command.callback(
      [&context, id] { context.run = [&context, id] { return abort(context, *id); }; });
}

}  // namespace recurve
