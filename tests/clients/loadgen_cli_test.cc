// The program recurve-loadgen, as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/clients/cli_process.h"
#include "tests/clients/fake_server.h"

namespace recurve::testing::loadgen_cli_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

CliResult run(std::vector<std::string> arguments) {
  return CliProcess(std::move(arguments), CliProcess::Out::kPipe, "recurve-loadgen").finish();
}

std::vector<std::string> short_run(const FakeServer& server, std::vector<std::string> more) {
  std::vector<std::string> arguments = {
      "--server", server.address(), "--warmup", "0.1", "--duration", "0.5", "--quiet"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(LoadgenCliTest, TableSaysWhatWasMeasured) {
  FakeServer server;
  const auto result = run(short_run(server, {}));
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* text : {"fake-8m (xlstm", "prompts of 128 random tokens, answers of 64",
                           "closed loop, 8 streams", "goodput", "TTFT", "TPOT", "end to end", "p99",
                           "within TTFT <= 500 ms and TPOT <= 30.0 ms"}) {
    EXPECT_THAT(result.out, HasSubstr(text));
  }
  EXPECT_EQ(result.err, "");
}

TEST(LoadgenCliTest, FilesAndStandardOutputHoldTheReport) {
  FakeServer server;
  const std::string html = ::testing::TempDir() + "loadgen.html";
  const auto result = run(short_run(server, {"--rate", "30", "--json", "-", "--html", html}));
  EXPECT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["format"], 1);
  EXPECT_EQ(json["trials"][0]["rate"], 30);
  EXPECT_THAT(std::string(json["command"]), HasSubstr("recurve-loadgen --server 127.0.0.1:"));
  EXPECT_THAT(result.err, HasSubstr("goodput"));  // the table, for who watches
  std::stringstream page;
  page << std::ifstream(html).rdbuf();
  EXPECT_THAT(page.str(), HasSubstr("<!DOCTYPE html>"));
  std::remove(html.c_str());
}

TEST(LoadgenCliTest, TraceGivesArrivalsLengthsAndDuration) {
  FakeServer server;
  const std::string trace = ::testing::TempDir() + "loadgen-trace.csv";
  std::ofstream(trace) << "0,11,3\n0.1,12,3\n0.4,13,3\n";
  const auto result =
      run({"--server", server.address(), "--trace", trace, "--json", "-", "--quiet"});
  EXPECT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["trials"][0]["requests"]["measured"], 3);
  // Requests of one moment come in any order, and behind the measured ones the trace begins again.
  std::set<int> lengths;
  for (const auto& request : server.inference.generate_requests()) {
    lengths.insert(request.ids().ids_size());
  }
  EXPECT_THAT(lengths, ElementsAre(11, 12, 13));
  std::remove(trace.c_str());
}

TEST(LoadgenCliTest, WrongUseSaysWhatIsWanted) {
  for (const auto& [arguments, message] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--rate", "3", "--streams", "4"}, "--streams excludes --rate"},
           {{"--rate", "-1"}, "--rate"},
           {{"--prompt-tokens", "many"}, "--prompt-tokens is a number"},
           {{"--trace", "/nowhere"}, "/nowhere cannot be read"},
           {{"--arrivals", "0"}, "--arrivals: wanted one of {constant,poisson}, found 0"},
           {{"--sweep-start", "3"}, "--sweep"},
           {{"--server", "nonsense"}, "HOST:PORT"},
           {{"--nonsense"}, "--nonsense"}}) {
    const auto result = run(arguments);
    EXPECT_EQ(result.code, 2) << message;
    EXPECT_THAT(result.err, HasSubstr(message));
  }
  EXPECT_EQ(run({"--help"}).code, 0);
}

TEST(LoadgenCliTest, ExitCodesSayWhatFailed) {
  const auto unreachable = run({"--server", "127.0.0.1:1"});
  EXPECT_EQ(unreachable.code, 3);
  EXPECT_THAT(unreachable.err, HasSubstr("no server can be reached at 127.0.0.1:1"));
  FakeServer server;
  server.inference.set_on_generate([](auto*, const auto&, auto*) {
    return grpc::Status(grpc::StatusCode::INTERNAL, "the device is dead");
  });
  const auto broken = run(short_run(server, {"--rate", "20"}));
  EXPECT_EQ(broken.code, 1);
  EXPECT_THAT(broken.out, HasSubstr("INTERNAL: the device is dead"));
  server.control.set_state(v1::SERVER_STATE_LOADING);
  EXPECT_EQ(run(short_run(server, {})).code, 4);
}

TEST(LoadgenCliTest, AnInterruptedRunReportsWhatItSaw) {
  FakeServer server;
  CliProcess process({"--server", server.address(), "--warmup", "0", "--duration", "60"},
                     CliProcess::Out::kPipe, "recurve-loadgen");
  process.wait_for_error("measuring: ");
  process.interrupt();
  process.interrupt();  // the same Ctrl-C, delivered twice
  const auto result = process.finish();
  EXPECT_EQ(result.code, 130);
  EXPECT_THAT(result.out, HasSubstr("the run was interrupted"));
  EXPECT_THAT(result.err, HasSubstr("TTFT p99"));  // the line of progress
}

}  // namespace recurve::testing::loadgen_cli_test
