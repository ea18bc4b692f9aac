// Several models in one process: each answers as it does alone, in every protocol.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "clients/cpp/client.h"
#include "kserve/v2/inference.grpc.pb.h"
#include "recurve/v1/control.grpc.pb.h"
#include "tests/support/generate_outcome.h"
#include "tests/support/http_client.h"
#include "tests/support/server_process.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::models_test {

using grpc::StatusCode;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kDemo = std::string(RECURVE_SOURCE_DIR) + "/weights_tools/demo/";
const std::string kA = "a=" + kDemo + "xlstm-books", kB = "b=" + kDemo + "mamba2-books";

std::vector<std::string> flags(std::vector<std::string> models,
                               const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = {"--http",    "127.0.0.1:0", "--chat-template", "chatml",
                                  "--threads", "1",           "--slots",         "4"};
  for (const std::string& model : models) all.insert(all.end(), {"--model", model});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::string infer(const std::string& address, const std::string& model, grpc::Status* status) {
  const auto stub = inference::GRPCInferenceService::NewStub(own_channel(address));
  inference::ModelInferRequest request;
  request.set_model_name(model);
  auto& text = *request.add_inputs();
  text.set_name("text_input");
  text.set_datatype("BYTES");
  text.add_shape(1);
  text.mutable_contents()->add_bytes_contents("It was a cold evening");
  (*request.mutable_parameters())["temperature"].set_int64_param(0);
  grpc::ClientContext context;
  inference::ModelInferResponse response;
  *status = stub->ModelInfer(&context, request, &response);
  if (!status->ok()) return {};
  EXPECT_EQ(response.model_name(), model);
  return response.outputs(0).contents().bytes_contents(0);
}

json post(int port, const std::string& path, json body, const std::string& model) {
  body["model"] = model;
  HttpClient client(port);
  client.post(path, body);
  return client.read().object();
}

// What one model says, in every protocol; of HTTP without what differs from call to call.
json answers_of(ServerProcess& server, const std::string& model) {
  json all;
  Client client(server.address());
  v1::GenerateRequest request = generate_request("It was a cold evening", 24);
  request.set_model(model);
  v1::OpenSessionRequest open;
  open.set_name("of-" + model);
  open.set_model(model);
  client.open_session(open);
  for (const char* session : {"", "of", "of"}) {
    request.set_session(*session == '\0' ? "" : open.name());
    client.generate(request, [&](const v1::GenerateResponse& response) {
      for (const int32_t id : response.chunk().ids()) all["grpc"].push_back(id);
      if (response.has_prompt()) {
        EXPECT_EQ(response.prompt().model(), model);
      }
    });
  }
  client.close_session(open.name());
  v1::ScoreOptions options;
  options.set_model(model);
  all["score"] = client.score(options, "The old house stood", [](const auto&) {}).sum_logprob();
  v1::EmbedRequest embed;
  embed.set_model(model);
  embed.add_inputs()->set_text("The old house");
  client.embed(embed, [&](const v1::EmbedResponse& response) {
    for (const float value : response.embedding().values()) all["embedding"].push_back(value);
  });

  const int port = server.http_port();
  const json messages = json::array({{{"role", "user"}, {"content", "Who is there?"}}});
  const json common = {{"temperature", 0}, {"max_tokens", 12}};
  const auto with = [&](json body) {
    body.update(common);
    return body;
  };
  all["completions"] =
      post(port, "/v1/completions", with({{"prompt", "It was"}}), model)["choices"];
  all["chat"] =
      post(port, "/v1/chat/completions", with({{"messages", messages}}), model)["choices"];
  all["messages"] = post(port, "/v1/messages", with({{"messages", messages}}), model)["content"];
  const json response =
      post(port, "/v1/responses",
           {{"input", "Who is there?"}, {"temperature", 0}, {"max_output_tokens", 12}}, model);
  all["response"] = response["output"][0]["content"];
  all["responses"] = post(port, "/v1/responses",
                          {{"input", "And now?"},
                           {"previous_response_id", response["id"]},
                           {"temperature", 0},
                           {"max_output_tokens", 12}},
                          model)["output"][0]["content"];
  all["embeddings"] = post(port, "/v1/embeddings", {{"input", "The old house"}}, model)["data"];
  all["tokenize"] = post(port, "/tokenize", {{"prompt", "The old house"}}, model);
  all["count"] = post(port, "/v1/messages/count_tokens", {{"messages", messages}}, model);
  grpc::Status status;
  all["kserve"] = infer(server.address(), model, &status);
  EXPECT_TRUE(status.ok()) << status.error_message();
  for (const auto& [key, value] : all.items()) EXPECT_FALSE(value.is_null()) << key;
  return all;
}

TEST(ModelsTest, EachAnswersAsAlone) {
  json alone;
  for (const auto& [name, model] : {std::pair("a", kA), std::pair("b", kB)}) {
    ServerProcess server(flags({model}));
    alone[name] = answers_of(server, name);
  }
  ASSERT_NE(alone["a"], alone["b"]);
  ServerProcess server(flags({kA, kB}));
  EXPECT_EQ(answers_of(server, "a"), alone["a"]);
  EXPECT_EQ(answers_of(server, "b"), alone["b"]);
  json a, b;  // concurrently
  std::thread other([&] { b = answers_of(server, "b"); });
  a = answers_of(server, "a");
  other.join();
  EXPECT_EQ(a, alone["a"]);
  EXPECT_EQ(b, alone["b"]);
  EXPECT_EQ(server.stop(), 0) << server.log();
}

class TwoModelsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = new ServerProcess(flags({kA, kB})); }
  static void TearDownTestSuite() {
    EXPECT_EQ(server_->stop(), 0) << server_->log();
    delete server_;
  }
  void SetUp() override { client_ = std::make_unique<Client>(server_->address()); }
  void TearDown() override {
    for (const auto& session : client_->list_sessions()) client_->close_session(session.name());
  }
  grpc::Status generate(const std::string& model, const std::string& session = "") {
    v1::GenerateRequest request = generate_request("It was", 2);
    request.set_model(model);
    request.set_session(session);
    const auto stub = v1::Inference::NewStub(own_channel(server_->address()));
    grpc::ClientContext context;
    return testing::generate(*stub, request, context).status;
  }
  void open(const std::string& name, const std::string& model) {
    v1::OpenSessionRequest request;
    request.set_name(name);
    request.set_model(model);
    EXPECT_EQ(client_->open_session(request).model(), model.empty() ? "a" : model);
  }

  static ServerProcess* server_;
  std::unique_ptr<Client> client_;
};
ServerProcess* TwoModelsTest::server_ = nullptr;

TEST_F(TwoModelsTest, AnUnknownNameIsRefusedWithThoseThereAre) {
  const grpc::Status status = generate("c");
  EXPECT_EQ(status.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(), R"(unknown model "c": this server has "a", "b")");
  grpc::Status of_kserve;
  infer(server_->address(), "c", &of_kserve);
  EXPECT_EQ(of_kserve.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(of_kserve.error_message(), status.error_message());
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/v1/responses",
                           "/v1/messages", "/v1/embeddings", "/tokenize"}) {
    HttpClient client(server_->http_port());
    client.post(path, {{"model", "c"}});
    const HttpClient::Response response = client.read();
    EXPECT_EQ(response.status, 404) << path;
    EXPECT_EQ(response.object()["error"]["message"], status.error_message()) << path;
  }
}

TEST_F(TwoModelsTest, AllAreListed) {
  HttpClient client(server_->http_port());
  client.get("/v1/models");
  const json list = client.read().object()["data"];
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0]["id"], "a");
  EXPECT_EQ(list[1]["id"], "b");
  const auto control = v1::Control::NewStub(own_channel(server_->address()));
  grpc::ClientContext context;
  v1::ListModelsResponse models;
  ASSERT_TRUE(control->ListModels(&context, {}, &models).ok());
  ASSERT_EQ(models.models_size(), 2);
  EXPECT_EQ(models.models(0).family(), "xlstm");
  EXPECT_EQ(models.models(1).family(), "mamba2");
  grpc::ClientContext of_one;
  v1::GetModelInfoRequest request;
  request.set_model("b");
  v1::ModelInfo info;
  ASSERT_TRUE(control->GetModelInfo(&of_one, request, &info).ok());
  EXPECT_EQ(info.name(), "b");
  const v1::Load load = client_->load();
  ASSERT_EQ(load.models_size(), 2);
  EXPECT_EQ(load.models(1).model(), "b");
  EXPECT_EQ(load.slots().total(), load.models(0).slots().total() + load.models(1).slots().total());
}

TEST_F(TwoModelsTest, ASessionBelongsToItsModel) {
  open("of-b", "b");
  open("of-first", "");
  EXPECT_TRUE(generate("", "of-b").ok()) << "its name is enough";
  EXPECT_TRUE(generate("b", "of-b").ok());
  const grpc::Status status = generate("a", "of-b");
  EXPECT_EQ(status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status.error_message(), R"(session "of-b" is of the model "b", not of "a")");
  v1::OpenSessionRequest again;
  again.set_name("of-b");
  again.set_model("a");
  try {
    client_->open_session(again);
    FAIL();
  } catch (const ClientError& error) {
    EXPECT_EQ(error.code(), StatusCode::ALREADY_EXISTS);
  }
  std::vector<std::string> listed;
  for (const auto& one : client_->list_sessions()) listed.push_back(one.name() + "/" + one.model());
  EXPECT_THAT(listed, ::testing::ElementsAre("of-b/b", "of-first/a"));
  client_->close_session("of-b");
  open("of-b", "a");
}

TEST_F(TwoModelsTest, AResponseOfOneModelIsContinuedByTheOther) {
  const int port = server_->http_port();
  const json first =
      post(port, "/v1/responses", {{"input", "Who?"}, {"max_output_tokens", 4}}, "a");
  const json second =
      post(port, "/v1/responses",
           {{"input", "And now?"}, {"previous_response_id", first["id"]}, {"max_output_tokens", 4}},
           "b");
  EXPECT_EQ(second["model"], "b") << second.dump();
  EXPECT_GT(second["usage"]["input_tokens"], first["usage"]["total_tokens"]);
  EXPECT_EQ(second["usage"]["input_tokens_details"]["cached_tokens"], 0);
}

TEST(ModelsTest, DurableSessionsAreInAFolderOfTheirModel) {
  const TempDir folder;
  const std::string plain = kDemo + "xlstm-books";
  const auto ids_of = [](ServerProcess& server, const std::string& session) {
    Client client(server.address());
    v1::GenerateRequest request = generate_request("It was", 4);
    request.set_session(session);
    std::vector<int32_t> ids;
    client.generate(request, [&](const v1::GenerateResponse& response) {
      for (const int32_t id : response.chunk().ids()) ids.push_back(id);
    });
    return ids;
  };
  const auto open = [](ServerProcess& server, const std::string& name, const std::string& model) {
    Client client(server.address());
    v1::OpenSessionRequest request;
    request.set_name(name);
    request.set_model(model);
    request.set_durability(v1::DURABILITY_LOCAL);
    client.open_session(request);
  };
  {
    ServerProcess one(flags({plain}, {"--state-dir", folder / ""}));
    open(one, "before", "");
    ids_of(one, "before");
    EXPECT_EQ(one.stop(), 0);
  }
  for (int start = 0; start < 2; ++start) {
    ServerProcess two(flags({plain, kB}, {"--state-dir", folder / ""}));
    if (start == 0) open(two, "behind", "b");
    EXPECT_EQ(ids_of(two, "before").size(), 4u) << two.log();
    EXPECT_EQ(ids_of(two, "behind").size(), 4u) << two.log();
    EXPECT_EQ(two.stop(), 0);
  }
  EXPECT_TRUE(std::filesystem::is_directory(folder / "model-b"));
}

TEST(ModelsTest, ModelsOfOneNameAreRefused) {
  ServerProcess server(flags({kA, "a=" + kDemo + "gla-books"}));
  EXPECT_EQ(server.wait(), 2);
  EXPECT_THAT(server.log(), HasSubstr("two models have the name \"a\""));
}

TEST(ModelsTest, AFileHasTheSlotsAndTheWeightsOfEach) {
  const TempDir folder;
  const std::string file = folder / "models.toml";
  std::ofstream(file) << "[b]\npath = '" << kDemo << "mamba2-books'\nslots = 3\nweights = 'f32'\n"
                      << "[a]\npath = '" << kDemo << "xlstm-books'\n";
  ServerProcess server(flags({}, {"--models", file}));
  Client client(server.address());
  const v1::Load load = client.load();
  ASSERT_EQ(load.models_size(), 2);
  EXPECT_EQ(load.models(0).model(), "b") << "the first of the file";
  EXPECT_EQ(load.models(0).slots().total(), 3);
  EXPECT_EQ(load.models(1).slots().total(), 4) << "of --slots";
  const auto control = v1::Control::NewStub(own_channel(server.address()));
  for (const auto& [model, weights] : {std::pair("a", "int8"), std::pair("b", "f32")}) {
    grpc::ClientContext context;
    v1::GetModelInfoRequest request;
    request.set_model(model);
    v1::ModelInfo info;
    ASSERT_TRUE(control->GetModelInfo(&context, request, &info).ok());
    EXPECT_THAT(info.weight_type(), HasSubstr(weights)) << model;
    v1::GenerateRequest generate = generate_request("It was", 2);
    generate.set_model(model);
    client.generate(generate, [](const auto&) {});
  }
  EXPECT_EQ(server.stop(), 0) << server.log();
}

// The allocation that fails is the engine's of the model under load, or only a request's.
TEST(EngineFailureFault, OfOneModelEndsItAlone) {
  const TempDir directory;
  const std::string file = directory / "fail";
  setenv("LD_PRELOAD", RECURVE_FAIL_ALLOCATION_LIBRARY, 1);
  setenv("RECURVE_FAIL_ALLOCATION", file.c_str(), 1);
  ServerProcess server(flags({kA, kB}, {"--sandbox", "off"}));
  unsetenv("LD_PRELOAD");
  const auto stub = v1::Inference::NewStub(own_channel(server.address()));
  v1::GenerateRequest request = generate_request("It was a cold evening", 300);
  request.set_model("b");
  grpc::Status status;
  for (int tries = 0; tries < 100 && status.error_code() != StatusCode::INTERNAL; ++tries) {
    grpc::ClientContext context;
    int messages = 0;
    status = generate(*stub, request, context, [&](const auto&) {
               if (messages++ == tries % 3) std::ofstream(file) << "now";
             }).status;
  }
  ASSERT_EQ(status.error_code(), StatusCode::INTERNAL) << server.log();
  grpc::ClientContext of_b, of_a;
  const grpc::Status refused = generate(*stub, request, of_b).status;
  EXPECT_EQ(refused.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(refused.error_message(), R"(the model "b" has failed: see the server's log)");
  request.set_model("a");
  EXPECT_TRUE(generate(*stub, request, of_a).status.ok()) << server.log();
  while (server.log().find("event=model_failed") == std::string::npos) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  HttpClient client(server.http_port());
  client.get("/health");
  EXPECT_EQ(client.read().object()["models"], (json{{"a", "serving"}, {"b", "failed"}}));
  EXPECT_EQ(server.stop(), 1);
  EXPECT_THAT(server.log(), HasSubstr("event=model_failed model=b"));
}

}  // namespace recurve::testing::models_test
