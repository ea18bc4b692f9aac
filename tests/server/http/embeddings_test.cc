// /v1/embeddings over real sockets, before a fake engine whose hidden state of n tokens is
// (n, 4, 0, 12).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/serving/embedding.h"
#include "tests/support/http_fixture.h"

namespace recurve::http_embeddings_test {

using nlohmann::json;
using ::testing::FloatEq;
using ::testing::HasSubstr;
using testing::HttpClient;

class EmbeddingsTest : public testing::HttpFixture {
 protected:
  json embed(json body) {
    const auto got = post("/v1/embeddings", body);
    EXPECT_EQ(got.status, 200) << got.body;
    return got.object();
  }
  static std::vector<float> values(const json& answer, size_t index) {
    return answer["data"][index]["embedding"].get<std::vector<float>>();
  }
};

TEST_F(EmbeddingsTest, AnswersInOpenAisShape) {
  start();
  const json answer = embed({{"model", "fake"}, {"input", "ab"}, {"user", "me"}});
  EXPECT_EQ(answer["object"], "list");
  EXPECT_EQ(answer["model"], "fake");
  EXPECT_EQ(answer["usage"], json({{"prompt_tokens", 3}, {"total_tokens", 3}}));
  EXPECT_EQ(answer["data"][0]["object"], "embedding");
  EXPECT_EQ(answer["data"][0]["index"], 0);
  EXPECT_THAT(values(answer, 0),
              ::testing::ElementsAre(FloatEq(3.F / 13), FloatEq(4.F / 13), 0, FloatEq(12.F / 13)));
  EXPECT_EQ(engine_->last_request().pooling, Pooling::kLast);
  EXPECT_EQ(engine_->last_request().prefix, PrefixMode::kOff);
}

TEST_F(EmbeddingsTest, TakesEachKindOfInputInOrder) {
  start();
  const json ids = json::array({97, 98, 99});
  for (const json& input :
       {json::array({"a", "abc", "b"}), json::array({json::array({1, 97}), ids, json::array({97})}),
        json::array({"a", ids, "b"})}) {
    const json answer = embed({{"input", input}, {"add_special_tokens", true}});
    ASSERT_EQ(answer["data"].size(), 3u) << input;
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(answer["data"][i]["index"], i);
    EXPECT_GT(values(answer, 1)[0], values(answer, 0)[0]);  // more tokens
  }
  EXPECT_EQ(embed({{"input", ids}})["data"].size(), 1u);
}

TEST_F(EmbeddingsTest, DimensionsAreCutAndNormalizedAgain) {
  start();
  const json answer = embed({{"input", "ab"}, {"dimensions", 2}, {"pooling", "mean"}});
  EXPECT_THAT(values(answer, 0), ::testing::ElementsAre(FloatEq(.6F), FloatEq(.8F)));
  EXPECT_EQ(engine_->last_request().pooling, Pooling::kMean);
}

TEST_F(EmbeddingsTest, Base64HasTheSameBits) {
  start();
  const std::vector<float> plain = values(embed({{"input", "abcde"}}), 0);
  const std::string text =
      embed({{"input", "abcde"}, {"encoding_format", "base64"}})["data"][0]["embedding"];
  std::vector<uint8_t> bytes(text.size());
  ASSERT_EQ(text.size(), 24u);
  EVP_DecodeBlock(bytes.data(), reinterpret_cast<const uint8_t*>(text.data()), 24);
  std::vector<float> got(4);
  std::memcpy(got.data(), bytes.data(), 16);
  EXPECT_EQ(got, plain);
}

TEST_F(EmbeddingsTest, WrongFieldsAreRefusedByName) {
  start();
  const std::vector<std::pair<const char*, json>> wrong = {
      {"input", json::object()},
      {"input", json::array()},
      {"input", 5},
      {"input", json::array({"a", 5})},
      {"input", json::array({json::array({5, "a"})})},
      {"input", json::array({json::array({-1})})},
      {"input", json::array({json::array({1000000})})},
      {"input", std::vector<std::string>(kMaxEmbedInputs + 1, "a")},
      {"dimensions", 0},
      {"dimensions", 5},
      {"dimensions", "all"},
      {"encoding_format", "hex"},
      {"pooling", "max"},
      {"priority", 11},
      {"temperature", 0.5},
      {"stream", true}};
  for (const auto& [field, value] : wrong) {
    json body = {{"input", "a"}};
    body[field] = value;
    const auto got = post("/v1/embeddings", body);
    EXPECT_EQ(got.status, 400) << body.dump().substr(0, 100);
    EXPECT_EQ(got.object()["error"]["param"], field) << got.body;
  }
  EXPECT_EQ(post("/v1/embeddings", json::object()).status, 400);
  EXPECT_EQ(post("/v1/embeddings", {{"input", "a"}, {"model", "other"}}).status, 404);
  const json second = json::array({"a", json::array({1000000})});
  EXPECT_THAT(post("/v1/embeddings", {{"input", second}}).body, HasSubstr("(input 1)"));
}

TEST_F(EmbeddingsTest, AFailureOfOneInputEndsAll) {
  start({.script = [](const Request& request) {
    if (request.prompt.ids.size() < 4) return FakeEngine::Play{};
    return FakeEngine::Play{{}, StreamEnd{.reason = EndReason::kOverloaded, .retry_seconds = 2}};
  }});
  std::vector<std::string> inputs(40, "a");
  inputs[20] = "longer";
  const auto got = post("/v1/embeddings", {{"input", inputs}});
  EXPECT_EQ(got.status, 429);
  EXPECT_THAT(got.head, HasSubstr("retry-after-ms: 2000"));
}

TEST_F(EmbeddingsTest, AsManyRunAtOnceAsThereAreSlots) {
  start();
  engine_->hold(true);
  HttpClient client(server_->port());
  client.post("/v1/embeddings", {{"input", std::vector<std::string>(100, "a")}});
  while (queue_.waiting() < 8) std::this_thread::yield();
  engine_->hold(false);
  const auto got = client.read();
  EXPECT_EQ(got.object()["data"].size(), 100u);
  EXPECT_EQ(queue_.waiting(), 0);
}

TEST_F(EmbeddingsTest, AClientThatLeavesEndsItsInputs) {
  start();
  engine_->hold(true);
  HttpClient client(server_->port());
  client.post("/v1/embeddings", {{"input", std::vector<std::string>(100, "a")}});
  while (queue_.waiting() < 8) std::this_thread::yield();
  client.leave();
  EXPECT_TRUE(core_.registry.wait_until_empty(Clock::now() + std::chrono::minutes(1)));
  EXPECT_EQ(engine_->cancelled(), 8);
}

TEST_F(EmbeddingsTest, TheSizeOfTheAnswerIsReservedFirst) {
  start();
  engine_->hold(true);
  HttpClient client(server_->port());
  client.post("/v1/embeddings", {{"input", std::vector<std::string>(1000, "a")}});
  while (queue_.waiting() < 8) std::this_thread::yield();
  EXPECT_GE(core_.gathered_bytes.used(), 1000 * 4 * 16);
  EXPECT_GE(core_.message_bytes.used(), 1000 * 1000);
  engine_->hold(false);
  EXPECT_EQ(client.read().status, 200);
}

}  // namespace recurve::http_embeddings_test
