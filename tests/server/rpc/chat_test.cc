// Chat messages instead of a prompt, over real sockets: ids, sessions, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/constraint/constraint_library.h"
#include "tests/support/rpc_fixture.h"

namespace recurve::chat_test {

using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;
constexpr int32_t kBos = FakeTokenizer::kBos, kEos = FakeTokenizer::kEos;

constexpr const char* kTemplate =
    "{{ bos_token }}{% for m in messages %}{{ m.role[0] }}:{{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}|{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
    "{% if tools %}{{ tools | length }}{% endif %}{{ extra }}";

class ChatTest : public RpcFixture {
 protected:
  void start_with(const std::string& text, ServingInfo info = fake_info()) {
    chat_ = {.format = std::make_shared<const ChatTemplate>(
                 text, "",
                 jinja::Template::Variables{{"bos_token", jinja::Value::text("<s>")},
                                            {"eos_token", jinja::Value::text("</s>")}}),
             .exists = true,
             .problem = ""};
    start({}, {}, 64, std::move(info));
  }
  static void add(v1::Messages* messages, const std::string& role, const std::string& content) {
    auto* message = messages->add_messages();
    message->set_role(role);
    message->set_content(content);
  }
  static v1::GenerateRequest user(const std::string& content) {
    v1::GenerateRequest request;
    add(request.mutable_messages(), "user", content);
    return request;
  }
  // Bytes are ids; 's' and 'e' in the marks are BOS and EOS.
  static Ids ids(const std::string& text, const std::string& controls = "") {
    Ids all;
    for (size_t i = 0; i < text.size(); ++i) {
      const char mark = i < controls.size() ? controls[i] : ' ';
      all.push_back(mark == 's' ? kBos : mark == 'e' ? kEos : static_cast<unsigned char>(text[i]));
    }
    return all;
  }
  grpc::Status tokenize(const v1::TokenizeRequest& request, Ids* out) {
    grpc::ClientContext context;
    v1::TokenizeResponse response;
    const grpc::Status status = inference_->Tokenize(&context, request, &response);
    *out = {response.ids().begin(), response.ids().end()};
    return status;
  }
};

TEST_F(ChatTest, AreRenderedByTheTemplate) {
  start_with(kTemplate);
  ASSERT_TRUE(generate(user("hi")).status.ok());
  EXPECT_EQ(engine_->last_request().prompt.ids, ids("su:hi|a:", "s"));

  v1::GenerateRequest more = user("hi <s>");
  add(more.mutable_messages(), "assistant", "</s>");
  more.mutable_messages()->set_add_generation_prompt(false);
  more.mutable_messages()->set_tools_json("[1, 2]");
  more.mutable_messages()->set_variables_json(R"({"extra": "<s>"})");
  ASSERT_TRUE(generate(more).status.ok());
  EXPECT_EQ(engine_->last_request().prompt.ids, ids("su:hi <s>|a:</s>e|2<s>", "s               e"))
      << "only those of the template are control tokens";
}

TEST_F(ChatTest, PartsOtherThanTextAreRefusedByName) {
  start_with(kTemplate);
  const auto with_content = [&](const std::string& content) {
    v1::GenerateRequest request;
    auto* message = request.mutable_messages()->add_messages();
    message->set_role("user");
    message->set_fields_json("{\"content\": " + content + "}");
    return request;
  };
  ASSERT_TRUE(
      generate(with_content(R"([{"type": "text", "text": "h"}, {"type": "text", "text": "i"}])"))
          .status.ok());
  EXPECT_EQ(engine_->last_request().prompt.ids, ids("su:hi|a:", "s"));
  const grpc::Status refused = generate(with_content(R"([{"type": "image"}])")).status;
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(),
              HasSubstr("messages: [0].content[0] must be of type \"text\", got \"image\""));
  v1::GenerateRequest silent = user("hi");
  silent.mutable_messages()->add_messages()->set_role("assistant");
  EXPECT_THAT(generate(silent).status.error_message(),
              HasSubstr("messages: [1] must have content or tool_calls"));
}

TEST_F(ChatTest, TheLastMessageCanBeContinued) {
  start_with(kTemplate);
  v1::GenerateRequest request = user("q");
  add(request.mutable_messages(), "assistant", "Sure");
  request.mutable_messages()->set_continue_final_message(true);
  ASSERT_TRUE(generate(request).status.ok());
  EXPECT_EQ(engine_->last_request().prompt.ids, ids("su:q|a:Sure", "s"));
  request.mutable_messages()->set_add_generation_prompt(true);
  EXPECT_THAT(generate(request).status.error_message(), HasSubstr("must not both be true"));
}

TEST_F(ChatTest, BosOccursOnceIfTheModelNeedsIt) {
  ServingInfo info = fake_info();
  info.tokens.force_bos = true;
  start_with("{{ messages[0].content }}", info);
  ASSERT_TRUE(generate(user("x")).status.ok());
  EXPECT_EQ(engine_->last_request().prompt.ids, ids(" x", "s"));
  v1::GenerateRequest without = user("x");
  without.set_add_special_tokens(false);
  ASSERT_TRUE(generate(without).status.ok());
  EXPECT_EQ(engine_->last_request().prompt.ids, ids("x"));
}

TEST_F(ChatTest, ASessionGetsBothReadings) {
  start_with(kTemplate);
  v1::GenerateRequest request = user("hi");
  request.set_session("s");
  ASSERT_TRUE(generate(request).status.ok());
  const Request got = engine_->last_request();
  EXPECT_EQ(got.prompt.ids, ids("su:hi|a:", "s"));
  ASSERT_TRUE(got.continued_prompt);
  EXPECT_EQ(got.continued_prompt->ids, ids("e|u:hi|a:", "e"));
  EXPECT_THAT(got.continued_prompt->replaces_pending, ::testing::Contains(kEos));
  EXPECT_EQ(got.prompt.refusal, "");
  EXPECT_EQ(got.continued_prompt->refusal, "");
}

TEST_F(ChatTest, ASessionsTurnIsRenderedTwiceForEachReading) {
  start_with(kTemplate);
  v1::GenerateRequest request = user("hi");
  request.set_session("s");
  const int64_t before = chat_.format->renderings();
  ASSERT_TRUE(generate(request).status.ok());
  EXPECT_EQ(chat_.format->renderings() - before, 4);
}

TEST_F(ChatTest, ASessionCannotContinueIfTheTemplateRewritesThePast) {
  start_with("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}");
  v1::GenerateRequest request = user("hi");
  EXPECT_TRUE(generate(request).status.ok());
  request.set_session("s");
  const grpc::Status status = generate(request).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("a session cannot begin with them"));
}

TEST_F(ChatTest, TheAnswerEndsWhereTheTemplateEndsATurn) {
  ServingInfo info = fake_info();
  info.tokens.eos = {kBos};  // not what the template writes
  start_with(kTemplate, info);
  ASSERT_TRUE(generate(user("x")).status.ok());
  EXPECT_EQ(engine_->last_request().sampling.stop_ids, Ids{kEos});
  v1::GenerateRequest on = user("x");
  on.mutable_stop()->set_ignore_eos(true);
  on.mutable_stop()->set_max_tokens(3);
  ASSERT_TRUE(generate(on).status.ok());
  EXPECT_EQ(engine_->last_request().sampling.stop_ids, Ids{});
}

constexpr const char* kHermes =
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.role }}:"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name "
    "}}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}|"
    "{% endfor %}";

// The engine answers with a text and two tool calls.
class ToolUseTest : public ChatTest {
 protected:
  void SetUp() override {
    if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
    chat_ = {
        .format = std::make_shared<const ChatTemplate>(kHermes, "", jinja::Template::Variables{}),
        .exists = true,
        .problem = ""};
    chat_.tool_form = tool_form_of(kHermes);
    start({.script = FakeEngine::text(
               "So: <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": "
               "\"Paris\"}}\n</tool_call>\n"
               "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>")});
  }
  static v1::GenerateRequest asked() {
    v1::GenerateRequest request = user("hi");
    request.mutable_messages()->set_tools_json(
        R"([{"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}},
            {"type": "function", "function": {"name": "now"}}])");
    request.mutable_tool_use();
    return request;
  }
  bool takes(const std::string& text) {
    const auto matcher = engine_->last_request().sampling.constraint->begin();
    for (const char byte : text) {
      if (!matcher->accept(static_cast<unsigned char>(byte))) return false;
    }
    return matcher->may_end();
  }
};

TEST_F(ToolUseTest, CallsComeWithTheText) {
  const Generated got = generate(asked());
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  EXPECT_EQ(got.text(), "So: ");
  std::string id[2], name[2], arguments[2];
  for (const auto& message : got.messages) {
    for (const v1::ToolCallPart& part : message.chunk().tool_calls()) {
      const auto at = static_cast<size_t>(part.index());
      ASSERT_LT(at, 2u);
      id[at] += part.id();
      name[at] += part.name();
      arguments[at] += part.arguments();
    }
  }
  EXPECT_THAT(name, ::testing::ElementsAre("weather", "now"));
  EXPECT_THAT(arguments, ::testing::ElementsAre("{\"city\": \"Paris\"}", "{}"));
  EXPECT_THAT(id[0], HasSubstr("call_"));
  EXPECT_NE(id[0], id[1]);
  EXPECT_EQ(got.final().choices(0).tool_calls(), 2);
  EXPECT_EQ(got.ids().size(), got.final().usage().generated_tokens());
}

TEST_F(ToolUseTest, WithoutItCallsAreText) {
  v1::GenerateRequest request = asked();
  request.clear_tool_use();
  const Generated got = generate(request);
  EXPECT_THAT(got.text(), HasSubstr("</tool_call>\n<tool_call>"));
  EXPECT_EQ(got.final().choices(0).tool_calls(), 0);
  EXPECT_EQ(engine_->last_request().sampling.constraint, nullptr);
}

TEST_F(ToolUseTest, TheConstraintFollowsIt) {
  const std::string call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
  const std::string other = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>";
  v1::GenerateRequest request = asked();
  generate(request);
  EXPECT_TRUE(takes("text") && takes(call + "\n" + other));
  request.mutable_tool_use()->set_required(true);
  generate(request);
  EXPECT_FALSE(takes("text"));
  EXPECT_TRUE(takes(call + "\n" + other));
  request.mutable_tool_use()->set_single(true);
  generate(request);
  EXPECT_TRUE(takes(other));
  EXPECT_FALSE(takes(call + "\n" + other));
  request.mutable_tool_use()->add_allowed("now");
  generate(request);
  EXPECT_TRUE(takes(call));
  EXPECT_FALSE(takes(other));
  request.mutable_tool_use()->add_allowed("absent");
  EXPECT_THAT(generate(request).status.error_message(), HasSubstr("no tool has that name"));
  request.mutable_tool_use()->clear_allowed();
  request.mutable_tool_use()->set_function("now");
  generate(request);
  EXPECT_TRUE(takes(call));
  EXPECT_FALSE(takes(other));
  request.mutable_tool_use()->set_function("absent");
  EXPECT_THAT(generate(request).status.error_message(), HasSubstr("no tool has that name"));
}

TEST_F(ToolUseTest, TakesMessagesWithToolsAndNoConstraint) {
  v1::GenerateRequest request = asked();
  request.mutable_constraint()->set_regex("a");
  EXPECT_THAT(generate(request).status.error_message(), HasSubstr("cannot be combined with tools"));
  request.mutable_constraint()->set_json(true);
  EXPECT_TRUE(generate(request).status.ok());
  EXPECT_TRUE(takes("[1, 2]"));
  EXPECT_FALSE(takes("text") || takes("[1,2]"));
  request.mutable_constraint()->set_any_whitespace(true);
  EXPECT_TRUE(generate(request).status.ok());
  EXPECT_TRUE(takes("[1,\n 2]"));
  request.clear_constraint();
  request.mutable_messages()->clear_tools_json();
  EXPECT_THAT(generate(request).status.error_message(), HasSubstr("tools must be given"));
  request.set_text("p");
  const grpc::Status status = generate(request).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("tools must be given, with messages"));
}

TEST_F(ChatTest, TokenizeShowsTheIds) {
  start_with(kTemplate);
  v1::TokenizeRequest request;
  *request.mutable_messages() = user("hi").messages();
  Ids got;
  ASSERT_TRUE(tokenize(request, &got).ok());
  EXPECT_EQ(got, ids("su:hi|a:", "s"));
  request.set_continued(true);
  ASSERT_TRUE(tokenize(request, &got).ok());
  EXPECT_EQ(got, ids("e|u:hi|a:", "e"));
}

TEST_F(ChatTest, RefusalsNameTheChange) {
  start_with("{% if messages | length > 1 %}{{ raise_exception('one only') }}{% endif %}");
  const auto refusal = [&](const v1::GenerateRequest& request) {
    const grpc::Status status = generate(request).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  v1::GenerateRequest request;
  request.mutable_messages();
  EXPECT_THAT(refusal(request), HasSubstr("at least one message"));
  request = user("a");
  add(request.mutable_messages(), "user", "b");
  EXPECT_THAT(refusal(request), HasSubstr("one only"));
  request = user("a");
  request.mutable_messages()->mutable_messages(0)->set_role("a b");
  EXPECT_THAT(refusal(request), HasSubstr("role must be"));
  request = user("a");
  request.set_parse_special(true);
  EXPECT_THAT(refusal(request), HasSubstr("parse_special is for text"));
  EXPECT_THAT(refusal(user("a")), HasSubstr("at least one token")) << "its output is empty";
}

TEST_F(ChatTest, TheServerReportsWhetherItHasATemplate) {
  const auto info = [&] {
    grpc::ClientContext context;
    v1::ModelInfo response;
    EXPECT_TRUE(control_->GetModelInfo(&context, {}, &response).ok());
    return response;
  };
  chat_ = {.format = nullptr, .exists = true, .problem = "it is odd"};
  start();
  EXPECT_FALSE(info().has_chat_template());
  EXPECT_EQ(info().chat_template_problem(), "it is odd");
  EXPECT_EQ(generate(user("a")).status.error_message(), "messages: it is odd");
  TearDown();
  start_with(kTemplate);
  EXPECT_TRUE(info().has_chat_template());
  EXPECT_EQ(info().chat_template_problem(), "");
}

TEST_F(ChatTest, WithoutATemplateMessagesAreRefused) {
  start();
  EXPECT_THAT(generate(user("a")).status.error_message(), HasSubstr("has no chat template"));
}

}  // namespace recurve::chat_test
