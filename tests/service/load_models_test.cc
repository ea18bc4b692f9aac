// Models that are loaded and unloaded while others serve.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <thread>

#include "clients/cpp/client.h"
#include "tests/support/generate_outcome.h"
#include "tests/support/http_client.h"
#include "tests/support/server_process.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::load_models_test {

namespace fs = std::filesystem;
using grpc::StatusCode;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const fs::path kDemo = fs::path(RECURVE_SOURCE_DIR) / "weights_tools/demo";

// A checkpoint, with the files that its links lead to.
void copy_model(const std::string& name, const fs::path& to) {
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(kDemo / name)) {
    fs::copy_file(fs::canonical(entry.path()), to / entry.path().filename());
  }
}

// A server with the model "a", and a root with "b", "c" and others that cannot be loaded.
class LoadModelsTest : public ::testing::Test {
 protected:
  LoadModelsTest() { copy_model("mamba2-books", root() / "b"); }
  fs::path root() const { return folder_ / "root"; }

  void start(std::vector<std::string> more = {}) {
    std::vector<std::string> flags = {"--model",          "a=" + (kDemo / "xlstm-books").string(),
                                      "--model-root",     root(),
                                      "--threads",        "1",
                                      "--slots",          "4",
                                      "--http",           "127.0.0.1:0",
                                      "--session-memory", "256MB",
                                      "--prefix-memory",  "64MB"};
    flags.insert(flags.end(), more.begin(), more.end());
    server_.emplace(flags);
    client_.emplace(server_->address());
  }
  void TearDown() override {
    if (server_) {
      EXPECT_EQ(server_->stop(), 0) << server_->log();
    }
  }

  v1::ModelInfo load(const std::string& name, const std::string& path = "",
                     const std::map<std::string, std::string>& flags = {}) {
    v1::LoadModelRequest request;
    request.set_name(name);
    request.set_path(path);
    request.mutable_flags()->insert(flags.begin(), flags.end());
    return client_->load_model(request);
  }
  void unload(const std::string& name, std::optional<double> drain_seconds = {}) {
    v1::UnloadModelRequest request;
    request.set_name(name);
    if (drain_seconds) request.set_drain_seconds(*drain_seconds);
    client_->unload_model(request);
  }
  // The error of a call: "CODE: sentence"; "OK".
  template <typename Call>
  static std::string failure_of(const Call& call) {
    try {
      call();
      return "OK";
    } catch (const ClientError& error) {
      return std::to_string(error.code()) + ": " + error.message();
    }
  }
  static std::string code(StatusCode code) { return std::to_string(code) + ": "; }
  std::string load_error(const std::string& name, const std::string& path = "",
                         const std::map<std::string, std::string>& flags = {}) {
    return failure_of([&] { load(name, path, flags); });
  }

  std::vector<int32_t> ids_of(const std::string& model, const std::string& session = "",
                              int tokens = 16) {
    Client client(server_->address());
    v1::GenerateRequest request = generate_request("It was a cold evening", tokens);
    request.set_model(model);
    request.set_session(session);
    std::vector<int32_t> ids;
    client.generate(request, [&](const v1::GenerateResponse& response) {
      for (const int32_t id : response.chunk().ids()) ids.push_back(id);
    });
    return ids;
  }
  std::vector<std::string> names() {
    std::vector<std::string> names;
    const v1::ListModelsResponse list = client_->list_models();
    for (const auto& model : list.models()) names.push_back(model.name());
    return names;
  }
  std::string get(const std::string& path) {
    HttpClient client(server_->http_port());
    client.get(path);
    return client.read().body;
  }

  const TempDir folder_;
  std::optional<ServerProcess> server_;
  std::optional<Client> client_;
};

TEST_F(LoadModelsTest, AModelServesFromItsLoadToItsUnload) {
  start();
  const auto of_b = [&] {
    ServerProcess alone({"--model", "b=" + (root() / "b").string(), "--threads", "1"});
    Client client(alone.address());
    std::vector<int32_t> ids;
    client.generate(generate_request("It was a cold evening", 16), [&](const auto& response) {
      for (const int32_t id : response.chunk().ids()) ids.push_back(id);
    });
    return ids;
  }();
  const std::vector<int32_t> of_a = ids_of("");
  for (int i = 0; i < 3; ++i) {
    const v1::ModelInfo info = load("b", "", {{"slots", "2"}});
    EXPECT_EQ(info.name(), "b");
    EXPECT_EQ(info.family(), "mamba2");
    EXPECT_EQ(ids_of("b"), of_b);
    EXPECT_EQ(ids_of("a"), of_a);
    EXPECT_THAT(names(), ElementsAre("a", "b"));
    EXPECT_EQ(client_->load().models(1).slots().total(), 2);
    EXPECT_EQ(client_->health({}, "model/b"), Health::kServing);
    EXPECT_THAT(get("/health"), HasSubstr("\"b\":\"serving\""));
    EXPECT_THAT(get("/metrics"), HasSubstr("recurve_generated_tokens_total{model=\"b\"} 16"));
    unload("b");
    EXPECT_THAT(names(), ElementsAre("a"));
    EXPECT_EQ(client_->health({}, "model/b"), Health::kNotServing);
    EXPECT_THAT(get("/metrics"), Not(HasSubstr("model=\"b\"")));
    EXPECT_EQ(failure_of([&] { ids_of("b"); }),
              code(StatusCode::NOT_FOUND) + R"(unknown model "b": this server has "a")");
  }
  EXPECT_EQ(ids_of(""), of_a);
  EXPECT_THAT(server_->log(), AllOf(HasSubstr("what=model_load "), HasSubstr("what=model_unload "),
                                    HasSubstr("result=OK name=b")));
}

TEST_F(LoadModelsTest, OthersAnswerTheSameToTheBitMeanwhile) {
  start();
  const std::vector<int32_t> alone = ids_of("a", "", 64);
  std::atomic<bool> done{false};
  std::atomic<int> answers{0};
  std::vector<std::thread> users;
  for (int user = 0; user < 3; ++user) {
    users.emplace_back([&] {
      while (!done || answers == 0) {
        EXPECT_EQ(ids_of("a", "", 64), alone);
        ++answers;
      }
    });
  }
  for (int i = 0; i < 4; ++i) {
    load("b");
    ids_of("b");
    unload("b");
  }
  done = true;
  for (std::thread& user : users) user.join();
}

TEST_F(LoadModelsTest, ABusyModelDrainsOrIsEnded) {
  start();
  for (const bool waits : {true, false}) {
    load("b");
    std::atomic<bool> begun{false};
    std::string end;
    std::thread user([&] {
      Client client(server_->address());
      v1::GenerateRequest request = generate_request("It was", waits ? 400 : 1'000'000);
      request.set_model("b");
      request.mutable_stop()->set_ignore_eos(true);
      end = failure_of([&] {
        client.generate(request, [&](const v1::GenerateResponse& response) {
          if (response.has_chunk() && !begun.exchange(true)) begun.notify_all();
        });
      });
      begun = true;
      begun.notify_all();
    });
    begun.wait(false);
    unload("b", waits ? 60 : 0.05);
    user.join();
    if (waits) {
      EXPECT_EQ(end, "OK");
    } else {
      EXPECT_EQ(end, code(StatusCode::UNAVAILABLE) +
                         R"(the model "b" is being unloaded: use another one)");
    }
    EXPECT_THAT(names(), ElementsAre("a"));
  }
}

TEST_F(LoadModelsTest, AClientThatReadsNothingDelaysAnUnloadForABoundedTime) {
  start();
  load("b");
  grpc::ChannelArguments small;
  small.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
  small.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto stub = v1::Inference::NewStub(own_channel(server_->address(), small));
  v1::GenerateRequest request = generate_request("It was", 1'000'000);
  request.set_model("b");
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response) && !response.has_chunk()) continue;  // it runs
  auto unloaded = std::async(std::launch::async, [&] { unload("b", 0.05); });
  const auto status = unloaded.wait_for(std::chrono::seconds(60));
  EXPECT_EQ(status, std::future_status::ready);
  context.TryCancel();
  reader->Finish();
  EXPECT_THAT(names(), ElementsAre("a"));
}

TEST_F(LoadModelsTest, DurableSessionsWaitForTheirModel) {
  start({"--state-dir", folder_ / "state"});
  const auto open = [&](const std::string& name, v1::Durability durability) {
    v1::OpenSessionRequest request;
    request.set_name(name);
    request.set_model("b");
    request.set_durability(durability);
    client_->open_session(request);
  };
  load("b");
  for (const char* name : {"kept", "whole"}) open(name, v1::DURABILITY_LOCAL);
  open("lost", v1::DURABILITY_NONE);
  std::vector<int32_t> first = ids_of("", "kept"), whole = ids_of("", "whole");
  ids_of("", "lost");
  whole = ids_of("", "whole");
  unload("b");
  EXPECT_EQ(
      failure_of([&] { ids_of("", "kept"); }),
      code(StatusCode::NOT_FOUND) +
          R"(session "kept" is of the model "b", which is not loaded now: this server has "a")");
  EXPECT_EQ(
      failure_of([&] { client_->get_session("kept"); }),
      code(StatusCode::NOT_FOUND) +
          R"(session "kept" is of the model "b", which is not loaded now: this server has "a")");
  v1::OpenSessionRequest taken;
  taken.set_name("kept");
  EXPECT_THAT(failure_of([&] { client_->open_session(taken); }),
              StartsWith(code(StatusCode::ALREADY_EXISTS)));
  taken.set_name("lost");
  EXPECT_EQ(client_->open_session(taken).model(), "a") << "its name is free";
  load("b");
  EXPECT_EQ(ids_of("", "kept"), whole) << "the second turn, as without an unload";
  EXPECT_EQ(client_->get_session("kept").model(), "b");
  EXPECT_EQ(client_->list_sessions().size(), 3u);
  EXPECT_EQ(client_->list_sessions("", {}, "a").size(), 1u);
}

TEST_F(LoadModelsTest, WrongNamesPathsAndFlagsAreRefused) {
  copy_model("mamba2-books", folder_ / "outside");
  fs::create_directory_symlink(folder_ / "outside", root() / "link");
  fs::create_directory_symlink("b", root() / "within");
  const auto with = [&](const char* name) {
    copy_model("mamba2-books", root() / name);
    return root() / name;
  };
  const fs::path out = with("out") / "config.json";
  fs::remove(out);
  fs::create_symlink("../../outside/config.json", out);
  const fs::path absolute = with("absolute") / "model.safetensors";
  fs::remove(absolute);
  fs::create_symlink(folder_ / "outside/model.safetensors", absolute);
  const fs::path inside = with("inside") / "config.json";
  fs::remove(inside);
  fs::create_symlink("../b/config.json", inside);
  mkfifo((with("pipe") / "notes").c_str(), 0600);
  std::ofstream(root() / "file") << "no directory";
  std::ofstream(with("damaged") / "config.json") << "{";
  fs::create_directory(root() / "empty");
  start();
  const std::string invalid = code(StatusCode::INVALID_ARGUMENT);
  const std::string not_found = code(StatusCode::NOT_FOUND);
  const std::string precondition = code(StatusCode::FAILED_PRECONDITION);
  for (const std::string name : {"", "x/y", "x y", "x\n", "\xc3\xa4", "x=y"}) {
    EXPECT_THAT(load_error(name, "b"), StartsWith(invalid + "name must have 1 to 128 letters"))
        << name;
  }
  EXPECT_THAT(load_error(std::string(129, 'x'), "b"), StartsWith(invalid + "name must"));
  const std::string below = "path must be below --model-root, got ";
  for (const std::string path : {"..", "../outside", "b/../../outside", "/", "/etc"}) {
    EXPECT_EQ(load_error("x", path), invalid + below + path);
  }
  EXPECT_EQ(load_error("x", folder_ / "outside"), invalid + below + (folder_ / "outside").string());
  EXPECT_EQ(load_error(".."), invalid + below + "..");
  EXPECT_EQ(load_error("link"), invalid + "path must have no symbolic link, got link");
  EXPECT_EQ(load_error("within"), invalid + "path must have no symbolic link, got within");
  for (const std::string& path :
       {std::string("b\0c", 3), std::string("b\n"), std::string(2000, 'x')}) {
    EXPECT_THAT(load_error("x", path), StartsWith(invalid + "path must have 1 to 1024 bytes"));
  }
  for (const std::string path : {"none", "file", "none/b"}) {
    EXPECT_EQ(load_error("x", path), not_found + "--model-root has no directory " + path);
  }
  EXPECT_EQ(load_error("out"),
            invalid + "path out: the link config.json leads out of --model-root");
  EXPECT_EQ(load_error("absolute"),
            invalid + "path absolute: the link model.safetensors leads out of --model-root");
  EXPECT_EQ(load_error("pipe"), invalid + "path pipe: notes is neither a file nor a directory");
  EXPECT_THAT(load_error("damaged"), StartsWith(precondition + "the model cannot be loaded: "));
  EXPECT_THAT(load_error("empty"), StartsWith(precondition + "the model cannot be loaded: "));
  EXPECT_THAT(load_error("b", "", {{"path", "b"}}),
              StartsWith(invalid + "flags: unknown key path"));
  EXPECT_THAT(load_error("b", "", {{"slots", "-1"}}),
              HasSubstr("flags: slots: wanted auto or an integer"));
  EXPECT_THAT(load_error("b", "", {{"device", "cuda:0"}}),
              HasSubstr("a server that was started without a model on a GPU cannot use one"));
  EXPECT_EQ(load_error("a", "b"),
            code(StatusCode::ALREADY_EXISTS) + "the model \"a\" is loaded: unload it first");
  EXPECT_EQ(failure_of([&] { unload("b"); }), not_found + "there is no model \"b\"");
  EXPECT_EQ(failure_of([&] { unload("a"); }),
            precondition + "the model \"a\" stays: requests that name none go to it");
  EXPECT_THAT(failure_of([&] { unload("a", -1); }),
              StartsWith(invalid + "drain_seconds must be in"));
  EXPECT_THAT(names(), ElementsAre("a"));
  EXPECT_EQ(load_error("inside"), "OK");
  EXPECT_EQ(load_error("dots", "b/../b/."), "OK");
  EXPECT_THAT(names(), ElementsAre("a", "inside", "dots"));
}

// Whether threads can be confined to folders here.
bool has_landlock() {
#ifdef RECURVE_SANITIZED
  return false;  // sanitizers open further files
#else
  constexpr uint32_t kVersion = 1;
  return syscall(SYS_landlock_create_ruleset, nullptr, 0, kVersion) > 0;
#endif
}

TEST_F(LoadModelsTest, APathThatIsSwappedAfterItsCheckLeadsNowhereElse) {
  if (!has_landlock()) GTEST_SKIP() << "no Landlock";
  copy_model("mamba2-books", folder_ / "outside");
  copy_model("mamba2-books", root() / "other");
  const std::string weights = "model.safetensors";
  setenv("LD_PRELOAD", RECURVE_SWAP_PATH_LIBRARY, 1);
  setenv("RECURVE_SWAPPED", (root() / "b" / weights).c_str(), 1);
  std::string errors[2];
  for (const bool outside : {false, true}) {
    const fs::path to = outside ? folder_ / "outside" : root() / "other";
    setenv("RECURVE_SWAPPED_FOR", (to / weights).c_str(), 1);
    start();
    errors[outside ? 1 : 0] = load_error("b");
    EXPECT_EQ(server_->stop(), 0) << server_->log();
  }
  for (const char* name : {"LD_PRELOAD", "RECURVE_SWAPPED", "RECURVE_SWAPPED_FOR"}) unsetenv(name);
  EXPECT_EQ(errors[0], "OK");
  EXPECT_THAT(errors[1], AllOf(StartsWith(code(StatusCode::FAILED_PRECONDITION)),
                               HasSubstr("Permission denied")));
}

TEST_F(LoadModelsTest, AModelThatDoesNotFitIsRefusedWithTheSum) {
  start();
  EXPECT_THAT(load_error("b", "", {{"session_memory", "100TB"}}),
              AllOf(HasSubstr("model \"b\": not enough memory on the host: --session-memory"),
                    HasSubstr(" + everything else "), HasSubstr("GiB are free")));
  EXPECT_THAT(load_error("b", "", {{"slots", "1000000"}}),
              AllOf(HasSubstr("not enough memory on device 'cpu': other models 0."),
                    HasSubstr(" = "), HasSubstr("GiB are free; --slots ")));
  EXPECT_THAT(names(), ElementsAre("a"));
  EXPECT_EQ(load_error("b"), "OK");
}

TEST_F(LoadModelsTest, OfTwoLoadsOfOneNameOneSucceeds) {
  start();
  std::string errors[2];
  std::vector<std::thread> callers;
  for (std::string& error : errors) {
    callers.emplace_back([&] {
      Client client(server_->address());
      v1::LoadModelRequest request;
      request.set_name("b");
      error = failure_of([&] { client.load_model(request); });
    });
  }
  for (std::thread& caller : callers) caller.join();
  std::ranges::sort(errors);
  EXPECT_EQ(errors[0],
            code(StatusCode::ALREADY_EXISTS) + "the model \"b\" is loaded: unload it first");
  EXPECT_EQ(errors[1], "OK");
}

TEST_F(LoadModelsTest, ARootThatIsRemovedIsNamed) {
  start();
  fs::remove_all(root());
  EXPECT_THAT(load_error("b"),
              AllOf(StartsWith(code(StatusCode::FAILED_PRECONDITION)), HasSubstr("was removed")));
  EXPECT_FALSE(ids_of("a").empty());
}

TEST_F(LoadModelsTest, TheServerEndsWhileAModelIsUnloaded) {
  start({"--drain-seconds", "0.1"});
  load("b");
  std::atomic<bool> begun{false};
  std::thread user([&] {
    Client client(server_->address());
    v1::GenerateRequest request = generate_request("It was", 1'000'000);
    request.set_model("b");
    request.mutable_stop()->set_ignore_eos(true);
    failure_of([&] {
      client.generate(request, [&](const v1::GenerateResponse& response) {
        if (response.has_chunk() && !begun.exchange(true)) begun.notify_all();
      });
    });
    begun = true;
    begun.notify_all();
  });
  begun.wait(false);
  std::string end;
  std::thread admin([&] { end = failure_of([&] { unload("b", 1000); }); });
  while (client_->list_models().unloading().empty()) std::this_thread::yield();
  EXPECT_EQ(server_->stop(), 0) << server_->log();
  user.join();
  admin.join();
  EXPECT_THAT(end, ::testing::AnyOf("OK", StartsWith(code(StatusCode::UNAVAILABLE))));
}

TEST(ModelRootTest, IsNeededToLoadAndMustExist) {
  ServerProcess without({"--model", "a=" + (kDemo / "xlstm-books").string(), "--threads", "1"});
  Client client(without.address());
  v1::LoadModelRequest request;
  request.set_name("b");
  try {
    client.load_model(request);
    FAIL();
  } catch (const ClientError& error) {
    EXPECT_EQ(error.code(), StatusCode::UNIMPLEMENTED);
    EXPECT_THAT(error.message(), HasSubstr("start it with --model-root"));
  }
  ServerProcess missing(
      {"--model", "a=" + (kDemo / "xlstm-books").string(), "--model-root", "/no/such/folder"});
  EXPECT_EQ(missing.wait(), 1);
  EXPECT_THAT(missing.log(), HasSubstr("--model-root /no/such/folder: wanted a directory"));
}

}  // namespace recurve::testing::load_models_test
