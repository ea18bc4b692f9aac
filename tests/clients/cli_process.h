#pragma once
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// Runs the program `recurve`, or another one in the test program's folder.
namespace recurve::testing {

struct CliResult {
  int code = -1;  // exit code; 128 + the signal's number where one ended it
  std::string out;
  std::string err;
};

// Null-terminated, for as long as `texts` are there.
inline std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Starts a program of the test program's folder. Destroys the actions. more_flags: of posix_spawn.
inline pid_t spawn_program(const std::string& name, std::vector<std::string> arguments,
                           char* const* environment, posix_spawn_file_actions_t* actions,
                           int more_flags = 0) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
  arguments.insert(arguments.begin(), program);
  // A shell in the background ignores SIGINT, and that would be inherited.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults, mask;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGINT);
  sigaddset(&defaults, SIGPIPE);
  sigemptyset(&mask);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setsigmask(&attributes, &mask);
  posix_spawnattr_setflags(
      &attributes, static_cast<short>(POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | more_flags));
  pid_t pid = -1;
  const int error = posix_spawn(&pid, program.c_str(), actions, &attributes,
                                pointers_to(arguments).data(), environment);
  posix_spawn_file_actions_destroy(actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) throw std::runtime_error(program + " cannot be run");
  return pid;
}

class CliProcess {
 public:
  enum class Out { kPipe, kTerminal };

  explicit CliProcess(std::vector<std::string> arguments, Out out = Out::kPipe,
                      const std::string& name = "recurve") {
    int in_pipe[2], out_pipe[2], err_pipe[2];
    make_pipe(in_pipe);
    make_pipe(err_pipe);
    if (out == Out::kPipe) {
      make_pipe(out_pipe);
    } else {
      make_terminal(out_pipe);
    }
    spawn(name, std::move(arguments), in_pipe[0], out_pipe[1], err_pipe[1]);
    for (const int fd : {in_pipe[0], out_pipe[1], err_pipe[1]}) ::close(fd);
    in_ = in_pipe[1];
    out_ = out_pipe[0];
    err_ = err_pipe[0];
    signal(SIGPIPE, SIG_IGN);
  }
  ~CliProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close_input();
    close_output();
    if (err_ >= 0) ::close(err_);
  }
  CliProcess(const CliProcess&) = delete;
  CliProcess& operator=(const CliProcess&) = delete;

  void write_input(std::string_view text) {
    while (!text.empty()) {
      const ssize_t size = write(in_, text.data(), text.size());
      if (size < 0) return;  // it does not read; what it says then is what is tested
      text.remove_prefix(static_cast<size_t>(size));
    }
  }
  void close_input() { close_fd(in_); }
  void close_output() { close_fd(out_); }
  void interrupt() { kill(pid_, SIGINT); }

  // Waits until standard output, or standard error, holds `text`.
  void wait_for_output(const std::string& text) { wait_for(text, result_.out); }
  void wait_for_error(const std::string& text) { wait_for(text, result_.err); }
  const std::string& out() const { return result_.out; }

  // Closes its input, and waits for its end.
  CliResult finish() {
    close_input();
    while (pump()) continue;
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    result_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result_;
  }

 private:
  static void make_pipe(int (&fds)[2]) {
    if (pipe2(fds, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  }
  static void make_terminal(int (&fds)[2]) {
    fds[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fds[0] < 0 || grantpt(fds[0]) != 0 || unlockpt(fds[0]) != 0) {
      throw std::runtime_error("no terminal");
    }
    fds[1] = open(ptsname(fds[0]), O_RDWR | O_NOCTTY | O_CLOEXEC);
  }
  static void close_fd(int& fd) {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }

  void spawn(const std::string& name, std::vector<std::string> arguments, int in, int out,
             int err) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
    pid_ = spawn_program(name, std::move(arguments), environ, &actions);
  }

  void wait_for(const std::string& text, const std::string& in) {
    while (in.find(text) == std::string::npos) {
      if (!pump()) throw std::runtime_error("ended without '" + text + "': " + in);
    }
  }
  // Reads what has come; false once both outputs are at their end. Throws after 30 seconds.
  bool pump() {
    pollfd fds[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline_ - std::chrono::steady_clock::now());
    if (out_ < 0 && err_ < 0) return false;
    if (left.count() <= 0 || poll(fds, 2, static_cast<int>(left.count())) <= 0) {
      throw std::runtime_error("recurve runs too long; so far: " + result_.out + result_.err);
    }
    if (fds[0].revents) take(out_, result_.out);
    if (fds[1].revents) take(err_, result_.err);
    return true;
  }
  static void take(int& fd, std::string& to) {
    char piece[4096];
    const ssize_t size = read(fd, piece, sizeof piece);
    if (size > 0) {
      to.append(piece, static_cast<size_t>(size));
    } else {
      close_fd(fd);
    }
  }

  pid_t pid_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  CliResult result_;
  std::chrono::steady_clock::time_point deadline_ =
      std::chrono::steady_clock::now() + std::chrono::seconds(30);
};

inline CliResult run_cli(std::vector<std::string> arguments, const std::string& input = "") {
  CliProcess process(std::move(arguments));
  process.write_input(input);
  return process.finish();
}

}  // namespace recurve::testing
