#include <gmock/gmock.h>

#include <stdexcept>
#include <thread>

#include "tests/support/rpc_fixture.h"

namespace recurve::service_test {

using grpc::StatusCode;
using ::testing::HasSubstr;

FakeEngine::Options endless() {
  return {.step = std::chrono::milliseconds(1), .script = [](const Request&) {
            return FakeEngine::Play{{std::vector<int32_t>(1'000'000, 'a')}};
          }};
}

// HealthCheckRequest and HealthCheckResponse by hand: the stub would define the same protocol as
// the server's library.
constexpr const char* kServing = "\x08\x01";
constexpr const char* kNotServing = "\x08\x02";
std::string health_request(const std::string& service) {
  return service.empty() ? ""
                         : "\x0a" + std::string(1, static_cast<char>(service.size())) + service;
}

class ServiceTest : public RpcFixture {
 protected:
  std::string health(const std::string& service) {
    return raw_call(*channel_, "/grpc.health.v1.Health/Check", health_request(service)).bytes;
  }
  v1::ServerInfo server_info() {
    v1::ServerInfo info;
    grpc::ClientContext context;
    EXPECT_TRUE(control_->GetServerInfo(&context, {}, &info).ok());
    return info;
  }
  v1::GenerateRequest long_request() {
    v1::GenerateRequest request = text_request("go");
    request.mutable_stop()->set_max_tokens(1'000'000);
    return request;
  }
};

TEST_F(ServiceTest, LoadingIsNotServing) {
  serve_ = false;
  start();
  EXPECT_EQ(health(""), kNotServing);
  EXPECT_EQ(health("recurve.v1.Inference"), kNotServing);
  EXPECT_EQ(server_info().state(), v1::SERVER_STATE_LOADING);

  const Generated got = generate(text_request("x"));
  EXPECT_EQ(got.status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_THAT(got.status.error_message(), HasSubstr("loading"));
  v1::ModelInfo model;
  grpc::ClientContext first, second, third;
  EXPECT_EQ(control_->GetModelInfo(&first, {}, &model).error_code(), StatusCode::UNAVAILABLE);
  v1::Session session;
  EXPECT_EQ(sessions_->Open(&second, {}, &session).error_code(), StatusCode::UNAVAILABLE);
  v1::TokenizeResponse tokens;
  EXPECT_EQ(inference_->Tokenize(&third, {}, &tokens).error_code(), StatusCode::UNAVAILABLE);

  core_->serve(*served_, std::make_shared<FakeTokenizer>(), fake_info());
  EXPECT_EQ(health(""), kServing);
  EXPECT_EQ(health("recurve.v1.Inference"), kServing);
  EXPECT_EQ(health("recurve.v1.Sessions"), kServing);
  EXPECT_EQ(health("recurve.v1.Control"), kServing);
  EXPECT_EQ(server_info().state(), v1::SERVER_STATE_SERVING);
  EXPECT_TRUE(generate(text_request("x")).status.ok());
}

TEST_F(ServiceTest, HealthWatchersSeeEveryChange) {
  serve_ = false;
  start();
  const grpc::internal::RpcMethod rpc("/grpc.health.v1.Health/Watch",
                                      grpc::internal::RpcMethod::SERVER_STREAMING);
  grpc::ClientContext context;
  const std::unique_ptr<grpc::ClientReader<grpc::ByteBuffer>> reader(
      grpc::internal::ClientReaderFactory<grpc::ByteBuffer>::Create(channel_.get(), rpc, &context,
                                                                    to_buffer("")));
  const auto next = [&] {
    grpc::ByteBuffer response;
    return reader->Read(&response) ? to_string(response) : "closed";
  };
  EXPECT_EQ(next(), kNotServing);
  core_->serve(*served_, std::make_shared<FakeTokenizer>(), fake_info());
  EXPECT_EQ(next(), kServing);
  EXPECT_TRUE(core_->drain(Clock::now() + std::chrono::seconds(5)));
  EXPECT_EQ(next(), kNotServing);
  context.TryCancel();
  reader->Finish();
}

TEST_F(ServiceTest, DrainFinishesRequestsAndRefusesNewOnes) {
  start();
  engine_->hold(true);
  std::thread under_way([&] { EXPECT_EQ(generate(text_request("last")).text(), "last"); });
  ASSERT_TRUE(eventually([&] { return queue_->waiting() == 1; }));
  std::thread drain([&] { EXPECT_TRUE(core_->drain(Clock::now() + std::chrono::seconds(30))); });
  ASSERT_TRUE(eventually([&] { return server_info().state() == v1::SERVER_STATE_DRAINING; }));
  EXPECT_EQ(health(""), kNotServing);
  const Generated refused = generate(text_request("late"));
  EXPECT_EQ(refused.status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("draining"));
  const auto mark = refused.trailers.find("recurve-state");
  ASSERT_NE(mark, refused.trailers.end()) << "distinguishes it from a lost connection";
  EXPECT_EQ(mark->second, "draining");
  engine_->hold(false);
  under_way.join();
  drain.join();
}

TEST_F(ServiceTest, RequestsAtTheDrainsDeadlineGetUnavailable) {
  start(endless());
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, long_request());
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(core_->under_way(), 1);
  std::thread read([&] {
    while (reader->Read(&response)) {
    }
  });
  EXPECT_FALSE(core_->drain(Clock::now() + std::chrono::milliseconds(50)));
  read.join();
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(core_->under_way(), 0);
}

TEST_F(ServiceTest, ServeAfterDrainDoesNotServe) {
  serve_ = false;
  start();
  EXPECT_TRUE(core_->drain(Clock::now()));
  core_->serve(*served_, std::make_shared<FakeTokenizer>(), fake_info());
  EXPECT_EQ(health(""), kNotServing);
  EXPECT_EQ(generate(text_request("x")).status.error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(ServiceTest, ShutdownEndsRunningCalls) {
  start(endless());
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, long_request());
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  server_->shutdown();  // the client does not read
  EXPECT_EQ(core_->under_way(), 0);
  EXPECT_TRUE(eventually([&] { return engine_->running() == 0; }));
  while (reader->Read(&response)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
}

TEST_F(ServiceTest, DrainRpcCallsOnDrain) {
  std::atomic<double> asked{-1};
  start({}, {.core = {.drain_seconds = 12, .on_drain = [&](double seconds) { asked = seconds; }}});
  const auto drain = [&](std::optional<double> seconds) {
    v1::DrainRequest request;
    if (seconds) request.set_deadline_seconds(*seconds);
    v1::DrainResponse response;
    grpc::ClientContext context;
    return control_->Drain(&context, request, &response);
  };
  EXPECT_EQ(drain(-1).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(asked, -1);
  EXPECT_TRUE(drain({}).ok());
  EXPECT_TRUE(eventually([&] { return asked == 12; }));
  EXPECT_TRUE(drain(3.5).ok());
  EXPECT_TRUE(eventually([&] { return asked == 3.5; }));
}

TEST_F(ServiceTest, ReflectionListsTheServices) {
  start();
  const grpc::internal::RpcMethod rpc(
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
      grpc::internal::RpcMethod::BIDI_STREAMING);
  grpc::ClientContext context;
  using Stream = grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;
  const std::unique_ptr<Stream> stream(
      grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
          channel_.get(), rpc, &context));
  const auto ask = [&](const std::string& request) {
    grpc::ByteBuffer response;
    EXPECT_TRUE(stream->Write(to_buffer(request)));
    EXPECT_TRUE(stream->Read(&response));
    return to_string(response);
  };
  const std::string services = ask({"\x3a\x00", 2});  // list_services: ""
  for (const char* name : {"recurve.v1.Inference", "recurve.v1.Sessions", "recurve.v1.Control",
                           "grpc.health.v1.Health"}) {
    EXPECT_THAT(services, HasSubstr(name));
  }
  // file_containing_symbol
  EXPECT_THAT(ask("\x22\x14recurve.v1.Inference"), HasSubstr("GenerateRequest"));
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(ServiceTest, APortInUseIsReported) {
  start();
  const std::string address = "127.0.0.1:" + std::to_string(server_->port());
  for (const std::string& bad : {address, std::string("no such address")}) {
    try {
      RpcServer second({.listen = bad}, *core_);
      FAIL() << "listens on " << bad;
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), HasSubstr("cannot listen on \"" + bad + "\""));
    }
  }
}

TEST_F(ServiceTest, InfoHasTheConfiguredValues) {
  start({}, {.core = {.version = "1.2.3", .max_prompt_tokens = 77}});
  v1::ModelInfo model;
  grpc::ClientContext first, second;
  ASSERT_TRUE(control_->GetModelInfo(&first, {}, &model).ok());
  EXPECT_EQ(model.name(), "fake");
  EXPECT_EQ(model.vocab_size(), FakeTokenizer::kSize + 2);
  EXPECT_EQ(model.token_count(), FakeTokenizer::kSize);
  EXPECT_EQ(model.bos_id(), FakeTokenizer::kBos);
  ASSERT_EQ(model.eos_ids_size(), 1);
  EXPECT_EQ(model.tokenizer(), "bytes");
  ASSERT_EQ(model.ops_size(), 1);
  EXPECT_EQ(model.ops(0).implementation(), "fake");

  const v1::ServerInfo server = server_info();
  EXPECT_EQ(server.version(), "1.2.3");
  EXPECT_EQ(server.limits().slots(), 8);
  EXPECT_EQ(server.limits().max_choices(), 8);
  EXPECT_EQ(server.limits().max_queue(), 64);
  EXPECT_EQ(server.limits().max_prompt_tokens(), 77);
  EXPECT_EQ(server.limits().max_stop_strings(), 16);
  EXPECT_GE(server.uptime_seconds(), 0);

  served_->stats.publish({.running = 3, .slots = 8, .responses = 4, .sessions_host = 2});
  v1::Load load;
  ASSERT_TRUE(control_->GetLoad(&second, {}, &load).ok());
  EXPECT_EQ(load.requests_running(), 3);
  EXPECT_EQ(load.slots().total(), 8);
  EXPECT_EQ(load.sessions().responses(), 4);
  EXPECT_EQ(load.sessions().host(), 2);
}

TEST_F(ServiceTest, TokenizeAndDetokenize) {
  start();
  v1::TokenizeRequest request;
  request.set_text("hé");
  request.set_with_bytes(true);
  v1::TokenizeResponse tokens;
  grpc::ClientContext first, second, third;
  ASSERT_TRUE(inference_->Tokenize(&first, request, &tokens).ok());
  EXPECT_THAT(tokens.ids(), ::testing::ElementsAre(FakeTokenizer::kBos, 'h', 0xC3, 0xA9));
  EXPECT_THAT(tokens.token_bytes(), ::testing::ElementsAre("", "h", "\xC3", "\xA9"));
  request.set_add_special_tokens(false);
  tokens.Clear();
  ASSERT_TRUE(inference_->Tokenize(&second, request, &tokens).ok());
  EXPECT_EQ(tokens.ids_size(), 3);

  v1::DetokenizeRequest ids;
  for (const int32_t id : {FakeTokenizer::kBos, FakeTokenizer::kWords, 0xC3, 0xA9, 0xC3}) {
    ids.add_ids(id);
  }
  v1::DetokenizeResponse text;
  ASSERT_TRUE(inference_->Detokenize(&third, ids, &text).ok());
  EXPECT_EQ(text.text(), "helloé\xEF\xBF\xBD");
}

}  // namespace recurve::service_test
