// recurve-bench idle: what sessions and connections cost that do nothing. Starts recurve-server as
// a separate process and reads its resident memory.
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <sys/resource.h>

#include <stdexcept>
#include <thread>

#include "tests/bench/commands.h"
#include "tests/bench/report.h"
#include "tests/support/generate_outcome.h"
#include "tests/support/server_process.h"

namespace recurve::bench {
namespace {

struct IdleOptions {
  std::string model = "weights_tools/demo/xlstm-books";
  int slots = 16;
  int sessions = 2000;
  int connections = 1000;
  double most_kib = 50;
};

void allow_many_files() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Each has absorbed a prompt and generated from it, so it has a state.
void open_sessions(Client& client, int sessions) {
  for (int i = 0; i < sessions; ++i) {
    v1::OpenSessionRequest open;
    open.set_name(fmt::format("idle-{}", i));
    client.open_session(open);
    v1::GenerateRequest request = testing::generate_request("It was a cold evening", 8);
    request.set_session(open.name());
    client.generate(request, [](const auto&) {});
  }
}

using Channels = std::vector<std::shared_ptr<grpc::Channel>>;

// Each has had an answer.
Channels connect(const std::string& address, int connections) {
  Channels channels;
  for (int i = 0; i < connections; ++i) {
    channels.push_back(testing::own_channel(address));
    grpc::ClientContext context;
    const auto stub = v1::Inference::NewStub(channels.back());
    const testing::Outcome outcome =
        testing::generate(*stub, testing::generate_request("It was", 2), context);
    if (!outcome.status.ok())
      throw std::runtime_error("Generate: " + outcome.status.error_message());
  }
  return channels;
}

void run(const IdleOptions& o, bool json) {
  allow_many_files();
  Report report(json);
  testing::ServerProcess server({"--model", o.model, "--slots", std::to_string(o.slots)});
  const std::string address = server.address();
  Client client(address);
  const auto state = static_cast<double>(client.model_info().state_bytes());
  open_sessions(client, 2 * o.slots);  // warm: every slot has been used
  {
    connect(address, 20);
  }
  bool too_much = false;
  const auto row = [&](const char* what, int count, double bytes, double known) {
    const double each = (bytes - known) / count / 1024;
    too_much |= each > o.most_kib;
    report.add({{"bench", "idle"},
                {"what", what},
                {"count", count},
                {"state_KiB", known / count / 1024},
                {"KiB_each_beyond", each},
                {"target", fmt::format("< {:.0f}", o.most_kib)}});
  };
  double before = server.resident_bytes();
  for (int i = 0; i < 2 * o.slots; ++i) client.close_session(fmt::format("idle-{}", i));
  open_sessions(client, o.sessions);
  // Those closed had left their slots, and so will all but as many of the new ones.
  row("session", o.sessions, server.resident_bytes() - before, (o.sessions - 2 * o.slots) * state);
  before = server.resident_bytes();
  const Channels channels = connect(address, o.connections);
  row("connection", o.connections, server.resident_bytes() - before, 0);
  if (too_much) throw std::runtime_error("idle: that is too much");
}

}  // namespace

void add_idle(CLI::App& app, const bool& json) {
  auto o = std::make_shared<IdleOptions>();
  CLI::App* idle =
      app.add_subcommand("idle", "Measure the memory of idle sessions and connections");
  idle->add_option("--model", o->model, "Checkpoint directory")->capture_default_str();
  idle->add_option("--slots", o->slots, "Slots of the server")->capture_default_str();
  idle->add_option("--sessions", o->sessions, "Sessions to open")->capture_default_str();
  idle->add_option("--connections", o->connections, "Connections to open")->capture_default_str();
  idle->add_option("--most-kib", o->most_kib,
                   "Memory of each beyond its state, above which the "
                   "program fails; KiB")
      ->capture_default_str();
  idle->callback([o, &json] { run(*o, json); });
}

}  // namespace recurve::bench
