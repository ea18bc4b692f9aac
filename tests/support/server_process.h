#pragma once
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace recurve::testing {

// recurve-server as a separate process, on a free port unless `listen` sets another. It is the
// one in the folder that this program is in. Its log goes to a file, unless `standard_error` is a
// file descriptor for it, or kClosed.
class ServerProcess {
 public:
  static constexpr int kLogFile = -1, kClosed = -2;

  explicit ServerProcess(std::vector<std::string> flags, const std::string& listen = "127.0.0.1:0",
                         int standard_error = kLogFile) {
    log_ = std::filesystem::temp_directory_path() /
           ("recurve-server-" + std::to_string(getpid()) + "-" + std::to_string(counter()++));
    std::vector<std::string> args = {binary(), "--listen", listen};
    args.insert(args.end(), flags.begin(), flags.end());
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (standard_error == kLogFile) {
      posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log_.c_str(),
                                       O_WRONLY | O_CREAT | O_TRUNC, 0600);
    } else if (standard_error == kClosed) {
      posix_spawn_file_actions_addclose(&actions, STDERR_FILENO);
    } else {
      posix_spawn_file_actions_adddup2(&actions, standard_error, STDERR_FILENO);
    }
    const int failed = posix_spawn(&pid_, args[0].c_str(), &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) throw std::runtime_error(args[0] + " cannot be started: build it first");
  }
  ~ServerProcess() {
    stop();
    std::filesystem::remove(log_);
  }

  // HOST:PORT, once it serves. Throws with its log if it ends before that. Needs the log file.
  std::string address() { return "127.0.0.1:" + std::to_string(port_of("event=serving ")); }
  // Of --http, the same.
  int http_port() { return port_of("event=serving_http "); }

  void signal(int number) { kill(pid_, number); }
  // Waits for its end; exit status, or 128 + the signal that ended it.
  int wait() {
    if (!reaped_) waitpid(pid_, &status_, 0), reaped_ = true;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }
  int stop() {
    if (!reaped_) kill(pid_, SIGTERM);
    return wait();
  }
  std::string log() const {
    std::ifstream in(log_);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  // As wait(), but for so long at most; -1 if it runs on then, and was killed.
  int wait_for(std::chrono::milliseconds most) {
    const auto end = std::chrono::steady_clock::now() + most;
    while (!ended() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (ended()) return wait();
    kill(pid_, SIGKILL);
    wait();
    return -1;
  }
  int open_files() const {
    const std::filesystem::directory_iterator files("/proc/" + std::to_string(pid_) + "/fd");
    return static_cast<int>(std::distance(begin(files), end(files)));
  }
  int threads() const {
    const std::filesystem::directory_iterator threads("/proc/" + std::to_string(pid_) + "/task");
    return static_cast<int>(std::distance(begin(threads), end(threads)));
  }
  // Of all its threads so far.
  double processor_seconds() const {
    std::ifstream stat("/proc/" + std::to_string(pid_) + "/stat");
    std::string line;
    std::getline(stat, line);
    std::istringstream fields(line.substr(line.rfind(')') + 1));
    std::string skipped;
    for (int field = 3; field < 14; ++field) fields >> skipped;
    double user = 0, system = 0;
    fields >> user >> system;
    return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  double resident_bytes() const {
    std::ifstream statm("/proc/" + std::to_string(pid_) + "/statm");
    double total = 0, resident = 0;
    statm >> total >> resident;
    return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
  }

 private:
  // Of the line of the log with this event.
  int port_of(const std::string& event) {
    for (int tries = 0; tries < 6000; ++tries) {
      const std::string text = log();
      const size_t at = text.find(event);
      const size_t port = text.find("port=", at == std::string::npos ? text.size() : at);
      if (port != std::string::npos && text.find('\n', port) != std::string::npos) {
        return std::stoi(text.substr(port + 5));
      }
      if (ended()) throw std::runtime_error("recurve-server ended: " + log());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    throw std::runtime_error("recurve-server does not serve: " + log());
  }
  static std::string binary() {
    return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "recurve-server";
  }
  static int& counter() {
    static int value = 0;
    return value;
  }
  bool ended() {
    if (!reaped_ && waitpid(pid_, &status_, WNOHANG) == pid_) reaped_ = true;
    return reaped_;
  }
  std::filesystem::path log_;
  pid_t pid_ = 0;
  int status_ = 0;
  bool reaped_ = false;
};

}  // namespace recurve::testing
