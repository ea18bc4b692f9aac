#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "clients/cpp/cli/cli.h"
#include "clients/cpp/cli/cli_chat.h"
#include "clients/cpp/cli/cli_io.h"
#include "clients/cpp/cli/cli_server_process.h"

namespace recurve {
namespace {

struct RunFlags {
  std::string model;
  std::vector<std::string> server_flags;
};

bool wait_until_serving(ServerProcess& server) {
  StatusLine status;
  return server.wait_until_serving([&status](const std::string& text) { status.show(text); });
}

int report_end(const ServerProcess& server, int code) {
  fmt::print(stderr, "{}", server.last_words());
  if (code > 128) fmt::print(stderr, "recurve: the server was ended by signal {}\n", code - 128);
  return code == kExitUsage ? kExitUsage : kExitFailed;
}

int run_model(CliContext& context, const RunFlags& flags, const std::function<int()>& chat) {
  std::vector<std::string> arguments = {flags.model};
  arguments.insert(arguments.end(), flags.server_flags.begin(), flags.server_flags.end());
  ServerProcess server(arguments);
  if (!wait_until_serving(server)) return report_end(server, server.stop());
  if (error_is_terminal()) {
    fmt::print(stderr, "recurve: the server is at {} (gRPC) and {}\n", server.grpc_address(),
               server.http_url());
  }
  context.server = server.grpc_address();
  context.tls = {};
  context.key = [] { return std::string(); };
  try {
    return chat();
  } catch (const ClientError& error) {
    const bool gone = error.kind() == ClientError::Kind::kUnreachable;
    const int code = gone ? server.stop() : 0;
    if (code == 0) throw;
    return report_end(server, code);
  }
}

}  // namespace

void add_run(CLI::App& app, CliContext& context) {
  CLI::App& command = *app.add_subcommand(
      "run",
      "Start recurve-server with a model, chat with it, and stop it. It serves gRPC and HTTP on "
      "free ports of this machine. Flags of recurve-server follow '--': recurve run MODEL_DIR -- "
      "--device cuda:0");
  const auto flags = std::make_shared<RunFlags>();
  command
      .add_option("MODEL_DIR", flags->model,
                  "Directory of the checkpoint, as on the Hugging Face Hub")
      ->type_name("DIR")
      ->required();
  command.add_option("SERVER_FLAGS", flags->server_flags, "Flags of recurve-server, after '--'");
  const auto chat = add_chat_flags(command, context);
  command.callback([&context, flags, chat] {
    context.run = [&context, flags, chat] { return run_model(context, *flags, chat); };
  });
}

}  // namespace recurve
