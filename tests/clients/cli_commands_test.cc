// The commands of `recurve` besides generate, as processes, against a fake server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>

#include "tests/clients/cli_process.h"
#include "tests/clients/fake_server.h"

namespace recurve::testing::cli_commands_test {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class CliCommandsTest : public ::testing::Test {
 protected:
  std::vector<std::string> arguments(std::vector<std::string> command) const {
    command.insert(command.end(), {"--server", server_.address()});
    return command;
  }
  CliResult run(std::vector<std::string> command, const std::string& input = "") const {
    return run_cli(arguments(std::move(command)), input);
  }
  std::vector<std::string> texts() const {  // of all Generate requests
    std::vector<std::string> texts;
    for (const auto& request : server_.inference.generate_requests()) {
      texts.push_back(request.text());
    }
    return texts;
  }

  FakeServer server_;
};

TEST_F(CliCommandsTest, UnreachableServerIsCodeThreeAndSaysWhatToDo) {
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"generate", "--prompt", "x"},
        {"score", "--prompt", "x"},
        {"info"},
        {"health"},
        {"tokenize", "--prompt", "x"},
        {"session", "list"},
        {"chat"}}) {
    auto all = command;
    all.insert(all.end(), {"--server", "127.0.0.1:1"});
    const auto result = run_cli(all);
    EXPECT_EQ(result.code, 3) << command[0];
    EXPECT_EQ(result.out, "") << command[0];
    EXPECT_THAT(result.err, StartsWith("recurve: no server can be reached at 127.0.0.1:1 ("));
    EXPECT_THAT(result.err, HasSubstr("recurve-server --model DIR --listen 127.0.0.1:1"));
  }
}

TEST_F(CliCommandsTest, AMistypedWordGetsASuggestion) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"gen"}, "unknown command gen; did you mean generate?"},
      {{"sesion", "list"}, "unknown command sesion; did you mean session?"},
      {{"session", "lst"}, "unknown command lst; did you mean list?"},
      {{"--verson"}, "unknown flag --verson; did you mean --version?"},
      {{"generate", "--max-token", "3"}, "unknown flag --max-token; did you mean --max-tokens?"},
      {{"generate", "--tempreature=1"}, "unknown flag --tempreature; did you mean --temperature?"},
      {{"info", "--sever", "x:1"}, "unknown flag --sever; did you mean --server?"},
      {{"unlike-any"}, "unknown command unlike-any"},
      {{"health", "now"}, "unexpected argument now"},
      {{"help", "gnerate"}, "unknown command gnerate; did you mean generate?"},
      {{"session"}, "a command is missing, one of: "}};
  for (const auto& [command, sentence] : cases) {
    const auto result = run_cli(command);
    EXPECT_EQ(result.code, 2) << sentence;
    EXPECT_THAT(result.err, StartsWith("recurve: " + sentence)) << sentence;
  }
}

TEST_F(CliCommandsTest, HelpIsACommandToo) {
  const std::vector<std::vector<std::string>> commands = {
      {}, {"generate"}, {"session"}, {"session", "list"}};
  for (std::vector<std::string> command : commands) {
    std::vector<std::string> help = {"help"};
    help.insert(help.end(), command.begin(), command.end());
    command.emplace_back("--help");
    const auto result = run_cli(help);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.out, run_cli(command).out);
    EXPECT_THAT(result.out, HasSubstr("Usage"));
  }
}

TEST_F(CliCommandsTest, WrongUseIsCodeTwo) {
  for (const std::vector<std::string>& command : {std::vector<std::string>{},
                                                  {"nonsense"},
                                                  {"generate", "--nonsense"},
                                                  {"generate", "--top-k", "many"},
                                                  {"generate", "--seed", "-1"},
                                                  {"generate", "--max-tokens", "99999999999"},
                                                  {"generate", "--logit-bias", "7"},
                                                  {"generate", "--logit-bias", "7=x"},
                                                  {"generate", "--stop-token-ids", "1,b"},
                                                  {"generate", "--prompt", "a", "--file", "b"},
                                                  {"generate", "--file", "/no/such/file"},
                                                  {"generate", "--file", "/"},
                                                  {"generate", "--prompt", "x", "--create-session"},
                                                  {"generate", "--ids", "--prompt", "1 two"},
                                                  {"generate", "--prompt", "a\xff"},
                                                  {"info", "--server", "localhost"},
                                                  {"info", "--timeout", "-1"},
                                                  {"session"},
                                                  {"session", "get"},
                                                  {"session", "mark", "s"},
                                                  {"abort"},
                                                  {"detokenize", "1", "x"}}) {
    const auto result = run_cli(command);
    EXPECT_EQ(result.code, 2) << ::testing::PrintToString(command) << result.err;
    EXPECT_THAT(result.err, StartsWith("recurve: ")) << ::testing::PrintToString(command);
    EXPECT_EQ(result.out, "");
  }
}

TEST_F(CliCommandsTest, HelpNamesTheExitCodes) {
  const auto result = run_cli({"--help"});
  EXPECT_EQ(result.code, 0);
  for (const char* text :
       {"Exit codes", "  130  ", "--server", "RECURVE_SERVER", "generate", "chat", "score", "embed",
        "session", "tokenize", "detokenize", "abort", "info", "health", "ask", "run"}) {
    EXPECT_THAT(result.out, HasSubstr(text));
  }
}

TEST_F(CliCommandsTest, ServerComesFromTheEnvironmentUnlessSaid) {
  setenv("RECURVE_SERVER", server_.address().c_str(), 1);
  EXPECT_EQ(run_cli({"health"}).code, 0);
  setenv("RECURVE_SERVER", "127.0.0.1:1", 1);
  EXPECT_EQ(run_cli({"health"}).code, 3);
  EXPECT_EQ(run_cli({"health", "--server", server_.address()}).code, 0);
  EXPECT_EQ(run_cli({"--server", server_.address(), "health"}).code, 0);
  unsetenv("RECURVE_SERVER");
}

TEST_F(CliCommandsTest, ScorePrintsTotals) {
  // Four tokens of probability 1/4: 5.545 nats, perplexity 4, and 8 bits over 8 bytes.
  const auto result = run({"score"}, "12345678");
  EXPECT_EQ(result.out,
            "tokens                   4\n"
            "negative log-likelihood  5.54518 nats\n"
            "perplexity               4\n"
            "bits per byte            1\n");
  EXPECT_FALSE(server_.inference.score_requests()[0].options().has_top());
}

TEST_F(CliCommandsTest, ScoreJsonHasEveryToken) {
  const auto result = run({"score", "--prompt", "x", "--json"});
  std::istringstream in(result.out);
  std::vector<json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[1]["progress"]["tokens"].size(), 4u);
  EXPECT_EQ(lines[2]["final"]["scored_tokens"], "4");
}

TEST_F(CliCommandsTest, ScoreFlagsReachTheRequest) {
  EXPECT_EQ(run({"score", "--ids", "--prompt", "5 6", "--top", "3", "--no-add-special-tokens",
                 "--parse-special", "--request-id", "r"})
                .code,
            0);
  const auto requests = server_.inference.score_requests();
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_THAT(requests[0].ids().ids(), ElementsAre(5, 6));
  const auto& options = requests[0].options();
  EXPECT_EQ(options.top(), 3);
  EXPECT_TRUE(options.has_add_special_tokens() && !options.add_special_tokens());
  EXPECT_TRUE(options.parse_special());
  EXPECT_EQ(options.request_id(), "r");
}

TEST_F(CliCommandsTest, EmbedPrintsALineOfNumbersForEachText) {
  EXPECT_EQ(run({"embed", "--prompt", "some text"}).out, "0 0.5\n");
  EXPECT_EQ(server_.inference.embed_request().inputs(0).text(), "some text");
  EXPECT_FALSE(server_.inference.embed_request().has_dimensions());
  EXPECT_EQ(
      run({"embed", "--lines", "--pooling", "mean", "--dimensions", "2", "--no-add-special-tokens"},
          "one\ntwo\n")
          .out,
      "0 0.5\n1 0.5\n");
  const auto request = server_.inference.embed_request();
  ASSERT_EQ(request.inputs_size(), 2);
  EXPECT_EQ(request.inputs(1).text(), "two");
  EXPECT_EQ(request.pooling(), v1::POOLING_MEAN);
  EXPECT_EQ(request.dimensions(), 2);
  EXPECT_TRUE(request.has_add_special_tokens() && !request.add_special_tokens());
  EXPECT_EQ(run({"embed", "--prompt", "x", "--pooling", "max"}).code, 2);
}

TEST_F(CliCommandsTest, TokenizePrintsIds) {
  EXPECT_EQ(run({"tokenize", "--no-add-special-tokens", "--parse-special"}, "some text").out,
            "1 20\n");
  const auto request = server_.inference.tokenize_request();
  EXPECT_EQ(request.text(), "some text");
  EXPECT_TRUE(request.has_add_special_tokens() && !request.add_special_tokens());
  EXPECT_TRUE(request.parse_special());
}

TEST_F(CliCommandsTest, TokenizePrintsBytes) {
  EXPECT_EQ(run({"tokenize", "--prompt", "x", "--bytes"}).out, "1\ta b\n20\t\\xc3\\n\n");
}

TEST_F(CliCommandsTest, DetokenizeTakesIdsFromArgumentsOrInput) {
  EXPECT_EQ(run({"detokenize", "1", "20,3", "--continued"}).out, "some text");
  EXPECT_THAT(server_.inference.detokenize_request().ids(), ElementsAre(1, 20, 3));
  EXPECT_TRUE(server_.inference.detokenize_request().continued());
  EXPECT_EQ(run({"detokenize"}, "4 5\n").out, "some text");
  EXPECT_THAT(server_.inference.detokenize_request().ids(), ElementsAre(4, 5));
}

TEST_F(CliCommandsTest, AbortNamesTheRequest) {
  EXPECT_EQ(run({"abort", "r-7"}).code, 0);
  EXPECT_EQ(server_.inference.aborted(), "r-7");
  const auto result = run({"abort", "unknown"});
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.err, "recurve: NOT_FOUND: no request 'unknown'\n");
}

TEST_F(CliCommandsTest, SessionsOpenForkAndClose) {
  EXPECT_EQ(run({"session", "open", "a", "--ttl", "5"}).out, "a\n");
  EXPECT_EQ(server_.sessions.sessions().at("a").ttl_seconds(), 5);
  const std::string made = run({"session", "open"}).out;
  EXPECT_TRUE(server_.sessions.sessions().contains(made.substr(0, made.size() - 1))) << made;
  EXPECT_EQ(run({"session", "fork", "a", "b", "--ttl", "7"}).out, "b\n");
  EXPECT_EQ(server_.sessions.sessions().at("b").ttl_seconds(), 7);
  const auto again = run({"session", "open", "a"});
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.err, HasSubstr("ALREADY_EXISTS"));
  const auto list = run({"session", "list"});
  EXPECT_THAT(list.out, HasSubstr(made.substr(0, made.size() - 1)));
  EXPECT_EQ(std::count(list.out.begin(), list.out.end(), '\n'), 4);  // a head, and three
  EXPECT_THAT(run({"session", "list", "--prefix", "cpp-"}).out, Not(HasSubstr("\na ")));
  EXPECT_EQ(run({"session", "close", "a", "b"}).code, 0);
  EXPECT_EQ(server_.sessions.sessions().size(), 1u);
  EXPECT_EQ(run({"session", "close", "a"}).code, 1);
}

TEST_F(CliCommandsTest, SessionsMarkAndRewind) {
  run({"session", "open", "a"});
  EXPECT_THAT(run({"session", "mark", "a", "here"}).out, HasSubstr("mark           here at 0"));
  EXPECT_THAT(run({"session", "rewind", "a", "here"}).out, HasSubstr("tokens         17"));
  EXPECT_THAT(run({"session", "rewind", "a", "--position", "9"}).out,
              HasSubstr("tokens         9"));
  EXPECT_EQ(run({"session", "rewind", "a", "here", "--position", "9"}).code, 2);
  run({"session", "rewind", "a", "here"});
  EXPECT_THAT(run({"session", "unmark", "a", "here"}).out, Not(HasSubstr("mark ")));
  EXPECT_THAT(run({"session", "get", "a"}).out, HasSubstr("tokens         17"));
  EXPECT_EQ(json::parse(run({"session", "get", "a", "--json"}).out)["position"], "17");
}

TEST_F(CliCommandsTest, SessionAcceptPrintsWhatIsStillThere) {
  run({"session", "open", "a"});
  EXPECT_THAT(run({"session", "accept", "a"}).out, HasSubstr("tokens         0"));
  EXPECT_EQ(run({"session", "accept", "other"}).code, 1);
}

TEST_F(CliCommandsTest, InfoIsATableOrJson) {
  const std::string table = run({"info"}).out;
  for (const char* text : {"9.9.9", "serving", "fake-8m", "8.00 million", "3.00 MiB", "2, 5",
                           "mlstm_chunk", "cpu avx2", "3 running"}) {
    EXPECT_THAT(table, HasSubstr(text));
  }
  const auto whole = json::parse(run({"info", "--json"}).out);
  EXPECT_EQ(whole["server"]["state"], "SERVER_STATE_SERVING");
  EXPECT_EQ(whole["model"]["name"], "fake-8m");
  EXPECT_EQ(whole["load"]["requests_running"], 3);
}

TEST_F(CliCommandsTest, InfoWorksWithTheKeyOfAUser) {
  server_.control.set_operator(false);
  const auto result = run({"info"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("fake-8m"));
  EXPECT_THAT(result.out, HasSubstr("load\n  needs a key with the role observer or admin"));
  EXPECT_TRUE(json::parse(run({"info", "--json"}).out)["load"].is_null());
}

TEST_F(CliCommandsTest, InfoWorksWhileTheModelLoads) {
  server_.control.set_state(v1::SERVER_STATE_LOADING);
  const auto result = run({"info"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("loading"));
  EXPECT_TRUE(json::parse(run({"info", "--json"}).out)["model"].is_null());
}

TEST_F(CliCommandsTest, HealthSaysAndWaits) {
  EXPECT_EQ(run({"health"}).out, "SERVING\n");
  server_.set_serving(false);
  const auto result = run({"health", "--json"});
  EXPECT_EQ(result.code, 4);
  EXPECT_EQ(result.out, "{\"status\":\"NOT_SERVING\"}\n");
  EXPECT_EQ(run({"health", "--wait", "0.2"}).code, 4);
  CliProcess waiting(arguments({"health", "--wait", "20"}));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  server_.set_serving(true);
  EXPECT_EQ(waiting.finish().code, 0);
}

TEST_F(CliCommandsTest, CtrlCEndsAWait) {
  server_.set_serving(false);
  CliProcess waiting(arguments({"health", "--wait", "20"}));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  waiting.interrupt();
  EXPECT_EQ(waiting.finish().code, 130);
}

TEST_F(CliCommandsTest, ChatSendsLinesOnOneSessionAndClosesIt) {
  const auto result = run({"chat", "--max-tokens", "5", "--after", "\\t.\\\\"}, "one\n\n//two\n");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "Once upon a time\nOnce upon a time\nOnce upon a time\n");
  EXPECT_THAT(texts(), ElementsAre("one\t.\\", "", "\n/two\t.\\"));
  const auto requests = server_.inference.generate_requests();
  EXPECT_NE(requests[0].session(), "");
  EXPECT_EQ(requests[2].session(), requests[0].session());
  EXPECT_EQ(requests[2].stop().max_tokens(), 5);
  EXPECT_TRUE(server_.sessions.sessions().empty());
}

TEST_F(CliCommandsTest, ChatSendsMessagesWhereTheModelHasATemplate) {
  server_.control.set_chat_template(true);
  EXPECT_EQ(run({"chat", "--system", "be brief"}, "one\n\ntwo\n").code, 0);
  const auto requests = server_.inference.generate_requests();
  ASSERT_EQ(requests.size(), 3u);
  ASSERT_EQ(requests[0].messages().messages_size(), 2);
  EXPECT_EQ(requests[0].messages().messages(0).role(), "system");
  EXPECT_EQ(requests[0].messages().messages(0).content(), "be brief");
  EXPECT_EQ(requests[0].messages().messages(1).role(), "user");
  EXPECT_EQ(requests[0].messages().messages(1).content(), "one");
  EXPECT_TRUE(requests[1].has_text()) << "an empty line: the model goes on";
  ASSERT_EQ(requests[2].messages().messages_size(), 1);
  EXPECT_EQ(requests[2].messages().messages(0).content(), "two");
}

TEST_F(CliCommandsTest, ChatSendsWhatTheCalledFunctionsGave) {
  const auto path =
      std::filesystem::temp_directory_path() / ("recurve_cli_chat_" + std::to_string(getpid()));
  std::ofstream(path) << "[{\"name\": \"now\"}]";
  server_.control.set_chat_template(true);
  server_.inference.set_on_generate([](auto*, const auto& request, auto* writer) {
    writer->Write(prompt_message(request));
    const auto& last = *request.messages().messages().rbegin();
    v1::GenerateResponse response = chunk_message(last.role() == "user" ? "" : "So.");
    for (int i = 0; last.role() == "user" && i < 2; ++i) {
      auto* call = response.mutable_chunk()->add_tool_calls();
      call->set_index(i);
      call->set_id("c" + std::to_string(i));
      call->set_name("now");
      call->set_arguments("{}");
    }
    writer->Write(response);
    v1::GenerateResponse end = final_message();
    end.mutable_final()->mutable_choices(0)->set_tool_calls(last.role() == "user" ? 2 : 0);
    writer->Write(end);
    return grpc::Status::OK;
  });
  const auto result =
      run({"chat", "--tools", path}, "/tool early\none\n/tool first\n/tool second\n/tool late\n");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out,
            "{\"id\": \"c0\", \"name\": \"now\", \"arguments\": {}}\n"
            "{\"id\": \"c1\", \"name\": \"now\", \"arguments\": {}}\nSo.\n");
  EXPECT_THAT(result.err, HasSubstr("no call waits for a result"));
  const auto requests = server_.inference.generate_requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_TRUE(requests[0].has_tool_use());
  ASSERT_EQ(requests[1].messages().messages_size(), 2);
  const auto& second = requests[1].messages().messages(1);
  EXPECT_EQ(second.role(), "tool");
  EXPECT_EQ(second.content(), "second");
  EXPECT_EQ(second.fields_json(), "{\"tool_call_id\":\"c1\"}");
  EXPECT_EQ(requests[1].messages().tools_json(), requests[0].messages().tools_json());
  std::filesystem::remove(path);
}

TEST_F(CliCommandsTest, ChatSendsTextWhereItIsAskedTo) {
  server_.control.set_chat_template(true);
  EXPECT_EQ(run({"chat", "--raw"}, "one\n").code, 0);
  EXPECT_EQ(run({"chat", "--before", " "}, "two\n").code, 0);
  EXPECT_THAT(texts(), ElementsAre("one", "two"));
  const auto refused = run({"chat", "--raw", "--system", "x"}, "one\n");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--system needs messages"));
  server_.control.set_chat_template(false, "the template is odd");
  EXPECT_THAT(run({"chat"}, "three\n").err, HasSubstr("the template is odd"));
  EXPECT_THAT(texts(), ElementsAre("one", "two", "three"));
}

TEST_F(CliCommandsTest, ChatKeepsANamedSession) {
  EXPECT_EQ(run({"chat", "--session", "s"}, "one\n").code, 0);
  EXPECT_EQ(run({"chat", "--session", "s"}, "two").code, 0);
  EXPECT_EQ(server_.sessions.opened(), 1);
  EXPECT_TRUE(server_.sessions.sessions().contains("s"));
  EXPECT_EQ(texts().size(), 2u);
}

TEST_F(CliCommandsTest, ChatIsWithTheModelOfItsSession) {
  EXPECT_EQ(run({"chat", "--model", "chatty", "--session", "s"}, "one\n").code, 0);
  EXPECT_EQ(run({"chat", "--session", "s"}, "two\n").code, 0);
  const auto requests = server_.inference.generate_requests();
  ASSERT_EQ(requests.size(), 2u);
  for (const v1::GenerateRequest& request : requests) {
    EXPECT_EQ(request.model(), "chatty");
    EXPECT_TRUE(request.has_messages());
  }
  const auto refused = run({"chat", "--model", "other", "--session", "s"}, "three\n");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("session s is of the model chatty, not of other"));
}

TEST_F(CliCommandsTest, ChatHasCommands) {
  const auto result =
      run({"chat", "--session", "s"},
          "/mark m\n/info\n/rewind m\n/fork copy\n/help\n/nonsense\n/quit\nnot sent\n");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("mark           m at 0"));
  EXPECT_THAT(result.err, HasSubstr("/rewind NAME"));
  EXPECT_THAT(result.err, HasSubstr("no command /nonsense"));
  EXPECT_EQ(server_.sessions.sessions().at("s").position(), 17);
  EXPECT_TRUE(server_.sessions.sessions().contains("copy"));
  EXPECT_TRUE(texts().empty());
}

TEST_F(CliCommandsTest, ChatOfAScriptEndsWithTheFirstRefusal) {
  server_.inference.set_on_generate([](auto*, const auto&, auto*) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no");
  });
  EXPECT_EQ(run({"chat"}, "one\ntwo\n").code, 1);
  EXPECT_THAT(texts(), ElementsAre("one"));
  EXPECT_TRUE(server_.sessions.sessions().empty());
}

TEST_F(CliCommandsTest, CtrlCInChatEndsTheAnswerAndNotTheChat) {
  std::promise<bool> cancelled;
  server_.inference.set_on_generate(
      [&](grpc::ServerContext* context, const v1::GenerateRequest&, GenerateWriter* writer) {
        writer->Write(chunk_message("begun"));
        cancelled.set_value(wait_for_cancel(context));
        return grpc::Status::OK;
      });
  CliProcess chat(arguments({"chat"}));
  chat.write_input("one\n");
  chat.wait_for_output("begun");
  chat.interrupt();
  chat.interrupt();  // the same Ctrl-C, delivered twice
  EXPECT_TRUE(cancelled.get_future().get());
  server_.inference.set_on_generate(answer_with({"again"}));
  chat.write_input("two\n");
  chat.wait_for_output("again");
  const auto result = chat.finish();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "begun\nagain\n");
}

TEST_F(CliCommandsTest, CtrlCAtTheEndOfAScriptsChatClosesItsSession) {
  CliProcess chat(arguments({"chat"}));
  chat.write_input("one\n");
  chat.wait_for_output("time\n");
  // Its input stays open: only the signal can end it. The first may still count for the answer.
  for (int i = 0; i < 200 && !server_.sessions.sessions().empty(); ++i) {
    chat.interrupt();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_TRUE(server_.sessions.sessions().empty());
  EXPECT_EQ(chat.finish().code, 130);
}

}  // namespace recurve::testing::cli_commands_test
