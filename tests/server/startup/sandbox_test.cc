#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "server/startup/security.h"
#include "tests/support/amount.h"
#include "tests/support/temp_dir.h"

namespace recurve::sandbox_test {

namespace fs = std::filesystem;

// Listens on a free port of loopback.
class Listener {
 public:
  Listener() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    bind(fd_, reinterpret_cast<sockaddr*>(&address_), size_);
    listen(fd_, 1);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address_), &size_);
  }
  ~Listener() { close(fd_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  uint16_t port() const { return ntohs(address_.sin_port); }
  bool accepts() const {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool connected = connect(fd, reinterpret_cast<const sockaddr*>(&address_), size_) == 0;
    const int why = errno;
    close(fd);
    errno = why;
    return connected;
  }

 private:
  const int fd_;
  sockaddr_in address_ = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size_ = sizeof address_;
};

struct Folders {
  TempDir dir;
  std::string read = dir / "read", write = dir / "write", other = dir / "other",
              sockets = dir / "sockets";
  Folders() {
    for (const std::string& path : {read, write, other, sockets}) {
      fs::create_directory(path);
      std::ofstream(path + "/file") << "text";
    }
  }
  SandboxFiles allowed() const {
    return {.read = {read}, .write = {write}, .sockets = {sockets}, .connects = {collector.port()}};
  }
  Listener collector;
};

bool can_open(const std::string& path, int how) {
  const int found = open(path.c_str(), how | O_CLOEXEC, 0600);
  if (found >= 0) close(found);
  return found >= 0;
}

// Runs in a separate process in the sandbox. Returns the first line that fails, or 0.
#define MUST(what) \
  if (!(what)) return __LINE__

int files(const Folders& all) {
  MUST(can_open(all.read + "/file", O_RDONLY));
  MUST(!can_open(all.read + "/file", O_WRONLY));
  MUST(!can_open(all.read + "/new", O_WRONLY | O_CREAT));
  MUST(can_open(all.write + "/file", O_RDWR | O_TRUNC));
  MUST(can_open(all.write + "/new", O_WRONLY | O_CREAT));
  MUST(rename((all.write + "/new").c_str(), (all.write + "/newer").c_str()) == 0);
  MUST(unlink((all.write + "/newer").c_str()) == 0);
  MUST(!can_open(all.other + "/file", O_RDONLY));
  MUST(unlink((all.other + "/file").c_str()) != 0);
  MUST(!can_open("/etc/passwd", O_RDONLY));
  MUST(!can_open("/root", O_RDONLY | O_DIRECTORY));
  MUST(can_open("/proc/self/status", O_RDONLY));
  MUST(can_open("/dev/null", O_RDWR));
  return 0;
}

int programs_and_processes(const Folders&) {
  char name[] = "/bin/true";
  char* arguments[] = {name, nullptr};
  MUST(execv(name, arguments) != 0 && errno == EPERM);
  MUST(ptrace(PTRACE_ATTACH, getppid(), nullptr, nullptr) != 0 && errno == EPERM);
  MUST(kill(getppid(), 0) != 0);
  MUST(kill(getpid(), 0) == 0);
  MUST(setuid(0) != 0);
  MUST(chroot("/") != 0);
  // And a thread that begins later has no more.
  bool same = false;
  std::thread([&] {
    same = execv(name, arguments) != 0 && !can_open("/etc/passwd", O_RDONLY);
  }).join();
  MUST(same);
  return 0;
}

int sockets(const Folders& all) {
  MUST(socket(AF_PACKET, SOCK_RAW, 0) < 0 && errno == EPERM);
  MUST(socket(AF_ALG, SOCK_SEQPACKET, 0) < 0 && errno == EPERM);
  // The server listens, and connects to ports that its flags name alone.
  MUST(all.collector.accepts());
  const Listener own;
  MUST(own.port() != 0 && !own.accepts() && errno == EACCES);
  // A socket of this machine is made where it is to be.
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::snprintf(name.sun_path, sizeof name.sun_path, "%s", (all.sockets + "/socket").c_str());
  MUST(bind(socket(AF_UNIX, SOCK_STREAM, 0), reinterpret_cast<sockaddr*>(&name), sizeof name) == 0);
  MUST(unlink(name.sun_path) == 0);
  return 0;
}

// The line that was not so; 0: all was. -1: the system has no such sandbox.
int run(int (*look)(const Folders&)) {
  const Folders all;
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    const std::string holds = enter_sandbox(all.allowed());
    _exit(holds.starts_with("landlock") && holds.ends_with(", seccomp") ? look(all) % 255 : 255);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status) == 255 ? -1 : WEXITSTATUS(status);
}

class SandboxTest : public ::testing::TestWithParam<int (*)(const Folders&)> {};

TEST_P(SandboxTest, TakesWhatAServerHasNoUseFor) {
  if (recurve::testing::kSanitized) GTEST_SKIP() << "sanitizers do without";
  const int line = run(GetParam());
  if (line < 0) GTEST_SKIP() << "this system has no Landlock or no seccomp";
  EXPECT_EQ(line, 0) << "line " << line << " of this file, counted from 255 anew";
}

INSTANTIATE_TEST_SUITE_P(All, SandboxTest,
                         ::testing::Values(files, programs_and_processes, sockets));

}  // namespace recurve::sandbox_test
