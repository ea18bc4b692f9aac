// `recurve chat` on a pseudo-terminal: editing, history, completion and texts of several lines; and
// the commands that change the requests and show the session.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <stdexcept>

#include "clients/cpp/same_stop.h"
#include "tests/clients/cli_process.h"
#include "tests/clients/fake_server.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::cli_terminal_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kUp = "\033[A";
constexpr const char* kStartOfLine = "\001";
constexpr const char* kEndOfInput = "\004";
constexpr const char* kInterrupt = "\003";

// The program on a separate terminal, which it controls.
class Terminal {
 public:
  Terminal(std::vector<std::string> arguments, std::vector<std::string> environment) {
    master_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master_ < 0 || grantpt(master_) != 0 || unlockpt(master_) != 0) {
      throw std::runtime_error("no terminal");
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, ptsname(master_), O_RDWR, 0);
    posix_spawn_file_actions_adddup2(&actions, STDIN_FILENO, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, STDIN_FILENO, STDERR_FILENO);
    pid_ = spawn_program("recurve", std::move(arguments), pointers_to(environment).data(), &actions,
                         POSIX_SPAWN_SETSID);
  }
  ~Terminal() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(master_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys) {
    ASSERT_EQ(write(master_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // Waits until the terminal shows `text` after what was waited for before.
  void wait_for(const std::string& text) {
    for (;;) {
      const size_t found = shown_.find(text, seen_);
      if (found != std::string::npos) {
        seen_ = found + text.size();
        return;
      }
      if (!pump()) throw std::runtime_error("ended without '" + text + "': " + shown_);
    }
  }
  int finish() {
    while (pump()) continue;
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  const std::string& shown() const { return shown_; }

 private:
  bool pump() {
    pollfd fd{master_, POLLIN, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline_ - std::chrono::steady_clock::now());
    if (left.count() <= 0 || poll(&fd, 1, static_cast<int>(left.count())) <= 0) {
      throw std::runtime_error("recurve runs too long; so far: " + shown_);
    }
    char piece[4096];
    const ssize_t size = read(master_, piece, sizeof piece);
    if (size <= 0) return false;
    shown_.append(piece, static_cast<size_t>(size));
    return true;
  }

  pid_t pid_ = -1;
  int master_ = -1;
  size_t seen_ = 0;
  std::string shown_;
  std::chrono::steady_clock::time_point deadline_ =
      std::chrono::steady_clock::now() + std::chrono::seconds(30);
};

class CliTerminalTest : public ::testing::Test {
 protected:
  std::unique_ptr<Terminal> chat(std::vector<std::string> flags = {},
                                 std::vector<std::string> environment = {}) {
    std::vector<std::string> arguments = {"chat", "--server", server_.address()};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    environment.insert(environment.end(), {"TERM=xterm", "HOME=" + folder_.path().string()});
    // Without the user's own settings of history and colours.
    for (char** one = environ; *one != nullptr; ++one) {
      const std::string_view text = *one;
      const std::string_view name = text.substr(0, text.find('='));
      if (name == "TERM" || name == "HOME" || name == "NO_COLOR" || name == "RECURVE_HISTORY" ||
          name == "XDG_STATE_HOME") {
        continue;
      }
      environment.emplace_back(text);
    }
    auto terminal = std::make_unique<Terminal>(arguments, environment);
    terminal->wait_for("/help lists commands");
    terminal->wait_for("> ");
    return terminal;
  }
  // Types a line and waits for its answer and the next prompt.
  static void ask(Terminal& terminal, const std::string& keys) {
    terminal.type(keys + "\r");
    terminal.wait_for("Once upon a time");
    terminal.wait_for("> ");
  }
  std::vector<std::string> texts() const {
    std::vector<std::string> texts;
    for (const auto& request : server_.inference.generate_requests()) {
      texts.push_back(request.text());
    }
    return texts;
  }

  FakeServer server_;
  TempDir folder_;
};

TEST_F(CliTerminalTest, ALineIsEdited) {
  const auto terminal = chat();
  ask(*terminal, std::string("wo\177\177ne") + kStartOfLine + "o");
  ask(*terminal, "na\xC3\xAFv\177ve \xF0\x9F\x9C\x9A");
  terminal->type(kEndOfInput);
  EXPECT_EQ(terminal->finish(), 0) << terminal->shown();
  EXPECT_THAT(texts(), ElementsAre("one", "\nna\xC3\xAFve \xF0\x9F\x9C\x9A"));
}

TEST_F(CliTerminalTest, EarlierLinesReturnAlsoInALaterChat) {
  const auto first = chat();
  ask(*first, "one");
  ask(*first, "two");
  ask(*first, std::string(kUp) + kUp);
  first->type(kEndOfInput);
  EXPECT_EQ(first->finish(), 0);
  const auto file = folder_.path() / ".local/state/recurve/chat_history";
  ASSERT_TRUE(std::filesystem::exists(file));
  EXPECT_EQ(std::filesystem::status(file).permissions() & std::filesystem::perms::mask,
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const auto second = chat();
  ask(*second, std::string(kUp) + kUp);
  second->type(kEndOfInput);
  EXPECT_EQ(second->finish(), 0);
  EXPECT_THAT(texts(), ElementsAre("one", "\ntwo", "\none", "two"));
}

TEST_F(CliTerminalTest, ATextMayHaveSeveralLines) {
  const auto terminal = chat();
  terminal->type("one\\\r");
  terminal->wait_for(". ");
  ask(*terminal, "two");
  terminal->type("\"\"\"three\r");
  terminal->wait_for(". ");
  terminal->type("\r");
  terminal->wait_for(". ");
  ask(*terminal, "four\"\"\"");
  terminal->type(kEndOfInput);
  EXPECT_EQ(terminal->finish(), 0);
  EXPECT_THAT(texts(), ElementsAre("one\ntwo", "\nthree\n\nfour"));
}

TEST_F(CliTerminalTest, TabCompletesCommandsMarksAndSettings) {
  const auto terminal = chat({"--session", "s"});
  terminal->type("/mark here\r");
  terminal->wait_for("> ");
  terminal->type("/rew\th\t\r");
  terminal->wait_for("> ");
  terminal->type("/set max-\t7\r");
  terminal->wait_for("max-tokens 7");
  terminal->wait_for("> ");
  terminal->type(kEndOfInput);
  EXPECT_EQ(terminal->finish(), 0) << terminal->shown();
  EXPECT_EQ(server_.sessions.sessions().at("s").epoch(), 1u);
}

TEST_F(CliTerminalTest, CtrlCEndsAnAnswerAndThenALineAndThenTheChat) {
  std::promise<void> cancelled;
  server_.inference.set_on_generate(
      [&](grpc::ServerContext* context, const v1::GenerateRequest&, GenerateWriter* writer) {
        writer->Write(chunk_message("begun"));
        if (wait_for_cancel(context)) cancelled.set_value();
        return grpc::Status::OK;
      });
  const auto terminal = chat();
  terminal->type("one\r");
  terminal->wait_for("begun");
  terminal->type(kInterrupt);
  cancelled.get_future().get();
  terminal->wait_for("> ");
  std::this_thread::sleep_for(kSameStop);  // or it counts as the same Ctrl-C
  terminal->type("not sent");
  terminal->wait_for("not sent");
  terminal->type(kInterrupt);
  terminal->wait_for("so does Ctrl-C once more");
  terminal->wait_for("> ");
  terminal->type(kInterrupt);
  EXPECT_EQ(terminal->finish(), 130) << terminal->shown();
  EXPECT_THAT(texts(), ElementsAre("one"));
}

TEST_F(CliTerminalTest, ColoursAreOffWithNoColor) {
  constexpr const char* kBold = "\033[1m";
  EXPECT_THAT(chat()->shown(), HasSubstr(kBold));
  EXPECT_THAT(chat({}, {"NO_COLOR=1"})->shown(), Not(HasSubstr(kBold)));
}

TEST_F(CliTerminalTest, ACommandIsMissingIfNothingIsPipedIn) {
  Terminal terminal({}, {});
  terminal.wait_for("recurve: a command is missing, one of: ask, generate, chat, ");
  EXPECT_EQ(terminal.finish(), 2);
}

TEST_F(CliTerminalTest, SettingsHoldForTheNextAnswers) {
  const auto run = [&](const std::string& input) {
    return run_cli({"chat", "--temperature", "0.25", "--server", server_.address()}, input);
  };
  const auto result =
      run("/set top-k 3\n/set stop a b\n/set ignore-eos\none\n/set default\ntwo\n/set\n");
  EXPECT_EQ(result.code, 0) << result.err;
  const auto requests = server_.inference.generate_requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].sampling().temperature(), 0.25f);
  EXPECT_EQ(requests[0].sampling().top_k(), 3);
  EXPECT_THAT(requests[0].stop().stop_strings(), ElementsAre("a b"));
  EXPECT_TRUE(requests[0].stop().ignore_eos());
  EXPECT_EQ(requests[1].sampling().top_k(), 0);
  EXPECT_EQ(requests[1].sampling().temperature(), 0.25f);
  EXPECT_EQ(requests[1].stop().stop_strings_size(), 0);
  EXPECT_TRUE(result.err.ends_with("temperature 0.25\n")) << result.err;
  const auto wrong = run("/set temprature 1\nnot sent\n");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("unknown flag --temprature; did you mean --temperature?"));
  EXPECT_EQ(server_.inference.generate_requests().size(), 2u);
}

TEST_F(CliTerminalTest, TheSystemMessageComesFirst) {
  server_.control.set_chat_template(true);
  const auto run = [&](const std::string& input) {
    return run_cli({"chat", "--server", server_.address()}, input);
  };
  const auto result = run("/system be brief\none\n/system be long\n");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("/rewind 0 returns to an empty session"));
  const auto requests = server_.inference.generate_requests();
  ASSERT_EQ(requests.size(), 1u);
  ASSERT_EQ(requests[0].messages().messages_size(), 2);
  EXPECT_EQ(requests[0].messages().messages(0).content(), "be brief");
  server_.control.set_chat_template(false);
  EXPECT_THAT(run("/system x\n").err, HasSubstr("needs a model with a chat template"));
}

TEST_F(CliTerminalTest, TheTreeHasMarksAndForks) {
  const auto run = [&](const std::string& session, const std::string& input) {
    return run_cli({"chat", "--session", session, "--server", server_.address()}, input);
  };
  run("a", "/mark m\n/fork b\n/fork c\n");
  const auto result = run("b", "/fork d\n/tree\n");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("a at 0 tokens\n"
                                    "  mark m at 0 tokens\n"
                                    "  b at 0 tokens (this chat)\n"
                                    "    d at 0 tokens\n"
                                    "  c at 0 tokens\n"));
}

}  // namespace recurve::testing::cli_terminal_test
