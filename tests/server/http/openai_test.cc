// Clients of OpenAI's API over real sockets, before a fake engine that echoes the prompt.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/http_fixture.h"

namespace recurve::http_openai_test {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

using testing::HttpClient;
using OpenAiTest = testing::HttpFixture;

TEST_F(OpenAiTest, ACompletionInOneObject) {
  start();
  const auto got = post("/v1/completions", completion("hello"), "x-request-id: mine\r\n");
  ASSERT_EQ(got.status, 200) << got.body;
  EXPECT_THAT(got.head, HasSubstr("x-request-id: mine\r\n"));
  const json object = got.object();
  EXPECT_EQ(object["id"], "cmpl-mine");
  EXPECT_EQ(object["object"], "text_completion");
  EXPECT_EQ(object["system_fingerprint"], "fp_fake");
  EXPECT_EQ(object["choices"][0]["text"], "hello");
  EXPECT_EQ(object["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(object["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(object["usage"]["completion_tokens"], 6);
  EXPECT_EQ(engine_->last_request().sampling.max_tokens, 16);
}

TEST_F(OpenAiTest, WhatCurlSendsIsTakenAsJson) {
  start();
  HttpClient client(server_->port());
  const std::string body = completion("hello").dump();
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8.0\r\nAccept: */*\r\n"
      "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  const auto got = client.read();
  EXPECT_EQ(got.status, 200) << got.body;
  EXPECT_EQ(got.object()["choices"][0]["text"], "hello");
}

TEST_F(OpenAiTest, ACompletionAsAStream) {
  start();
  json body = completion("hello");
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const auto got = post("/v1/completions", body);
  EXPECT_THAT(got.head, HasSubstr("text/event-stream"));
  const std::vector<json> all = events(got.body);
  std::string text;
  for (const json& event : all) {
    if (!event["choices"].empty()) text += event["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, "hello");
  ASSERT_GE(all.size(), 3u);
  EXPECT_EQ(all[all.size() - 2]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(all.back()["choices"], json::array());
  EXPECT_EQ(all.back()["usage"]["total_tokens"], 12);
}

TEST_F(OpenAiTest, AChat) {
  start();
  const auto got = post("/v1/chat/completions", chat("hi"));
  ASSERT_EQ(got.status, 200) << got.body;
  EXPECT_EQ(got.object()["object"], "chat.completion");
  EXPECT_EQ(got.object()["choices"][0]["message"],
            (json{{"role", "assistant"}, {"content", "u:hi|"}, {"refusal", nullptr}}));

  json body = chat("hi");
  body["stream"] = true;
  body["max_completion_tokens"] = 2;
  const std::vector<json> all = events(post("/v1/chat/completions", body).body);
  EXPECT_EQ(all.front()["object"], "chat.completion.chunk");
  for (const json& event : all) EXPECT_EQ(event["system_fingerprint"], "fp_fake");
  EXPECT_EQ(all.front()["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(all.back()["choices"][0]["finish_reason"], "length");
}

TEST_F(OpenAiTest, LogProbabilities) {
  start();
  json body = completion("ab");
  body["logprobs"] = 1;
  const json plain = post("/v1/completions", body).object()["choices"][0]["logprobs"];
  EXPECT_EQ(plain["tokens"], json({"a", "b", ""}));
  EXPECT_EQ(plain["token_logprobs"], json({-1.0, -1.0, -1.0}));
  EXPECT_EQ(plain["text_offset"], json({0, 1, 2}));
  EXPECT_EQ(plain["top_logprobs"][0], json({{"a", -1.0}}));
  body = chat("x");
  body["logprobs"] = true;
  body["top_logprobs"] = 2;
  const json said = post("/v1/chat/completions", body).object()["choices"][0]["logprobs"];
  EXPECT_EQ(said["content"][0]["token"], "u");
  EXPECT_EQ(said["content"][0]["bytes"], json({'u'}));
  EXPECT_EQ(said["content"][0]["top_logprobs"].size(), 2u);
}

// Two tokens without text, of which the sampled one has its text as name.
TEST_F(OpenAiTest, TokensOfOneTextHaveNamesOfTheirOwn) {
  start({.next_likely = -1});
  json body = completion("a");
  body["logprobs"] = 3;
  json got = post("/v1/completions", body).object()["choices"][0]["logprobs"];
  EXPECT_EQ(got["tokens"], json({"a", ""}));
  EXPECT_EQ(got["top_logprobs"][1].size(), 3u);
  EXPECT_EQ(got["top_logprobs"][1][""], got["token_logprobs"][1]);
  EXPECT_TRUE(got["top_logprobs"][1].contains("token_id:256")) << got;
  EXPECT_TRUE(got["top_logprobs"][1].contains("bytes:\\xff")) << got;
  body["return_tokens_as_token_ids"] = true;
  got = post("/v1/completions", body).object()["choices"][0]["logprobs"];
  EXPECT_EQ(got["tokens"], json({"token_id:97", "token_id:257"}));
  EXPECT_EQ(got["top_logprobs"][1]["token_id:257"], got["token_logprobs"][1]);
  json said = chat("x");
  said.update({{"logprobs", true}, {"return_tokens_as_token_ids", true}, {"max_tokens", 1}});
  got = post("/v1/chat/completions", said).object()["choices"][0]["logprobs"];
  EXPECT_EQ(got["content"][0]["token"], "token_id:117");
}

// Of the text that is sent: the bytes of a character begin where it does, and what has no text
// takes none.
TEST_F(OpenAiTest, OffsetsAreThoseOfTheText) {
  start();
  const json offsets = {0, 1, 1, 2, 2, 2, 3, 4};
  json body = completion("a\u00e9\u20acb");
  body["logprobs"] = 0;
  EXPECT_EQ(post("/v1/completions", body).object()["choices"][0]["logprobs"]["text_offset"],
            offsets);
  body["stream"] = true;
  json streamed = json::array();
  for (const json& event : events(post("/v1/completions", body).body)) {
    const json& logprobs = event["choices"][0]["logprobs"];
    if (logprobs.is_null()) continue;
    for (const json& offset : logprobs["text_offset"]) streamed.push_back(offset);
  }
  EXPECT_EQ(streamed, offsets);
  body.update({{"stream", false}, {"echo", true}});
  json both = offsets;
  both.erase(7);  // the prompt has no end
  for (const json& offset : offsets) both.push_back(4 + offset.get<int>());
  const json echo = post("/v1/completions", body).object()["choices"][0];
  EXPECT_EQ(echo["logprobs"]["text_offset"], both);
  // The byte that a character ends with begins the answer.
  body.update({{"prompt", {0xc3}}, {"max_tokens", 1}});
  EXPECT_EQ(post("/v1/completions", body).object()["choices"][0]["logprobs"]["text_offset"],
            json({0, 1}));
}

// Whatever resource it is sent to.
TEST_F(OpenAiTest, ErrorsNameTheFieldAsItWasSent) {
  start();
  const auto refuse = [&](const std::string& path, const json& base, const json& change,
                          const std::string& field, const std::string& value) {
    json body = base;
    body.update(change);
    const json error = post(path, body).object()["error"];
    EXPECT_EQ(error["param"], field) << error;
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(field)) << error;
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(value)) << error;
  };
  const json response = {{"model", "fake"}, {"input", "x"}};
  const struct {
    const char *path, *max_tokens, *prompt, *logprobs;
    json base;
  } resources[] = {
      {"/v1/completions", "max_tokens", "prompt", "logprobs", completion("x")},
      {"/v1/chat/completions", "max_tokens", "messages", "top_logprobs", chat("x")},
      {"/v1/chat/completions", "max_completion_tokens", "messages", "top_logprobs", chat("x")},
      {"/v1/responses", "max_output_tokens", "input", "top_logprobs", response},
  };
  for (const auto& of : resources) {
    const auto field = [&](const char* name, const json& value, const std::string& shown) {
      json change = {{name, value}};
      if (of.logprobs == std::string("top_logprobs")) {
        change["logprobs"] = true;
        if (of.prompt == std::string("input")) {
          change.erase("logprobs");
          change["include"] = {"message.output_text.logprobs"};
        }
      }
      refuse(of.path, of.base, change, name, shown);
    };
    field(of.max_tokens, -5, "-5");
    field(of.logprobs, 1000, "1000");
    field("temperature", -1, "-1");
    field("temperature", 1e300, "1e+300");
    field("top_p", 2.5, "2.5");
    field("top_k", 1e300, "1e+300");
    field("logit_bias", {{"5", 5000}}, "5000");
    field("logit_bias", {{"99999", 1}}, "99999");
    field("logit_bias", {{"99999999999", 1}}, "99999999999");
    field("stop", std::vector<std::string>(17, "a"), "17");
    field("stop_token_ids", {3'000'000'000}, "3000000000");
    field("allowed_token_ids", {uint64_t{1} << 63}, "9223372036854775808");
    field("min_tokens", 5000, "5000");
  }
  refuse("/v1/completions", completion("x"), {{"prompt", {1, 3'000'000'000}}}, "prompt",
         "3000000000");
  refuse("/v1/responses", response, {{"input", json::array()}}, "input", "at least one item");
  refuse("/v1/chat/completions", chat("x"), {{"messages", json::array()}}, "messages",
         "at least one message");
  refuse("/v1/completions", completion("x"),
         {{"guided_regex", "a"}, {"stop_token_ids", {1}}, {"include_stop_str_in_output", true}},
         "include_stop_str_in_output", "guided_regex");
}

// A new session begins a text as no session does; one that has absorbed something continues it.
TEST_F(OpenAiTest, WhetherAnAnswerBeginsTheTextIsAQuestionOfItsPosition) {
  constexpr int32_t kWorld = FakeTokenizer::kWords + 1;
  tokenizer_ = std::make_shared<FakeTokenizer>(true, LeadingSpace::kStripOnce);
  const auto text = [&](const json& ids, const char* session) {
    json body = {{"prompt", ids}, {"max_tokens", 2}};
    if (session != nullptr) body["session"] = session;
    return post("/v1/completions", body).object()["choices"][0]["text"].get<std::string>();
  };
  const FakeEngine::Options options{
      .script = [](const Request&) { return FakeEngine::Play{{{kWorld, kWorld}}}; }};
  start(options);
  EXPECT_EQ(text({256}, nullptr), "world world");
  EXPECT_EQ(text({256}, "new"), "world world");
  EXPECT_EQ(text({256, 'a'}, nullptr), " world world");
  EXPECT_EQ(text({256, 'a'}, "new"), " world world");
}

TEST_F(OpenAiTest, ASessionWithTextIsContinued) {
  constexpr int32_t kWorld = FakeTokenizer::kWords + 1;
  tokenizer_ = std::make_shared<FakeTokenizer>(true, LeadingSpace::kStripOnce);
  start({.script = [](const Request&) { return FakeEngine::Play{{{kWorld}}}; },
         .session_position = 3});
  const json body = {{"prompt", {256}}, {"max_tokens", 1}, {"session", "old"}};
  EXPECT_EQ(post("/v1/completions", body).object()["choices"][0]["text"], " world");
}

TEST_F(OpenAiTest, FieldsReachTheEngine) {
  start();
  json body = completion("x");
  body.update({{"max_tokens", 3},
               {"temperature", 0.5},
               {"top_p", 0.75},
               {"top_k", 4},
               {"seed", 7},
               {"n", 2},
               {"user", "me"},
               {"unheard_of", {1, 2}},
               {"logit_bias", {{"5", -3}}},
               {"ignore_eos", true},
               {"stop", nullptr}});
  const auto got = post("/v1/completions", body);
  ASSERT_EQ(got.status, 200) << got.body;
  EXPECT_EQ(got.object()["choices"].size(), 2u);
  const SamplingParams p = engine_->last_request().sampling;
  EXPECT_EQ(p.max_tokens, 3);
  EXPECT_EQ(p.temperature, 0.5f);
  EXPECT_EQ(p.top_p, 0.75f);
  EXPECT_EQ(p.top_k, 4);
  EXPECT_EQ(p.seed, 7u);
  EXPECT_TRUE(p.ignore_eos);
  EXPECT_EQ(p.logit_bias, (std::vector<std::pair<int32_t, float>>{{5, -3.0f}}));
  json session = completion("x");
  session["stop"] = "yz";
  ASSERT_EQ(post("/v1/completions", session, "x-recurve-session: s\r\n").status, 200);
  EXPECT_EQ(engine_->last_request().session, "s");
  EXPECT_TRUE(engine_->last_request().wait_for_acknowledgement);
}

TEST_F(OpenAiTest, ChatsWithoutMaxTokensRunToTheEndOfTheTurnOrTheDefault) {
  start();
  const json response = {{"input", "x"}};
  const auto max_tokens = [&](const char* path, const json& body) {
    const auto got = post(path, body);
    EXPECT_EQ(got.status, 200) << got.body;
    const Request last = engine_->last_request();
    EXPECT_EQ(last.max_tokens_is_default, path != std::string("/v1/completions"));
    return last.sampling.max_tokens;
  };
  EXPECT_EQ(max_tokens("/v1/completions", completion("x")), 16);
  EXPECT_EQ(max_tokens("/v1/chat/completions", chat("x")), 4096);
  EXPECT_EQ(max_tokens("/v1/responses", response), 4096);

  // Its memory bounds an answer with log-probabilities, which would be refused else.
  json large = chat("x");
  large.update({{"logprobs", true}, {"top_logprobs", 20}});
  const int32_t fits = max_tokens("/v1/chat/completions", large);
  EXPECT_GE(fits, kDefaultMaxTokens);
  EXPECT_LT(fits, 4096);

  served_->text.max_tokens_default = 100;
  EXPECT_EQ(max_tokens("/v1/chat/completions", chat("x")), 100);
  served_->text.max_tokens_default = 0;
  served_->text.max_generated_tokens = 5000;
  EXPECT_EQ(max_tokens("/v1/chat/completions", chat("x")), 5000);
  EXPECT_EQ(max_tokens("/v1/responses", response), 5000);
  json few = chat("x");
  few["max_tokens"] = 3;
  EXPECT_EQ(post("/v1/chat/completions", few).status, 200);
  EXPECT_EQ(engine_->last_request().sampling.max_tokens, 3);
  EXPECT_FALSE(engine_->last_request().max_tokens_is_default);
}

// What is gathered has its memory before anything is computed, or is refused with the numbers.
TEST_F(OpenAiTest, AnAnswerThatCannotBeGatheredIsRefusedBeforeItStarts) {
  start({.step = std::chrono::microseconds(100), .script = [](const Request&) {
           return FakeEngine::Play{{std::vector<int32_t>(1'000'000, 'a')}};
         }});
  json body = completion("x");
  body.update({{"n", 8}, {"logprobs", 20}, {"max_tokens", 1'000'000}});
  auto got = post("/v1/completions", body);
  EXPECT_EQ(got.status, 400) << got.body;
  EXPECT_EQ(got.object()["error"]["param"], "max_tokens");
  EXPECT_THAT(got.body, HasSubstr(" MB"));
  EXPECT_EQ(core_.gathered_bytes.used(), 0);

  // What others have gathered leaves no memory for it.
  {
    const auto most = core_.options.max_gathered_bytes;
    const ByteBudget::Share others = core_.gathered_bytes.take(most - (1 << 20), 7);
    body.update({{"n", 1}, {"max_tokens", 1'000}});
    got = post("/v1/completions", body);
    EXPECT_EQ(got.status, 429) << got.body;
    EXPECT_THAT(got.head, HasSubstr("retry-after-ms"));
    body["stream"] = true;
    body["max_tokens"] = 3;
    EXPECT_EQ(post("/v1/completions", body).status, 200) << "a stream gathers nothing";
  }
  body["stream"] = false;
  EXPECT_EQ(post("/v1/completions", body).status, 200);
  EXPECT_TRUE(core_.registry.wait_until_empty(Clock::now() + std::chrono::minutes(1)));
  while (core_.gathered_bytes.used() > 0) std::this_thread::yield();
}

TEST_F(OpenAiTest, WhatIsQuotedOfAClientIsCut) {
  start();
  const std::string name = std::string(10'000, 'x') + "\xc3\xa9" + std::string(10'000, 'x');
  const auto cut = [&](const HttpClient::Response& got) {
    EXPECT_TRUE(got.status == 400 || got.status == 404) << got.status;
    EXPECT_LT(got.body.size(), 2000u);
    EXPECT_THAT(got.body, HasSubstr("xxx...")) << got.body;
  };
  const std::string path = "/v1/responses/" + name.substr(0, 9'000);
  cut(ask("GET " + path));
  cut(ask("GET /nothing" + path));
  cut(ask("GET /v1/models/" + name.substr(0, 9'000)));
  json body = completion("x");
  body["model"] = name;
  cut(post("/v1/completions", body));
  body = completion("x");
  body["structured_outputs"] = {{name, 1}};
  cut(post("/v1/completions", body));
  body = {{"input", {{{"type", name}}}}};
  cut(post("/v1/responses", body));
  cut(post("/v1/sessions", {{"durability", name}}));
  cut(post("/v1/completions", "{\"" + name + "\":1,\"" + name + "\":2}"));
}

TEST(Cut, CharactersStayWhole) {
  EXPECT_EQ(recurve::cut("abc", 3), "abc");
  EXPECT_EQ(recurve::cut("abcd", 3), "abc...");
  EXPECT_EQ(recurve::cut("ab\xc3\xa9", 3), "ab...");
  EXPECT_EQ(recurve::cut("", 3), "");
}

TEST(Cut, WhateverTheTextIsTheResultIsOneLineOfUtf8) {
  EXPECT_EQ(recurve::cut("a\r\n\tb\x1b[0m\x7f", 20), "a   b?[0m?");
  EXPECT_EQ(recurve::cut("\xc2\x9b\xc2\xa0", 20), "?\xc2\xa0");  // a control, and a space
  const std::string fffd = "\xef\xbf\xbd";
  for (const char* wrong : {"\xff", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    std::string out;
    for (size_t i = 0; i < std::string(wrong).size(); ++i) out += fffd;
    EXPECT_EQ(recurve::cut(wrong), out);
  }
  EXPECT_EQ(recurve::cut("\xff\xff\xff", 6), fffd + fffd + "...");
  EXPECT_EQ(recurve::cut("\xf0\x9f\x98\x80", 4), "\xf0\x9f\x98\x80");
}

TEST_F(OpenAiTest, HeaderAndBodyNameOneSession) {
  start();
  const std::string header = "x-recurve-session: s\r\n";
  json body = completion("x");
  body["session"] = "s";
  EXPECT_EQ(post("/v1/completions", body, header).status, 200);
  for (const char* other : {"t", ""}) {
    for (const auto& [path, asked] : {std::pair("/v1/completions", completion("x")),
                                      std::pair("/v1/chat/completions", chat("x")),
                                      std::pair("/v1/sessions", json::object())}) {
      json differs = asked;
      differs["session"] = other;
      const auto got = post(path, differs, header);
      EXPECT_EQ(got.status, 400) << path;
      EXPECT_EQ(got.object()["error"]["param"], "session") << path;
    }
  }
  const auto got = post("/v1/responses", {{"input", "x"}}, header);
  EXPECT_EQ(got.status, 400);
  EXPECT_EQ(got.object()["error"]["param"], "x-recurve-session");
}

TEST_F(OpenAiTest, WhatCannotBeHonouredIsRefusedByName) {
  start();
  const auto refuse = [&](const json& change, const std::string& field, int status = 400) {
    json body = completion("x");
    body.update(change);
    const auto got = post("/v1/completions", body);
    EXPECT_EQ(got.status, status) << got.body;
    EXPECT_EQ(got.object()["error"]["param"], field.empty() ? json(nullptr) : json(field));
    EXPECT_NE(got.object()["error"]["message"], "");
  };
  refuse({{"suffix", "end"}}, "suffix");
  refuse({{"best_of", 3}}, "best_of");
  refuse({{"echo", true}, {"session", "s"}}, "echo");
  refuse({{"response_format", {{"type", "xml"}}}}, "response_format");
  refuse({{"response_format", {{"type", "json_schema"}}}}, "response_format");
  refuse({{"guided_regex", 3}}, "guided_regex");
  refuse({{"guided_regex", "a"}, {"guided_choice", {"a"}}}, "guided_choice");
  refuse({{"model", "gpt"}}, "model", 404);
  refuse({{"prompt", {"a", "b"}}, {"session", "s"}}, "prompt");
  refuse({{"prompt", {"a", json::array({1})}}, {"echo", 1}}, "echo");
  refuse({{"prompt", {"a", 1}}}, "prompt");
  refuse({{"prompt", std::vector<std::string>(17, "a")}}, "prompt");
  refuse({{"n", 1'000'000'000}}, "n");
  refuse({{"prompt", nullptr}}, "prompt");
  refuse({{"prompt", {1, 99999}}}, "prompt");
  refuse({{"max_tokens", "many"}}, "max_tokens");
  refuse({{"max_tokens", 1e300}}, "max_tokens");
  refuse({{"max_tokens", int64_t{1} << 40}}, "max_tokens");
  refuse({{"temperature", -1}}, "temperature");
  refuse({{"logit_bias", {{"a", 1}}}}, "logit_bias");
  refuse({{"stop", 5}}, "stop");
  EXPECT_EQ(post("/v1/completions", "{\"model\": \"fa").status, 400);
  EXPECT_EQ(post("/v1/completions", "[]").status, 400);
  EXPECT_EQ(post("/v1/completions", std::string(100'000, '[')).status, 400);
  // What changes nothing is taken.
  json same = completion("x");
  same.update({{"suffix", nullptr}, {"best_of", 1}, {"echo", false}});
  EXPECT_EQ(post("/v1/completions", same).status, 200);
  same.erase("model");  // there is but one
  EXPECT_EQ(post("/v1/completions", same).status, 200);
}

TEST_F(OpenAiTest, RefusalsTellWhetherToTryAgain) {
  std::atomic<bool> overloaded = false;
  start({.script = [&](const Request&) {
    const StreamEnd busy{.reason = EndReason::kSessionBusy};
    const StreamEnd full{.reason = EndReason::kOverloaded, .retry_seconds = 2.5};
    return FakeEngine::Play{{}, overloaded ? full : busy};
  }});
  json body = completion("x");
  auto got = post("/v1/completions", body);
  EXPECT_EQ(got.status, 409);
  EXPECT_THAT(got.head, HasSubstr("x-should-retry: false"));
  overloaded = true;
  body["stream"] = true;
  got = post("/v1/completions", body);
  EXPECT_EQ(got.status, 429);
  EXPECT_THAT(got.head, HasSubstr("retry-after-ms: 2500"));
  EXPECT_THAT(got.head, HasSubstr("Retry-After: 3"));
}

TEST_F(OpenAiTest, AStreamThatBreaksOffSaysSo) {
  start({.script = [](const Request&) {
    return FakeEngine::Play{{{'a'}}, {}, EndReason::kInternal};
  }});
  json body = completion("x");
  body["stream"] = true;
  const auto got = post("/v1/completions", body);
  EXPECT_EQ(got.status, 200);
  EXPECT_THAT(got.body, HasSubstr(R"(data: {"error":)"));
  EXPECT_TRUE(got.body.ends_with("}\n\ndata: [DONE]\n\n")) << got.body;
}

// A constraint that cannot be followed at its first token.
TEST_F(OpenAiTest, AStreamThatFailsBeforeItsFirstTokenEndsAsTheDialectSays) {
  start({.script = [](const Request&) {
    return FakeEngine::Play{{{}}, {}, EndReason::kConstraint};
  }});
  for (json body : {completion("x"), chat("x")}) {
    const std::string path = body.contains("prompt") ? "/v1/completions" : "/v1/chat/completions";
    EXPECT_EQ(post(path, body).status, 400);
    body["stream"] = true;
    const auto got = post(path, body);
    EXPECT_EQ(got.status, 200);
    EXPECT_THAT(events(got.body).back()["error"]["code"], 400);
  }
}

std::string request_id_of(const HttpClient::Response& got) {
  const std::string name = "x-request-id: ";
  const size_t begin = got.head.find(name) + name.size();
  return got.head.substr(begin, got.head.find("\r\n", begin) - begin);
}

TEST_F(OpenAiTest, ALabelDoesNotDecideWhetherARequestIsAnswered) {
  start();
  for (const std::string& odd : {std::string("a b"), std::string("#1"), std::string(300, 'x')}) {
    const std::string header = "x-request-id: " + odd + "\r\n";
    const json response = {{"model", "fake"}, {"input", "x"}};
    for (const auto& got : {post("/v1/completions", completion("x"), header),
                            post("/v1/responses", response, header)}) {
      EXPECT_EQ(got.status, 200) << got.body;
      EXPECT_TRUE(request_id_of(got).starts_with("r-")) << got.head;
    }
    const auto models = post("/tokenize", {{"prompt", "x"}}, header);
    EXPECT_TRUE(request_id_of(models).starts_with("r-")) << models.head;
  }
  engine_->hold(true);
  HttpClient first(server_->port()), second(server_->port());
  const json both = {{"model", "fake"}, {"prompt", {"x", "y"}}};
  first.post("/v1/completions", both, "x-request-id: mine\r\n");
  while (queue_.waiting() < 2) std::this_thread::yield();
  second.post("/v1/completions", both, "x-request-id: mine\r\n");
  while (queue_.waiting() < 4) std::this_thread::yield();
  engine_->hold(false);
  const auto one = first.read(), other = second.read();
  EXPECT_EQ(one.status, 200) << one.body;
  EXPECT_EQ(other.status, 200) << other.body;
  EXPECT_EQ(request_id_of(one), "mine");
  EXPECT_TRUE(request_id_of(other).starts_with("r-")) << other.head;
  EXPECT_EQ(other.object()["id"], "cmpl-" + request_id_of(other));
  const auto again = post("/v1/completions", both, "x-request-id: mine\r\n");
  EXPECT_EQ(request_id_of(again), "mine");
}

TEST_F(OpenAiTest, ARequestIsAbortedByItsLabel) {
  start({.step = std::chrono::microseconds(100), .script = [](const Request&) {
           return FakeEngine::Play{{std::vector<int32_t>(1'000'000, 'a')}};
         }});
  HttpClient client(server_->port());
  client.post("/v1/completions", {{"prompt", {"x", "y"}}, {"max_tokens", 100'000}},
              "x-request-id: mine\r\n");
  while (engine_->running() < 2) std::this_thread::yield();
  EXPECT_TRUE(core_.registry.abort_of_any("mine"));
  EXPECT_EQ(client.read().status, 499);
  EXPECT_EQ(engine_->cancelled(), 2);
  EXPECT_FALSE(core_.registry.abort_of_any("mine"));
}

// By which a durable session finds that it has answered a request.
TEST_F(OpenAiTest, ARequestIsSentAgainByItsKeyNotByItsLabel) {
  start();
  json body = completion("x");
  const std::string label = "x-request-id: mine\r\n";
  EXPECT_EQ(post("/v1/completions", body, label + "Idempotency-Key: \"a b\"\r\n").status, 200);
  EXPECT_TRUE(engine_->last_request().id.starts_with("r-"));
  body["session"] = "story";
  EXPECT_EQ(post("/v1/completions", body, label).status, 200);
  EXPECT_TRUE(engine_->last_request().id.starts_with("r-"));
  EXPECT_EQ(post("/v1/completions", body, label + "Idempotency-Key: turn-1\r\n").status, 200);
  EXPECT_EQ(engine_->last_request().id, "turn-1");
  const auto refused = post("/v1/completions", body, "Idempotency-Key: a b\r\n");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.object()["error"]["param"], "Idempotency-Key");
}

TEST_F(OpenAiTest, AClientThatLeavesEndsItsGeneration) {
  start({.step = std::chrono::microseconds(100), .script = [](const Request&) {
           return FakeEngine::Play{{std::vector<int32_t>(1'000'000, 'a')}};
         }});
  for (const bool stream : {false, true}) {
    HttpClient client(server_->port());
    json body = completion("x");
    body.update({{"stream", stream}, {"max_tokens", 1'000'000}});
    client.post("/v1/completions", body);
    if (stream) client.read_to("data: ");
    while (engine_->running() == 0) std::this_thread::yield();
    client.leave();
    EXPECT_TRUE(core_.registry.wait_until_empty(Clock::now() + std::chrono::minutes(1)));
    while (engine_->running() > 0) std::this_thread::yield();  // or the next is taken for begun
  }
  EXPECT_EQ(engine_->cancelled(), 2);
}

TEST_F(OpenAiTest, AConnectionServesRequestsInTheirOrder) {
  start();
  HttpClient client(server_->port());
  for (const char* prompt : {"one", "two", "three"})
    client.post("/v1/completions", completion(prompt));
  client.get("/health");
  for (const char* prompt : {"one", "two", "three"}) {
    EXPECT_EQ(client.read().object()["choices"][0]["text"], prompt);
  }
  EXPECT_EQ(client.read().status, 200);
  client.get("/v1/models");
  EXPECT_EQ(client.read().object()["data"][0]["id"], "fake");
}

TEST_F(OpenAiTest, WhatIsNoRequestIsRefused) {
  start({}, {.max_body_bytes = 1000});
  const auto status = [&](const std::string& bytes) {
    HttpClient client(server_->port());
    client.send(bytes);
    const int status = client.read().status;
    EXPECT_TRUE(client.closed()) << bytes.substr(0, 40);
    return status;
  };
  const std::string host = "Host: localhost\r\n", is_json = "Content-Type: application/json\r\n";
  const std::string post = "POST /v1/completions HTTP/1.1\r\n";
  EXPECT_EQ(status("what\r\n\r\n"), 400);
  EXPECT_EQ(status("GET /elsewhere HTTP/1.1\r\n" + host + "\r\n"), 404);
  EXPECT_EQ(status("GET /v1/completions HTTP/1.1\r\n" + host + "\r\n"), 405);
  EXPECT_EQ(status(post + host + "Content-Length: 2\r\n\r\n"), 415);
  const std::string form = "Content-Type: application/x-www-form-urlencoded\r\n";
  for (const char* page :
       {"Origin: http://localhost", "Referer: http://localhost/", "Sec-Fetch-Site: cross-site"}) {
    EXPECT_EQ(status(post + host + form + page + "\r\nContent-Length: 2\r\n\r\n"), 415) << page;
  }
  EXPECT_EQ(status(post + host + is_json + "Content-Length: 5000\r\n\r\n"), 413);
  EXPECT_EQ(
      status(post + host + is_json + "Content-Length: 500000\r\n\r\n" + std::string(500'000, 'x')),
      413)
      << "and it is read while the body is still being sent";
  EXPECT_EQ(status(post + host + "x: " + std::string(20'000, 'x') + "\r\n\r\n"), 431);
  EXPECT_EQ(status("GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n"), 403);
  EXPECT_EQ(status("GET /health HTTP/1.1\r\n" + host + "Origin: http://evil.example\r\n\r\n"), 403);
}

TEST_F(OpenAiTest, AServerThatLoadsSaysSo) {
  server_.emplace(HttpOptions{.listen = "127.0.0.1:0"}, testing::http_apis(core_), core_,
                  connections_);
  HttpClient client(server_->port());
  client.get("/health");
  EXPECT_EQ(client.read().status, 503);
  client.post("/v1/completions", completion("x"));
  EXPECT_EQ(client.read().status, 503);
}

}  // namespace recurve::http_openai_test
