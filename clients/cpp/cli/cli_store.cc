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

namespace recurve {
namespace {

struct StoreFlags {
  std::string url, endpoint;
  double grace_hours = 24;
  bool dry_run = false;
};

int collect(const StoreFlags& flags) {
  const AwsEnvironment environment =
      AwsEnvironment::read([](const char* name) { return std::getenv(name); });
  HttpClient http({.ca_file = environment.ca_file});
  const auto credentials = find_aws_credentials(environment, "", http);
  ObjectStore store(parse_object_store(flags.url, flags.endpoint, environment.region),
                    environment.region, *credentials, http, ObjectStore::Options());
  StoreCollector::Options options{
      .grace = std::chrono::seconds(static_cast<int64_t>(flags.grace_hours * 3600)),
      .removes = !flags.dry_run};
  options.on_blob = [](const ObjectStore::Listed& blob) {
    write_out(fmt::format("{} {}\n", blob.bytes, blob.key));
  };
  options.on_damaged = [](const std::string& key, const std::string& why) {
    fmt::print(stderr, "recurve: {}: {}; no blob of its tenant is removed\n", key, why);
  };
  const auto done = StoreCollector(store, std::move(options), std::time(nullptr)).collect();
  fmt::print(stderr, "{} heads, {} blobs; {} {} with {} bytes; {} without a head are recent\n",
             done.heads, done.blobs, done.removed, flags.dry_run ? "would go" : "removed",
             done.removed_bytes, done.recent);
  return kExitOk;
}

}  // namespace

void add_store(CLI::App& app, CliContext& context) {
  CLI::App& store =
      *app.add_subcommand("store", "Look after the object store of servers, while they run or not");
  store.require_subcommand(1);
  const auto flags = std::make_shared<StoreFlags>();
  CLI::App& added = *store.add_subcommand(
      "collect",
      "Remove blobs that no session names, which servers that were killed have left, and print the "
      "bytes and the key of each. Credentials and region are those of AWS's environment variables "
      "and files");
  added.add_option("--state-store", flags->url, "That of the servers, as s3://BUCKET/PREFIX")
      ->type_name("URL")
      ->required();
  added
      .add_option("--state-endpoint", flags->endpoint,
                  "Address of the store's server, as https://HOST[:PORT] [default: AWS's own of "
                  "the region]")
      ->type_name("URL");
  added
      .add_option("--grace", flags->grace_hours,
                  "Remove no blob that is younger than so many hours; longer than any server may "
                  "be paused and continued")
      ->check(CLI::Range(2.0, 1e5))
      ->capture_default_str();
  added.add_flag("--dry-run", flags->dry_run, "Only print what would be removed");
  added.callback([&context, flags] { context.run = [flags] { return collect(*flags); }; });
}

}  // namespace recurve
