// Memory of an answer that a frontend sends as a whole: at most what was reserved before it
// started.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kserve/v2/inference.grpc.pb.h"
#include "server/http/anthropic/api.h"
#include "server/http/openai/api.h"
#include "server/http/server.h"
#include "server/kserve/kserve_service.h"
#include "tests/support/counted_memory.h"
#include "tests/support/http_client.h"
#include "tests/support/rpc_fixture.h"

namespace recurve::gathered_memory_test {

using nlohmann::json;
using testing::HttpClient;

// Token texts of the most expensive kind for each form: characters that JSON escapes, or bytes that
// are not UTF-8.
class WideTokenizer final : public Tokenizer {
 public:
  WideTokenizer(size_t bytes, char of) {
    for (int32_t id = 0; id < FakeTokenizer::kSize; ++id) {
      std::string text(bytes, of);
      if (bytes > 1)
        text[0] = static_cast<char>('A' + id % 26), text[1] = static_cast<char>('A' + id / 26);
      texts_.push_back(std::move(text));
    }
  }
  std::unique_ptr<TextEncoder> encoder(SpecialTokens special, TextPosition position,
                                       const WorkLimits& limits) const override {
    return bytes_.encoder(special, position, limits);
  }
  bool marks_start() const override { return false; }
  int32_t size() const override { return bytes_.size(); }
  std::string_view token_bytes(int32_t id) const override {
    if (on_token) on_token();
    if (bytes_.is_special(id)) return {};
    return texts_[static_cast<size_t>(id)];
  }
  bool is_special(int32_t id) const override { return bytes_.is_special(id); }
  std::optional<int32_t> id_of(std::string_view name) const override { return bytes_.id_of(name); }
  std::optional<int32_t> bos_id() const override { return bytes_.bos_id(); }
  std::optional<int32_t> eos_id() const override { return bytes_.eos_id(); }
  std::string description() const override { return "wide"; }

  std::function<void()> on_token;  // before a token is written

 private:
  const FakeTokenizer bytes_;
  std::vector<std::string> texts_;
};

struct Texts {
  size_t bytes;
  char of;
};

class GatheredMemory : public RpcFixture {
 protected:
  // Enough that the answer is most of a call's memory.
  static constexpr int tokens(int top) { return top < 0 ? 4000 : 100; }

  void serve(const Texts& texts) {
    services_ = {kserve_service()};
    wide_ = std::make_shared<WideTokenizer>(texts.bytes, texts.of);
    tokenizer_ = wide_;
    const char* written = "{% for m in messages %}{{ m.content }}{% endfor %}";
    chat_ = {
        .format = std::make_shared<const ChatTemplate>(written, "", jinja::Template::Variables{}),
        .exists = true,
        .tool_form = nullptr,
        .problem = ""};
    const auto script = [this](const Request&) {
      held_ = core_->gathered_bytes.used();
      return FakeEngine::Play{
          std::vector<std::vector<int32_t>>(3, std::vector<int32_t>(tokens(-1) + 1, 1))};
    };
    start({.script = script, .next_likely = 1},
          {.core = {.max_gathered_bytes = int64_t{8} << 30}});  // what it holds is known, too
    http_.emplace(HttpOptions{.listen = "127.0.0.1:0"},
                  std::vector{openai_api(*core_), anthropic_api(*core_)}, *core_, connections_);
    ask("/v1/completions", {{"prompt", "p"}, {"max_tokens", 1}});
  }

  // The peak of live memory above that before.
  template <typename Call>
  int64_t taken_by(const Call& call) {
    const testing::MostLiveBytes most;
    held_ = -1;
    call();
    EXPECT_TRUE(core_->registry.wait_until_empty(Clock::now() + std::chrono::minutes(1)));
    EXPECT_TRUE(eventually([&] { return core_->gathered_bytes.used() == 0; }));
    return most();
  }
  void ask(const std::string& path, const json& body) {
    HttpClient client(http_->port());
    client.post(path, body, "Connection: close\r\n");
    EXPECT_EQ(client.read_status(), 200) << path << body;
  }
  // In addition to what every call takes.
  void expect_held(const std::string& what, int64_t taken) {
    constexpr int64_t kCall = 1 << 20;
    EXPECT_GT(held_, 0) << what;
    EXPECT_LE(taken, held_ + kCall) << what;
  }
  void stop() {
    http_->shutdown();
    server_->shutdown();
    engine_.reset();
    http_.reset();
    server_.reset();
  }
  // The client has one copy of the response.
  void call(const char* method, const google::protobuf::Message& request) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    const auto channel = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server_->port()),
                                                   grpc::InsecureChannelCredentials(), arguments);
    const grpc::internal::RpcMethod rpc(method, grpc::internal::RpcMethod::NORMAL_RPC);
    grpc::ClientContext context;
    grpc::ByteBuffer response;
    const grpc::Status status =
        grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
            channel.get(), rpc, &context, to_buffer(request.SerializeAsString()), &response);
    EXPECT_TRUE(status.ok()) << method << status.error_message();
  }

  std::shared_ptr<WideTokenizer> wide_;
  std::atomic<int64_t> held_{-1};
  Connections connections_{{.in_all = 100, .by_network = 100}};
  std::optional<HttpServer> http_;
};

constexpr Texts kTexts[] = {{4, 'a'}, {32, '\xff'}, {128, '\xff'}, {128, '\x01'}, {128, 'a'}};

TEST_F(GatheredMemory, OfHttpIsReserved) {
  for (const Texts& texts : kTexts) {
    serve(texts);
    for (const int top : {-1, 20}) {
      const std::string what = fmt::format(" of {} x {:#x}, {} likeliest", texts.bytes,
                                           static_cast<unsigned char>(texts.of), top);
      json body = {{"max_tokens", tokens(top)}, {"prompt", "p"}};
      if (top >= 0) body["logprobs"] = top;
      expect_held("completion" + what, taken_by([&] { ask("/v1/completions", body); }));
      body.erase("prompt");
      body["messages"] = json::array({{{"role", "user"}, {"content", "c"}}});
      if (top >= 0) body.update({{"logprobs", true}, {"top_logprobs", top}});
      expect_held("chat" + what, taken_by([&] { ask("/v1/chat/completions", body); }));
      if (top < 0) {
        expect_held("message" + what, taken_by([&] { ask("/v1/messages", body); }));
      }
      for (const bool stream : {false, true}) {
        json response = {{"max_output_tokens", tokens(top)}, {"stream", stream}, {"input", "p"}};
        if (top >= 0) response["include"] = {"message.output_text.logprobs"};
        if (top >= 0) response["top_logprobs"] = top;
        expect_held(fmt::format("response, stream {}", stream) + what,
                    taken_by([&] { ask("/v1/responses", response); }));
      }
    }
    stop();
  }
}

// A prompt that is repeated per choice, with and without log-probabilities, and in a stream too.
TEST_F(GatheredMemory, OfPromptsIsReserved) {
  for (const Texts& texts : kTexts) {
    serve(texts);
    for (const int top : {-1, 20}) {
      for (const bool stream : {false, true}) {
        json body = {{"max_tokens", 1}, {"echo", true}, {"n", 3}, {"stream", stream}};
        body["prompt"] = std::string(static_cast<size_t>(tokens(top)), '\x01');
        if (top >= 0) body["logprobs"] = top;
        expect_held(fmt::format("echo of {} x {:#x}, {} likeliest, stream {}", texts.bytes,
                                static_cast<unsigned char>(texts.of), top, stream),
                    taken_by([&] { ask("/v1/completions", body); }));
      }
    }
    stop();
  }
}

TEST_F(GatheredMemory, OfTensorsIsReserved) {
  for (const Texts& texts : kTexts) {
    serve(texts);
    for (const int top : {-1, 20}) {
      inference::ModelInferRequest request;
      request.set_model_name("fake");
      auto& text = *request.add_inputs();
      text.set_name("text_input");
      text.set_datatype("BYTES");
      text.add_shape(1);
      text.mutable_contents()->add_bytes_contents(std::string(10'000, 'p'));
      (*request.mutable_parameters())["max_tokens"].set_int64_param(tokens(top));
      if (top >= 0) (*request.mutable_parameters())["logprobs"].set_int64_param(top);
      for (const char* name : {"return_finish_reason", "return_logprobs", "return_output_ids"}) {
        auto& flag = *request.add_inputs();
        flag.set_name(name);
        flag.set_datatype("BOOL");
        flag.add_shape(1);
        flag.mutable_contents()->add_bool_contents(true);
      }
      expect_held(fmt::format("tensors of {} x {:#x}, {} likeliest", texts.bytes,
                              static_cast<unsigned char>(texts.of), top),
                  taken_by([&] { call("/inference.GRPCInferenceService/ModelInfer", request); }));
    }
    stop();
  }
}

// One message, whose size is known before it is built.
TEST_F(GatheredMemory, OfTextsIsReserved) {
  for (const Texts& texts : kTexts) {
    serve(texts);
    // While its texts are written, when memory for the answer is reserved.
    const auto held_by = [&](const auto& ask_for) {
      wide_->on_token = [this] { held_ = std::max(held_.load(), core_->gathered_bytes.used()); };
      const int64_t taken = taken_by(ask_for);
      wide_->on_token = nullptr;
      return taken;
    };
    v1::DetokenizeRequest ids;
    for (int i = 0; i < 20'000; ++i) ids.add_ids(i % 256);
    expect_held("detokenize", held_by([&] { call("/recurve.v1.Inference/Detokenize", ids); }));
    v1::TokenizeRequest text;
    text.set_text(std::string(20'000, 'p'));
    text.set_with_bytes(true);
    expect_held("tokenize", held_by([&] { call("/recurve.v1.Inference/Tokenize", text); }));
    stop();
  }
}

}  // namespace recurve::gathered_memory_test
