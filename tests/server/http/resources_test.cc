// The resources of OpenAI's dialect other than plain answers, over real sockets, before a fake
// engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/constraint/constraint_library.h"
#include "server/http/message.h"
#include "tests/support/http_fixture.h"

namespace recurve::http_resources_test {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::HttpClient;
using ::testing::Not;
using ::testing::StartsWith;
using Kind = SessionCommand::Kind;

class ResourcesTest : public testing::HttpFixture {
 protected:
  ResourcesTest() { template_ = kOfSessions; }
  static SessionResult session(const std::string& name) {
    return {.sessions = {{.name = name,
                          .position = 12,
                          .pending_token = 7,
                          .tier = Tier::kDisk,
                          .marks = {{.name = "here", .position = 9}},
                          .durability = Durability::kLocal,
                          .commit = {{.owner_epoch = 2, .number = 3, .position = 12}}}}};
  }
  SessionCommand last_command() const { return engine_->commands().back(); }
  static json response(const std::string& input) { return {{"model", "fake"}, {"input", input}}; }
};

TEST_F(ResourcesTest, SeveralPromptsHaveTheirChoicesInOrder) {
  start();
  json body = {{"model", "fake"}, {"prompt", {"one", "two", "three"}}, {"n", 2}};
  const auto got = post("/v1/completions", body, "x-request-id: many\r\n");
  ASSERT_EQ(got.status, 200) << got.body;
  const json choices = got.object()["choices"];
  ASSERT_EQ(choices.size(), 6u);
  const char* texts[] = {"one", "", "two", "", "three", ""};  // the fake engine echoes in the first
  for (size_t c = 0; c < 6; ++c) {
    EXPECT_EQ(choices[c]["index"], c);
    EXPECT_EQ(choices[c]["text"], texts[c]);
    EXPECT_EQ(choices[c]["finish_reason"], "stop");
  }
  EXPECT_EQ(got.object()["usage"]["prompt_tokens"], 4 + 4 + 6);
  body["stream"] = true;
  std::vector<std::string> streamed(6);
  for (const json& event : events(post("/v1/completions", body).body)) {
    const json& choice = event["choices"][0];
    streamed[choice["index"]] += choice["text"].get<std::string>();
  }
  EXPECT_EQ(streamed, std::vector<std::string>(texts, texts + 6));
}

TEST_F(ResourcesTest, OfSeveralPromptsOneThatIsRefusedEndsAll) {
  start({.step = std::chrono::microseconds(100), .script = [](const Request& request) {
           if (request.prompt.ids.size() > 5) {
             return FakeEngine::Play{
                 {}, StreamEnd{.reason = EndReason::kOverloaded, .retry_seconds = 2}};
           }
           return FakeEngine::Play{{std::vector<int32_t>(1'000'000, 'a')}};
         }});
  const auto got =
      post("/v1/completions", {{"prompt", {"a", "b", "much longer"}}, {"max_tokens", 100'000}});
  EXPECT_EQ(got.status, 429);
  EXPECT_THAT(got.head, HasSubstr("retry-after-ms: 2000"));
  EXPECT_TRUE(core_.registry.wait_until_empty(Clock::now() + std::chrono::minutes(1)));
  EXPECT_EQ(engine_->running(), 0);
}

TEST_F(ResourcesTest, AClientThatLeavesEndsAllItsPrompts) {
  start({.step = std::chrono::microseconds(100), .script = [](const Request&) {
           return FakeEngine::Play{{std::vector<int32_t>(1'000'000, 'a')}};
         }});
  HttpClient client(server_->port());
  client.post("/v1/completions", {{"prompt", {"a", "b", "c"}}, {"max_tokens", 100'000}});
  while (engine_->running() < 3) std::this_thread::yield();
  client.leave();
  EXPECT_TRUE(core_.registry.wait_until_empty(Clock::now() + std::chrono::minutes(1)));
  EXPECT_EQ(engine_->cancelled(), 3);
}

TEST_F(ResourcesTest, EchoBeginsWithThePromptAsTheClientHasIt) {
  start();
  json body = {{"prompt", "ab"}, {"echo", true}, {"logprobs", 1}, {"max_tokens", 1}};
  const json text = post("/v1/completions", body).object()["choices"][0];
  EXPECT_EQ(text["text"], "aba");
  EXPECT_EQ(text["logprobs"]["tokens"], json({"a", "b", "a"}));
  EXPECT_EQ(text["logprobs"]["token_logprobs"], json({nullptr, -1.0, -1.0}));
  EXPECT_EQ(text["logprobs"]["top_logprobs"], json({nullptr, {{"b", -1.0}}, {{"a", -1.0}}}));
  EXPECT_EQ(text["logprobs"]["text_offset"], json({0, 1, 2}));
  EXPECT_EQ(engine_->last_request().prompt.ids, (std::vector<int32_t>{256, 'a', 'b'}));

  body["prompt"] = {97, 98};
  const json ids = post("/v1/completions", body).object()["choices"][0];
  EXPECT_EQ(ids["logprobs"]["token_logprobs"], json({nullptr, -1.0, -1.0}));
  EXPECT_EQ(engine_->last_request().prompt.ids, (std::vector<int32_t>{'a', 'b'})) << "no BOS";

  body["max_tokens"] = 0;
  const json prompt = post("/v1/completions", body).object()["choices"][0];
  EXPECT_EQ(prompt["text"], "ab");
  EXPECT_EQ(prompt["logprobs"]["token_logprobs"], json({nullptr, -1.0}));
  body.erase("logprobs");
  EXPECT_EQ(post("/v1/completions", body).object()["choices"][0]["logprobs"], json(nullptr));
}

TEST_F(ResourcesTest, SessionsAreOpenedReadAndClosed) {
  start();
  engine_->answer_sessions(session("story"));
  auto got =
      post("/v1/sessions", {{"session", "story"}, {"ttl_seconds", 5}, {"durability", "local"}});
  EXPECT_EQ(got.status, 201) << got.body;
  EXPECT_EQ(last_command().kind, Kind::kOpen);
  EXPECT_EQ(last_command().name, "story");
  EXPECT_EQ(last_command().ttl_seconds, 5.0);
  EXPECT_EQ(last_command().durability, Durability::kLocal);
  const json object = got.object();
  EXPECT_EQ(object["object"], "session");
  EXPECT_EQ(object["id"], "story");
  EXPECT_EQ(object["position"], 12);
  EXPECT_EQ(object["pending_token"], 7);
  EXPECT_EQ(object["tier"], "disk");
  EXPECT_EQ(object["durability"], "local");
  EXPECT_EQ(object["commit"], (json{{"owner_epoch", 2}, {"number", 3}, {"position", 12}}));
  EXPECT_EQ(object["marks"], json({{{"name", "here"}, {"position", 9}}}));

  got = ask("POST /v1/sessions");
  EXPECT_EQ(got.status, 201) << "all of the body may be left out";
  EXPECT_THAT(last_command().name, StartsWith("s-"));
  EXPECT_EQ(ask("GET /v1/sessions/story").object(), object);
  EXPECT_EQ(last_command().kind, Kind::kGet);
  EXPECT_EQ(ask("DELETE /v1/sessions/story").object(),
            (json{{"object", "session.deleted"}, {"id", "story"}, {"deleted", true}}));
  EXPECT_EQ(last_command().kind, Kind::kClose);
}

TEST_F(ResourcesTest, SessionsAreForkedMarkedAndRewound) {
  start();
  engine_->answer_sessions(session("other"));
  EXPECT_EQ(post("/v1/sessions/story/fork", {{"session", "other"}}).status, 201);
  EXPECT_EQ(last_command().kind, Kind::kFork);
  EXPECT_EQ(last_command().name, "story");
  EXPECT_EQ(last_command().other, "other");
  EXPECT_EQ(post("/v1/sessions/story/marks", {{"mark", "here"}}).status, 200);
  EXPECT_EQ(last_command().kind, Kind::kMark);
  EXPECT_EQ(last_command().other, "here");
  EXPECT_EQ(post("/v1/sessions/story/rewind", {{"mark", "here"}}).status, 200);
  EXPECT_EQ(last_command().kind, Kind::kRewind);
  EXPECT_EQ(last_command().position, std::nullopt);
  EXPECT_EQ(post("/v1/sessions/story/rewind", {{"position", 7}}).status, 200);
  EXPECT_EQ(last_command().position, 7);
  EXPECT_EQ(post("/v1/sessions", {{"session", "r"}, {"rewind_tokens", 100}}).status, 201);
  EXPECT_EQ(last_command().rewind_tokens, 100);
  EXPECT_EQ(ask("DELETE /v1/sessions/story/marks/here").status, 200);
  EXPECT_EQ(last_command().kind, Kind::kUnmark);
  EXPECT_EQ(last_command().other, "here");

  SessionResult page = session("a");
  page.more = true;
  engine_->answer_sessions(page);
  const json list = ask("GET /v1/sessions?prefix=st&after=st%2Dx&limit=2").object();
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0]["id"], "a");
  EXPECT_EQ(list["has_more"], true);
  EXPECT_EQ(last_command().name, "st");
  EXPECT_EQ(last_command().other, "st-x");
  EXPECT_EQ(last_command().limit, 2);
  ask("GET /v1/sessions?prefix=&after=&limit=");  // empty fields are absent
  EXPECT_EQ(last_command().limit, kDefaultPageSize);
}

TEST_F(ResourcesTest, WhatIsWrongWithSessionsIsSaid) {
  start();
  const auto refuse = [&](const HttpClient::Response& got, int status) {
    EXPECT_EQ(got.status, status) << got.body;
    EXPECT_NE(got.object()["error"]["message"], "");
    EXPECT_THAT(got.head, HasSubstr("x-request-id: "));
  };
  refuse(post("/v1/sessions", {{"session", "no spaces"}}), 400);
  refuse(post("/v1/sessions", {{"session", "~kept"}}), 400);
  refuse(post("/v1/sessions", {{"session", 5}}), 400);
  refuse(post("/v1/sessions", {{"ttl_seconds", -1}}), 400);
  refuse(post("/v1/sessions", {{"rewind_tokens", -1}}), 400);
  refuse(post("/v1/sessions", {{"rewind_tokens", 262145}}), 400);
  refuse(post("/v1/sessions/s/rewind", {{"position", -1}}), 400);
  refuse(post("/v1/sessions/s/rewind", {{"position", 1}, {"mark", "m"}}), 400);
  refuse(post("/v1/sessions/s/rewind", json::object()), 400);
  refuse(post("/v1/sessions", {{"durability", "forever"}}), 400);
  refuse(post("/v1/sessions/story/marks", json::object()), 400);
  refuse(post("/v1/sessions/story/marks", {{"mark", std::string(100'000, 'm')}}), 400);
  refuse(ask("GET /v1/sessions?limit=0"), 400);
  refuse(ask("GET /v1/sessions?limit=9x"), 400);
  refuse(ask("GET /v1/sessions/%20"), 400);
  EXPECT_TRUE(engine_->commands().empty());
  engine_->answer_sessions({.reason = EndReason::kNoSession, .message = "there is none"});
  refuse(ask("GET /v1/sessions/story"), 404);
  engine_->answer_sessions({.reason = EndReason::kSessionBusy, .message = "it is busy"});
  const auto busy = post("/v1/sessions/story/fork", json::object());
  refuse(busy, 409);
  EXPECT_THAT(busy.head, HasSubstr("x-should-retry: false"));
  engine_->answer_sessions({.reason = EndReason::kExhausted, .message = "it is full"});
  refuse(post("/v1/sessions", json::object()), 429);
  // A page of elsewhere can send what is no JSON without asking.
  HttpClient client(server_->port());
  client.send(
      "POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
      "Content-Length: 2\r\n\r\n{}");
  EXPECT_EQ(client.read().status, 415);
  const auto elsewhere = ask("PUT /v1/sessions");
  EXPECT_EQ(elsewhere.status, 405);
  EXPECT_THAT(elsewhere.head, HasSubstr("Allow: GET, HEAD, POST\r\n"));
  EXPECT_EQ(ask("GET /v1/sessions/a/b/c").status, 404);
}

TEST_F(ResourcesTest, AResponseIsStoredAsASessionWithoutAPublicName) {
  start();
  engine_->answer_sessions(session("s"));
  const auto got = post("/v1/responses", response("hi"));
  ASSERT_EQ(got.status, 200) << got.body;
  const json object = got.object();
  const std::string id = object["id"];
  EXPECT_THAT(id, StartsWith("resp_"));
  EXPECT_EQ(object["object"], "response");
  EXPECT_EQ(object["status"], "completed");
  EXPECT_EQ(object["output"][0]["content"][0]["text"], "u:hi|a:");
  EXPECT_EQ(engine_->last_request().session, "~" + id);
  EXPECT_EQ(ask("GET /v1/responses/" + id).object(), object);

  json more = response("on");
  more["previous_response_id"] = id;
  const std::string next = post("/v1/responses", more).object()["id"];
  EXPECT_EQ(last_command().kind, Kind::kFork);
  EXPECT_EQ(last_command().name, "~" + id);
  EXPECT_EQ(last_command().other, "~" + next);

  EXPECT_EQ(ask("DELETE /v1/responses/" + id).status, 200);
  await_command(Kind::kClose, "~" + id);
  EXPECT_EQ(ask("GET /v1/responses/" + id).status, 404);
  EXPECT_EQ(post("/v1/responses", more).status, 404);
  EXPECT_EQ(ask("DELETE /v1/responses/" + id).status, 404);
}

TEST_F(ResourcesTest, WhatIsNotKeptNeedsNoSession) {
  start();
  json body = response("hi");
  body["store"] = false;
  const json object = post("/v1/responses", body).object();
  EXPECT_EQ(object["store"], false);
  EXPECT_EQ(ask("GET /v1/responses/" + object["id"].get<std::string>()).status, 404);
  EXPECT_TRUE(engine_->commands().empty());
  EXPECT_EQ(engine_->last_request().session, "");
}

TEST_F(ResourcesTest, OtherInstructionsReadTheConversationAnew) {
  start();
  engine_->answer_sessions(session("s"));
  json body = response("hi");
  body["instructions"] = "be brief";
  const json first = post("/v1/responses", body).object();
  body = response("on");
  body["instructions"] = "be long";
  body["previous_response_id"] = first["id"];
  const json object = post("/v1/responses", body).object();
  EXPECT_EQ(last_command().kind, Kind::kOpen);
  EXPECT_EQ(object["output"][0]["content"][0]["text"],
            "s:be long|u:hi|a:s:be brief|u:hi|a:|u:on|a:");
}

// As a session begins with it and as one continues with it; without a session as it is.
TEST_F(ResourcesTest, AResponsesPromptIsTokenizedOnceForEachUse) {
  static std::atomic<int> reads;
  FakeTokenizer::before_push = [](std::string_view text) {
    if (text.find("marker") != std::string_view::npos) ++reads;
  };
  start();
  engine_->answer_sessions(session("s"));
  const auto reads_of = [&](const json& body) {
    reads = 0;
    const auto got = post("/v1/responses", body);
    EXPECT_EQ(got.status, 200) << got.body;
    return reads.load();
  };
  EXPECT_EQ(reads_of(response("marker")), 2);
  json body = response("marker");
  body["store"] = false;
  EXPECT_EQ(reads_of(body), 1);
  body = response("marker");
  body["previous_response_id"] = post("/v1/responses", response("hi")).object()["id"];
  EXPECT_EQ(reads_of(body), 2);
  EXPECT_EQ(last_command().kind, Kind::kFork);
  FakeTokenizer::before_push = nullptr;
}

TEST_F(ResourcesTest, AStateThatHasGoneIsMadeAgain) {
  start();
  engine_->answer_sessions(session("s"));
  const json first = post("/v1/responses", response("hi")).object();
  engine_->answer_sessions({.reason = EndReason::kNoSession, .message = "there is none"});
  json body = response("on");
  body["previous_response_id"] = first["id"];
  const auto got = post("/v1/responses", body);
  ASSERT_EQ(got.status, 200) << got.body;
  EXPECT_EQ(got.object()["output"][0]["content"][0]["text"], "u:hi|a:u:hi|a:|u:on|a:");
}

TEST_F(ResourcesTest, OfATemplateThatRewritesTurnsMessagesAloneAreKept) {
  template_ = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}|{% endfor %}";
  start();
  const json first = post("/v1/responses", response("hi")).object();
  json body = response("on");
  body["previous_response_id"] = first["id"];
  const auto got = post("/v1/responses", body);
  ASSERT_EQ(got.status, 200) << got.body;
  EXPECT_EQ(got.object()["output"][0]["content"][0]["text"], "u:hi|a:u:hi||u:on|");
  EXPECT_TRUE(engine_->commands().empty());
}

TEST_F(ResourcesTest, OlderResponsesMakeRoom) {
  start();
  engine_->answer_sessions(session("s"));
  const std::string first = post("/v1/responses", response("hi")).object()["id"];
  engine_->answer_sessions({.reason = EndReason::kExhausted, .message = "it is full"});
  const auto got = post("/v1/responses", response("hi"));
  EXPECT_EQ(got.status, 429) << "not even then";
  EXPECT_THAT(got.body, HasSubstr("store: false"));
  await_command(Kind::kClose, "~" + first);
  EXPECT_EQ(ask("GET /v1/responses/" + first).status, 404);
}

TEST_F(ResourcesTest, ResponsesTakeNoMoreThanTheirBytes) {
  start({}, {}, 20'000);
  engine_->answer_sessions(session("s"));
  const std::string first = post("/v1/responses", response("hi")).object()["id"];
  for (int i = 0; i < 10; ++i) EXPECT_EQ(post("/v1/responses", response("hi")).status, 200);
  await_command(Kind::kClose, "~" + first);
  EXPECT_EQ(ask("GET /v1/responses/" + first).status, 404);
}

TEST_F(ResourcesTest, AResponseThatIsGivenUpIsNotKept) {
  start({.step = std::chrono::microseconds(100), .script = [](const Request&) {
           return FakeEngine::Play{{std::vector<int32_t>(1'000'000, 'a')}};
         }});
  engine_->answer_sessions(session("s"));
  HttpClient client(server_->port());
  json body = response("hi");
  body.update({{"stream", true}, {"max_output_tokens", 100'000}});
  client.post("/v1/responses", body);
  client.read_to("response.output_text.delta");
  client.leave();
  EXPECT_TRUE(core_.registry.wait_until_empty(Clock::now() + std::chrono::minutes(1)));
  await_command(Kind::kClose, engine_->last_request().session);
}

TEST_F(ResourcesTest, AResponseThatBreaksOffSaysSo) {
  start({.script = [](const Request&) {
    return FakeEngine::Play{{{'a'}}, {}, EndReason::kInternal};
  }});
  json body = response("hi");
  body.update({{"stream", true}, {"store", false}});
  const auto got = post("/v1/responses", body);
  EXPECT_THAT(got.body, HasSubstr("event: response.created\n"));
  EXPECT_THAT(got.body, HasSubstr("event: error\n"));
  EXPECT_THAT(got.body, HasSubstr(R"("error":{)"));
}

TEST_F(ResourcesTest, WhatResponsesCannotDoIsRefusedByName) {
  start();
  const auto refuse = [&](const json& change, const std::string& field, int status = 400) {
    json body = response("hi");
    body.update(change);
    const auto got = post("/v1/responses", body);
    EXPECT_EQ(got.status, status) << got.body;
    EXPECT_EQ(got.object()["error"]["param"], field);
  };
  refuse({{"input", nullptr}}, "input");
  refuse({{"input", {{{"role", "user"}, {"content", {{{"type", "input_image"}}}}}}}}, "input");
  refuse({{"input", {{{"type", "computer_call"}}}}}, "input");
  refuse({{"tools", {{{"type", "web_search"}}}}, {"tool_choice", "required"}}, "tool_choice");
  refuse({{"background", true}}, "background");
  refuse({{"conversation", "conv_1"}}, "conversation");
  refuse({{"text", {{"format", {{"type", "xml"}}}}}}, "text.format");
  refuse({{"text", {{"verbosity", "high"}}}}, "text.verbosity");
  refuse({{"session", "s"}}, "session");
  refuse({{"previous_response_id", "resp_0"}}, "previous_response_id", 404);
  refuse({{"model", "gpt"}}, "model", 404);
}

TEST_F(ResourcesTest, WhatAResponsesTextMustBeReachesTheEngine) {
  if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
  start();
  json body = response("hi");
  body["text"] = {{"format", {{"type", "json_object"}}}, {"verbosity", "medium"}};
  const auto got = post("/v1/responses", body);
  ASSERT_EQ(got.status, 200) << got.body;
  EXPECT_EQ(got.object()["text"], body["text"]);
  const auto constraint = engine_->last_request().sampling.constraint;
  ASSERT_NE(constraint, nullptr);
  EXPECT_EQ(constraint->text().text, R"({"type":"object"})");
  EXPECT_FALSE(constraint->text().any_whitespace);
  body["any_whitespace"] = true;
  EXPECT_EQ(post("/v1/responses", body).status, 200);
  EXPECT_TRUE(engine_->last_request().sampling.constraint->text().any_whitespace);
}

TEST_F(ResourcesTest, TextIsTokenisedAndWritten) {
  start();
  const json plain = post("/tokenize", {{"prompt", "ab"}}).object();
  EXPECT_EQ(plain["tokens"], json({256, 97, 98}));
  EXPECT_EQ(plain["count"], 3);
  EXPECT_EQ(post("/tokenize",
                 {{"prompt", "a"}, {"add_special_tokens", false}, {"return_token_strs", true}})
                .object()["token_strs"],
            json({"a"}));
  EXPECT_EQ(
      post("/tokenize", {{"prompt", "</s>"}, {"add_special_tokens", false}}).object()["tokens"],
      json({257}))
      << "as clients ask for EOS that know its name";
  EXPECT_EQ(
      post("/tokenize", {{"prompt", "a</s>"}, {"add_special_tokens", false}}).object()["count"], 5);
  EXPECT_EQ(post("/tokenize", chat("hi")).object()["count"], 7);
  EXPECT_EQ(post("/detokenize", {{"tokens", {104, 105}}}).object()["prompt"], "hi");
  const json info = ask("GET /tokenizer_info").object();
  EXPECT_EQ(info["bos_token"], "<s>");
  EXPECT_EQ(info["eos_token"], "</s>");
  EXPECT_EQ(post("/detokenize", {{"tokens", {1, 99999}}}).status, 400);
  EXPECT_EQ(post("/detokenize", json::object()).status, 400);
  EXPECT_EQ(post("/tokenize", json::object()).status, 400);
  EXPECT_EQ(post("/tokenize", {{"prompt", "a"}, {"model", "gpt"}}).status, 404);
}

TEST_F(ResourcesTest, ClientsReadHowLongAPromptMayBe) {
  start();
  const json model = ask("GET /v1/models/fake").object();
  EXPECT_EQ(model["max_model_len"], core_.options.max_prompt_tokens);
  EXPECT_EQ(ask("GET /v1/models").object()["data"][0], model);
}

TEST_F(ResourcesTest, APromptIsNotLongerThanStatesThatGrow) {
  max_session_tokens_ = 1000;
  start();
  EXPECT_EQ(ask("GET /v1/models/fake").object()["max_model_len"], 1000);
  EXPECT_EQ(post("/tokenize", {{"prompt", "a"}}).object()["max_model_len"], 1000);
}

TEST_F(ResourcesTest, TheVersionIsTheServers) {
  start();
  EXPECT_EQ(ask("GET /version").object(), (json{{"version", core_.options.version}}));
}

TEST_F(ResourcesTest, WhatASessionMayHaveAbsorbedIsNotRepeated) {
  start({.script = [](const Request&) {
    return FakeEngine::Play{{{'a'}}, {}, EndReason::kInternal};
  }});
  json body = completion("x");
  auto got = post("/v1/completions", body);
  EXPECT_EQ(got.status, 500);
  EXPECT_THAT(got.head, Not(HasSubstr("x-should-retry")));
  body["session"] = "s";
  got = post("/v1/completions", body);
  EXPECT_EQ(got.status, 500);
  EXPECT_THAT(got.head, HasSubstr("x-should-retry: false"));
}

TEST_F(ResourcesTest, AFieldIsSaidOnce) {
  start();
  const auto got = post("/v1/completions", R"({"prompt":"a","stop":["x"],"prompt":"b"})");
  EXPECT_EQ(got.status, 400);
  EXPECT_EQ(got.object()["error"]["param"], "prompt");
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"a","user":{"prompt":"b"}})").status, 200);
}

TEST(Query, FieldsAreDecoded) {
  EXPECT_EQ(query_field("a=1&b=x%20y+z&c", "b"), "x y z");
  EXPECT_EQ(query_field("a=1&b=%zz%4", "b"), "%zz%4");
  EXPECT_EQ(query_field("a=1&c&b=", "c"), std::nullopt);
  EXPECT_EQ(query_field("a=1&c&b=", "b"), std::nullopt);
  EXPECT_EQ(query_field("a=1", "b"), std::nullopt);
  EXPECT_EQ(query_field("", "b"), std::nullopt);
}

}  // namespace recurve::http_resources_test
