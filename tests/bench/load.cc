// recurve-bench load: how long a checkpoint takes to load, from the disk and from the page cache,
// and what of that is the fingerprint.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "model/load_model.h"
#include "server/request/clock.h"
#include "tests/bench/commands.h"
#include "tests/bench/disk_speed.h"
#include "tests/bench/report.h"

namespace recurve::bench {
namespace {

namespace fs = std::filesystem;
struct LoadTimeOptions {
  std::string model;
  std::string device = "cpu";
  int rounds = 5;
};

struct LoadTime {
  double wall = 0, cpu = 0;  // seconds
};

LoadTime load_once(const LoadTimeOptions& o, bool from_disk, bool fingerprint) {
  const auto backend = make_backend(o.device);
  if (from_disk) drop_from_cache(o.model);
  const double cpu = cpu_seconds();
  const Clock::time_point began = Clock::now();
  Checkpoint checkpoint = Checkpoint::open(o.model);
  if (!fingerprint) checkpoint.leave_out_fingerprint();
  const auto model = load_model(checkpoint, *backend, {});
  return {.wall = seconds_between(began, Clock::now()), .cpu = cpu_seconds() - cpu};
}

struct LoadTimes {
  std::vector<double> wall, cpu;
  void add(const LoadTime& time) {
    wall.push_back(time.wall);
    cpu.push_back(time.cpu);
  }
};

// The median of how much longer each round took with the fingerprint, in percent: the two loads of
// a round are next to each other, so what else the machine does weighs on both.
double percent_more(const std::vector<double>& with, const std::vector<double>& without) {
  std::vector<double> more;
  for (size_t i = 0; i < with.size(); ++i) more.push_back(100 * (with[i] / without[i] - 1));
  return median(more);
}

uint64_t bytes_of(const fs::path& directory) {
  uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() == ".safetensors") bytes += entry.file_size();
  }
  return bytes;
}

void measure(const LoadTimeOptions& o, bool from_disk, Report& report) {
  LoadTimes with, without;
  load_once(o, from_disk, true);  // warm-up: the pages, and the memory that allocations find
  for (int round = 0; round < o.rounds; ++round) {
    const bool first = round % 2 == 0;
    (first ? with : without).add(load_once(o, from_disk, first));
    (first ? without : with).add(load_once(o, from_disk, !first));
  }
  const double gigabytes = static_cast<double>(bytes_of(o.model)) / 1e9;
  report.add({{"bench", "load"},
              {"from", from_disk ? "disk" : "page cache"},
              {"GB", gigabytes},
              {"seconds", median(with.wall)},
              {"without_fingerprint", median(without.wall)},
              {"more_percent", percent_more(with.wall, without.wall)},
              {"target", from_disk ? "<= 5" : "<= 30"},
              {"cpu_seconds", median(with.cpu)},
              {"cpu_without", median(without.cpu)}});
}

void run(const LoadTimeOptions& o, bool json) {
  Report report(json);
  measure(o, /*from_disk=*/false, report);
  measure(o, /*from_disk=*/true, report);
}

}  // namespace

void add_load(CLI::App& app, const bool& json) {
  auto o = std::make_shared<LoadTimeOptions>();
  CLI::App* load =
      app.add_subcommand("load", "Measure loading a checkpoint, with and without its fingerprint");
  load->add_option("--model", o->model, "Checkpoint directory")->required();
  load->add_option("--device", o->device, "Device to load it to")->capture_default_str();
  load->add_option("--rounds", o->rounds, "Rounds of one load with and one without")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  load->callback([o, &json] { run(*o, json); });
}

}  // namespace recurve::bench
