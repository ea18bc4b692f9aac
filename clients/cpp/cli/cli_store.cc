// `recurve store`: what servers share in their --state-store.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>

#include "clients/cpp/cli/cli.h"
#include "clients/cpp/cli/cli_io.h"
#include "server/object_store/store_collector.h"
#include "server/object_store/stored_bytes.h"

namespace recurve {
namespace {

struct StoreFlags {
  std::string url, endpoint;
  double grace_hours = 24;
  bool dry_run = false;
};

// The store that the flags name, with what it needs.
class FoundStore {
 public:
  explicit FoundStore(const StoreFlags& flags)
      : store_(parse_object_store(flags.url, flags.endpoint, environment_.region),
               environment_.region, *credentials_, http_, ObjectStore::Options()) {}
  ObjectStore& operator*() { return store_; }

 private:
  const AwsEnvironment environment_ =
      AwsEnvironment::read([](const char* name) { return std::getenv(name); });
  HttpClient http_{{.ca_file = environment_.ca_file}};
  const std::unique_ptr<AwsCredentialSource> credentials_ =
      find_aws_credentials(environment_, "", http_);
  ObjectStore store_;
};

int print_usage(const StoreFlags& flags) {
  FoundStore store(flags);
  for (const auto& [tenant, of] : blobs_of_tenants(*store)) {
    write_out(fmt::format("{} {} {}\n", of.bytes, of.blobs, tenant));
  }
  return kExitOk;
}

int collect(const StoreFlags& flags) {
  FoundStore store(flags);
  StoreCollector::Options options{
      .grace = std::chrono::seconds(static_cast<int64_t>(flags.grace_hours * 3600)),
      .removes = !flags.dry_run};
  options.on_removed = [](const ObjectStore::Listed& object) {
    write_out(fmt::format("{} {}\n", object.bytes, object.key));
  };
  options.on_strange = [](const std::string& key, const std::string& why) {
    fmt::print(stderr, "recurve: {}: {}\n", key, why);
  };
  const auto done = StoreCollector(*store, std::move(options), std::time(nullptr)).collect();
  fmt::print(
      stderr,
      "{} heads, {} blobs, {} states of prompts; {} {} with {} bytes; {} blobs without a head are "
      "recent; {} heads of closed sessions stay\n",
      done.heads, done.blobs, done.prefixes, done.removed, flags.dry_run ? "would go" : "removed",
      done.removed_bytes, done.recent, done.closed);
  if (done.without_conditions) {
    fmt::print(stderr,
               "recurve: the store ignores If-Match of a DELETE: heads of closed sessions stay\n");
  }
  return kExitOk;
}

void add_address(CLI::App& command, const std::shared_ptr<StoreFlags>& flags) {
  command.add_option("--state-store", flags->url, "That of the servers, as s3://BUCKET/PREFIX")
      ->type_name("URL")
      ->required();
  command
      .add_option("--state-endpoint", flags->endpoint,
                  "Address of the store's server, as https://HOST[:PORT] [default: AWS's own of "
                  "the region]")
      ->type_name("URL");
}

}  // namespace

void add_store(CLI::App& app, CliContext& context) {
  CLI::App& store =
      *app.add_subcommand("store", "Look after the object store of servers, while they run or not");
  store.require_subcommand(1);
  const auto flags = std::make_shared<StoreFlags>();
  CLI::App& added = *store.add_subcommand(
      "collect",
      "Remove blobs that no session names, which servers that were killed have left, heads of "
      "closed sessions, and states of prompts that are a week old, and print the bytes and the key "
      "of each. Credentials and region are those "
      "of AWS's environment variables "
      "and files");
  add_address(added, flags);
  added
      .add_option("--grace", flags->grace_hours,
                  "Remove nothing that is younger than so many hours; longer than any server may "
                  "be paused and continued")
      ->check(CLI::Range(2.0, 1e5))
      ->capture_default_str();
  added.add_flag("--dry-run", flags->dry_run, "Only print what would be removed");
  added.callback([&context, flags] { context.run = [flags] { return collect(*flags); }; });
  CLI::App& usage = *store.add_subcommand(
      "usage",
      "Print the bytes, the number of blobs and the name of each tenant that has sessions in the "
      "store: states, those of marks, and long answers. Credentials and region are those of "
      "AWS's environment variables and files");
  add_address(usage, flags);
  usage.callback([&context, flags] { context.run = [flags] { return print_usage(*flags); }; });
}

}  // namespace recurve
