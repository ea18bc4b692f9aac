#include "clients/cpp/cli/cli_server_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

namespace recurve {
namespace {

constexpr const char* kProgram = "recurve-server";
constexpr size_t kLastWords = 4096;  // bytes

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// The one that was installed with this program.
std::string program_path() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto next_to_it = self.parent_path() / kProgram;
  return !error && access(next_to_it.c_str(), X_OK) == 0 ? next_to_it.string() : kProgram;
}

// In the child. Its process group differs, so that Ctrl-C reaches this program alone.
[[noreturn]] void execute(const char* program, char* const* arguments, int log, pid_t parent) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);  // it died before
  dup2(open("/dev/null", O_RDWR), STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execvp(program, arguments);
  _exit(127);
}

}  // namespace

ServerProcess::ServerProcess(const std::vector<std::string>& arguments)
    : log_(nullptr, std::fclose) {
  std::vector<std::string> words = {kProgram};
  words.insert(words.end(), arguments.begin(), arguments.end());
  for (const char* flag :
       {"--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--log-format=json", "--log-level=info"}) {
    words.emplace_back(flag);
  }
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const std::string program = program_path();
  std::array<int, 2> log{};
  if (pipe2(log.data(), O_CLOEXEC) != 0) fail("cannot make a pipe");
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) execute(program.c_str(), pointers.data(), log[1], parent);
  ::close(log[1]);
  if (pid_ < 0) fail("cannot start recurve-server");
  log_.reset(fdopen(log[0], "r"));
  if (!log_) fail("cannot read from recurve-server");
}

ServerProcess::~ServerProcess() { stop(); }

bool ServerProcess::read_line(std::string* line) {
  char* text = nullptr;
  size_t capacity = 0;
  const ssize_t size = getline(&text, &capacity, log_.get());
  const std::unique_ptr<char, decltype(&std::free)> owner(text, std::free);
  if (size <= 0) return false;
  line->assign(text, static_cast<size_t>(size));
  if (line->ends_with('\n')) line->pop_back();
  return true;
}

// A sentence that comes before the log has its form is a line of text.
std::string ServerProcess::take(const std::string& line) {
  const auto event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  std::string text = line;
  if (event.is_object()) {
    const std::string name = event.value("event", "");
    if (name == "serving") grpc_port_ = event.value("port", 0);
    if (name == "serving_http") http_port_ = event.value("port", 0);
    text = name == "text"                        ? event.value("text", "")
           : event.value("level", "") == "error" ? line
                                                 : "";
  }
  if (text.starts_with(kProgram)) last_words_.clear();  // the reason begins
  if (!text.empty()) last_words_ += text + "\n";
  if (last_words_.size() > kLastWords) last_words_.erase(0, last_words_.size() - kLastWords);
  return text;
}

bool ServerProcess::wait_until_serving(const std::function<void(const std::string&)>& on_progress) {
  for (std::string line; grpc_port_ == 0 || http_port_ == 0;) {
    if (!read_line(&line)) {
      stop();
      return false;
    }
    const std::string text = take(line);
    const bool of_table = text.starts_with(' ');
    if (!text.empty() && !of_table) on_progress(text);
  }
  last_words_.clear();
  reader_ = std::thread([this] {
    for (std::string line; read_line(&line);) take(line);
  });
  return true;
}

int ServerProcess::stop() {
  if (pid_ < 0) return exit_code_;
  kill(pid_, SIGTERM);
  if (reader_.joinable()) reader_.join();
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) continue;
  pid_ = -1;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (exit_code_ == 127)
    last_words_ = "recurve: recurve-server is neither next to recurve nor in PATH\n";
  return exit_code_;
}

}  // namespace recurve
