// `recurve PROMPT` and `recurve ask`, as processes, against a fake server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/clients/cli_process.h"
#include "tests/clients/fake_server.h"

namespace recurve::testing::cli_ask_test {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class CliAskTest : public ::testing::Test {
 protected:
  // Each word may be split into arguments; the server's address follows them.
  CliResult run(std::vector<std::string> arguments, const std::string& input = "") const {
    setenv("RECURVE_SERVER", server_.address().c_str(), 1);
    const auto result = run_cli(std::move(arguments), input);
    unsetenv("RECURVE_SERVER");
    return result;
  }
  v1::GenerateRequest last() const {
    const auto requests = server_.inference.generate_requests();
    return requests.empty() ? v1::GenerateRequest() : requests.back();
  }

  FakeServer server_;
};

TEST_F(CliAskTest, APromptIsContinuedIfTheModelHasNoTemplate) {
  const auto result = run({"Once there was"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "Once upon a time");
  EXPECT_EQ(last().text(), "Once there was");
}

TEST_F(CliAskTest, APromptIsAMessageIfTheModelHasATemplate) {
  server_.control.set_chat_template(true);
  EXPECT_EQ(run({"-s", "be brief", "who are you?"}).code, 0);
  ASSERT_EQ(last().messages().messages_size(), 2);
  EXPECT_EQ(last().messages().messages(0).role(), "system");
  EXPECT_EQ(last().messages().messages(0).content(), "be brief");
  EXPECT_EQ(last().messages().messages(1).role(), "user");
  EXPECT_EQ(last().messages().messages(1).content(), "who are you?");
}

TEST_F(CliAskTest, TheCommandMayBeLeftOut) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"ask", "one", "two"},
                                                    {"one two"},
                                                    {"-n", "7", "one", "two"},
                                                    {"--timeout", "9", "one two"},
                                                    {"--timeout=9", "--json", "-t", "0", "one two"},
                                                    {"--", "one", "two"}}) {
    const auto result = run(arguments);
    EXPECT_EQ(result.code, 0) << ::testing::PrintToString(arguments) << result.err;
    EXPECT_EQ(last().text(), "one two") << ::testing::PrintToString(arguments);
  }
}

TEST_F(CliAskTest, PipedTextIsThePromptOrFollowsIt) {
  EXPECT_EQ(run({}, "piped\n").code, 0);
  EXPECT_EQ(last().text(), "piped\n");
  EXPECT_EQ(run({"-n", "3"}, "piped").code, 0);
  EXPECT_EQ(last().text(), "piped");
  EXPECT_EQ(last().stop().max_tokens(), 3);
  EXPECT_EQ(run({"sum this up:"}, "piped\n").code, 0);
  EXPECT_EQ(last().text(), "sum this up:\n\npiped\n");
  const auto empty = run({});
  EXPECT_EQ(empty.code, 2);
  EXPECT_THAT(empty.err, StartsWith("recurve: the prompt is empty"));
}

TEST_F(CliAskTest, ShortFlagsAreThoseOfTheLongOnes) {
  EXPECT_EQ(run({"generate", "-p", "x", "-n", "5", "-t", "0.5"}).code, 0);
  EXPECT_EQ(last().text(), "x");
  EXPECT_EQ(last().stop().max_tokens(), 5);
  EXPECT_EQ(last().sampling().temperature(), 0.5f);
  EXPECT_EQ(run({"generate", "-f", "-", "--n", "2"}, "from input").code, 0);
  EXPECT_EQ(last().text(), "from input");
  EXPECT_EQ(last().n(), 2);
  EXPECT_EQ(run({"-V"}).out, run({"--version"}).out);
}

TEST_F(CliAskTest, ASystemMessageNeedsATemplate) {
  const auto result = run({"ask", "x", "--system", "y"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("--system needs a model with a chat template"));
}

TEST_F(CliAskTest, AFlagThatIsNoneIsNamed) {
  const auto result = run({"--temprature", "1", "a prompt"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err,
              StartsWith("recurve: unknown flag --temprature; did you mean --temperature?"));
}

}  // namespace recurve::testing::cli_ask_test
