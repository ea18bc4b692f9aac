// `recurve keys state`: the keys of a server's --state-keys, and what they have wrapped in its
// --state-dir.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "clients/cpp/cli/cli.h"
#include "clients/cpp/cli/cli_io.h"
#include "server/identity/state_key_store.h"

namespace recurve {
namespace {

struct StateKeyFlags {
  std::string file, folder, tenant;
  std::vector<std::string> folders;
  bool drops_old = false;
};

int make(const StateKeyFlags& flags) {
  make_state_keys(flags.file);
  return kExitOk;
}

int list(const StateKeyFlags& flags) {
  for (const ListedKey& key : list_state_keys(flags.file, flags.folder)) {
    const bool own = key.tenant.empty() && key.problem.empty();
    write_out(fmt::format("{:27}  {}\n", key.file,
                          !key.problem.empty() ? "cannot be used: " + key.problem
                          : own                ? "the folder's own"
                                               : "tenant " + key.tenant));
  }
  return kExitOk;
}

int rotate(const StateKeyFlags& flags) {
  const size_t wrapped = rotate_state_keys(flags.file, flags.folders, flags.drops_old);
  write_out(fmt::format("{} keys wrapped anew\n", wrapped));
  return kExitOk;
}

int drop(const StateKeyFlags& flags) {
  for (const std::string& name : drop_tenant_keys(flags.file, flags.folder, flags.tenant)) {
    write_out(name + "\n");
  }
  return kExitOk;
}

}  // namespace

void add_state_keys(CLI::App& keys, CliContext& context) {
  CLI::App& state = *keys.add_subcommand(
      "state", "Manage the keys of --state-keys and --state-dir, while the server runs or not");
  state.require_subcommand(1);
  const auto flags = std::make_shared<StateKeyFlags>();
  const auto command = [&](const char* name, const char* what, int (*run)(const StateKeyFlags&)) {
    CLI::App& added = *state.add_subcommand(name, what);
    added.add_option("--file", flags->file, "The server's --state-keys")
        ->type_name("FILE")
        ->required();
    added.callback([&context, flags, run] { context.run = [flags, run] { return run(*flags); }; });
    return &added;
  };
  const auto add_folder = [&flags](CLI::App& added) {
    added.add_option("--state-dir", flags->folder, "The server's --state-dir")
        ->type_name("DIR")
        ->required();
  };

  command("new", "Create the file, with a key in it", make);
  add_folder(*command("list", "List the keys of the folder and their tenants", list));

  CLI::App& rotated = *command("rotate",
                               "Add a new key as the first of the file, and encrypt the tenants' "
                               "keys of the folders with it; states do not change",
                               rotate);
  rotated.add_option("--state-dir", flags->folders, "The server's --state-dir; several may follow")
      ->type_name("DIR")
      ->required();
  rotated.add_flag("--drop-old", flags->drops_old,
                   "Remove the older keys from the file; no other folder may need them");

  CLI::App& dropped =
      *command("drop",
               "Remove a tenant's keys from the folder, and print the names of their files. The "
               "tenant's states there can be read again only if these files are restored",
               drop);
  add_folder(dropped);
  dropped.add_option("--tenant", flags->tenant, "Whose")->required();
}

}  // namespace recurve
