// `recurve keys`: what makes, shows and takes away the keys of a server, in the file that it reads.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <stdexcept>

#include "clients/cpp/cli/cli.h"
#include "clients/cpp/cli/cli_io.h"
#include "server/identity/key_file.h"

namespace recurve {
namespace {

struct NewKeyFlags {
  std::string file, tenant, role = "user", expires;
};

// A point in time, or so many days or hours from now.
std::optional<KeyTime> expiry(const std::string& text) {
  using std::chrono::system_clock;
  if (text.empty()) return std::nullopt;
  if (const auto time = time_from(text)) return time;
  if (const auto time = time_from(text + "T00:00:00Z")) return time;
  const char unit = text.back();
  const std::string count = text.substr(0, text.size() - 1);
  const bool number = !count.empty() && count.size() <= 5 &&
                      count.find_first_not_of("0123456789") == std::string::npos;
  if (!number || (unit != 'd' && unit != 'h')) {
    throw UsageError(fmt::format(
        "--expires is a time, as 2026-12-31 or 2026-12-31T23:59:59Z, or 30d or 12h, not '{}'",
        text));
  }
  const std::chrono::hours hours((unit == 'd' ? 24 : 1) * std::stoi(count));
  return std::chrono::floor<std::chrono::seconds>(system_clock::now() + hours);
}

// The key alone goes to standard output: it can be piped to where it is kept.
int make(const NewKeyFlags& flags) {
  if (!is_tenant_name(flags.tenant)) throw UsageError(tenant_name_rule(flags.tenant));
  write_out(add_key(flags.file, flags.tenant, *role_named(flags.role), expiry(flags.expires)) +
            "\n");
  return kExitOk;
}

int list(const std::string& file) {
  for (const KeyFile::Key& key : read_key_file(file).keys) {
    write_out(fmt::format("{}  {:8}  {:20}  {}\n", key.id, name_of(key.role),
                          key.expires ? to_text(*key.expires) : "never expires", key.tenant));
  }
  return kExitOk;
}

int remove(const std::string& file, const std::string& id) {
  if (remove_key(file, id)) return kExitOk;
  throw std::runtime_error(fmt::format("there is no key \"{}\" in \"{}\"", id, file));
}

}  // namespace

void add_keys(CLI::App& app, CliContext& context) {
  CLI::App& keys = *app.add_subcommand("keys", "Create, list and remove the keys of a server");
  keys.require_subcommand(1);
  const auto flags = std::make_shared<NewKeyFlags>();
  const auto add_file = [&flags](CLI::App& command) {
    command
        .add_option("--file", flags->file, "The server's file of keys, which stores hashes only")
        ->type_name("FILE")
        ->required();
  };

  CLI::App& made =
      *keys.add_subcommand("new", "Create a key: print it and store only its hash in the file");
  add_file(made);
  made.add_option("--tenant", flags->tenant, "Tenant of the key")->required();
  made.add_option("--role", flags->role,
                  "user; observer: sees load and metrics too; admin: drains and aborts too "
                  "[default: user]")
      ->check(CLI::IsMember({"user", "observer", "admin"}));
  made.add_option("--expires", flags->expires,
                  "Expiry as a date or a duration: 2026-12-31, 30d, 12h [default: never]");
  made.callback([&context, flags] { context.run = [flags] { return make(*flags); }; });

  CLI::App& shown =
      *keys.add_subcommand("list", "List the ids of the keys in the file, and their tenants");
  add_file(shown);
  shown.callback([&context, flags] { context.run = [flags] { return list(flags->file); }; });

  CLI::App& removed = *keys.add_subcommand("remove", "Remove a key from the file");
  const auto id = std::make_shared<std::string>();
  add_file(removed);
  removed.add_option("id", *id, "Id of the key: the 12 digits after rck_, as list prints them")
      ->required();
  removed.callback(
      [&context, flags, id] { context.run = [flags, id] { return remove(flags->file, *id); }; });

  add_state_keys(keys, context);
}

}  // namespace recurve
