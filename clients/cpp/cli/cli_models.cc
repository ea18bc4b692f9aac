#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "clients/cpp/cli/cli.h"
#include "clients/cpp/cli/cli_io.h"

// `recurve models`: those of a running server.
namespace recurve {
namespace {

struct ChangeFlags {
  std::string name, path;
  std::vector<std::string> flags;  // KEY=VALUE
  std::optional<double> drain_seconds;
};

std::string model_row(size_t width, const std::string& name, const std::string& state,
                      const std::string& what) {
  return fmt::format("{:<{}}  {:<9}  {}\n", name, width, state, what);
}

std::string table_of(const v1::ListModelsResponse& list) {
  size_t width = 4;
  for (const auto& model : list.models()) width = std::max(width, model.name().size());
  for (const auto& name : list.loading()) width = std::max(width, name.size());
  for (const auto& name : list.unloading()) width = std::max(width, name.size());
  std::string table = model_row(width, "NAME", "STATE", "WHAT");
  for (const auto& model : list.models()) {
    const std::string what = fmt::format("{}, {:.2f} million, {}, {}", model.family(),
                                         static_cast<double>(model.parameters()) / 1e6,
                                         model.weight_type(), model.backend());
    table += model_row(width, model.name(), model.failed() ? "failed" : "serving", what);
  }
  for (const auto& name : list.loading()) table += model_row(width, name, "loading", "");
  for (const auto& name : list.unloading()) table += model_row(width, name, "unloading", "");
  return table;
}

int list_models(CliContext& context) {
  Client client = context.client();
  Interrupts::Scope interrupt(context.interrupts);
  const auto models = client.list_models(context.call_options(interrupt.canceller()));
  if (context.json) {
    write_json_line(models);
  } else {
    write_out(table_of(models));
  }
  return kExitOk;
}

int load_model(CliContext& context, const ChangeFlags& flags) {
  v1::LoadModelRequest request;
  request.set_name(flags.name);
  request.set_path(flags.path);
  for (const std::string& flag : flags.flags) {
    const size_t equals = flag.find('=');
    if (equals == std::string::npos) {
      throw UsageError(fmt::format("--set must be KEY=VALUE, got {}", flag));
    }
    (*request.mutable_flags())[flag.substr(0, equals)] = flag.substr(equals + 1);
  }
  Client client = context.client();
  Interrupts::Scope interrupt(context.interrupts);
  const auto model = client.load_model(request, context.call_options(interrupt.canceller()));
  if (context.json) write_json_line(model);
  return kExitOk;
}

int unload_model(CliContext& context, const ChangeFlags& flags) {
  v1::UnloadModelRequest request;
  request.set_name(flags.name);
  if (flags.drain_seconds) request.set_drain_seconds(*flags.drain_seconds);
  Client client = context.client();
  Interrupts::Scope interrupt(context.interrupts);
  const auto response = client.unload_model(request, context.call_options(interrupt.canceller()));
  if (context.json) write_json_line(response);
  return kExitOk;
}

using ChangeModel = int (*)(CliContext&, const ChangeFlags&);

CLI::App& add_change(CLI::App& models, CliContext& context, const char* name, const char* help,
                     const std::shared_ptr<ChangeFlags>& flags, ChangeModel act) {
  CLI::App& command = *models.add_subcommand(name, help);
  command.add_option("NAME", flags->name, "Name of the model")->required();
  command.callback([&context, flags, act] {
    context.run = [&context, flags, act] { return act(context, *flags); };
  });
  return command;
}

}  // namespace

void add_models(CLI::App& app, CliContext& context) {
  CLI::App& models = *app.add_subcommand(
      "models", "Print the models of a server, and load and unload them while it serves");
  models.require_subcommand(1);
  CLI::App& listed = *models.add_subcommand("list", "Print the models, and whether they serve");
  listed.callback([&context] { context.run = [&context] { return list_models(context); }; });

  const auto flags = std::make_shared<ChangeFlags>();
  CLI::App& loaded = add_change(
      models, context, "load",
      "Load a model from a directory below --model-root of the server, and return when it serves. "
      "Needs the key of an administrator",
      flags, load_model);
  loaded
      .add_option("--path", flags->path,
                  "Directory of the checkpoint, below --model-root [default: NAME]")
      ->type_name("DIR");
  loaded
      .add_option(
          "--set", flags->flags,
          "Set a flag of the server for this model alone, by its key in a file of --models, "
          "as slots=4; repeat it for several")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  CLI::App& unloaded = add_change(
      models, context, "unload",
      "Unload a model, and return when its requests have ended and its memory is free. Its durable "
      "sessions stay on the disk. Needs the key of an administrator",
      flags, unload_model);
  unloaded
      .add_option_function<double>(
          "--drain-seconds", [flags](const double& seconds) { flags->drain_seconds = seconds; },
          "Time for its requests in progress; seconds [default: the server's]")
      ->check(CLI::Range(0.0, 86'400.0));
}

}  // namespace recurve
