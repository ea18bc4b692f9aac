#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/landlock.h>
#include <seccomp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <system_error>

#include "server/startup/security.h"

namespace recurve {
namespace {

// From the kernel's Documentation/userspace-api/landlock.rst; the headers of Debian 12 end with
// version 2.
constexpr uint64_t kExecute = 1 << 0, kWriteFile = 1 << 1, kReadFile = 1 << 2, kReadDir = 1 << 3;
constexpr uint64_t kRemoveDir = 1 << 4, kRemoveFile = 1 << 5, kMakeDir = 1 << 7, kMakeFile = 1 << 8;
constexpr uint64_t kMakeSocket = 1 << 9;
// Of all versions: all kinds of files, moves between folders (2), truncation (3), requests to
// devices (5).
constexpr uint64_t kAllOfFiles[] = {(1 << 13) - 1, (1 << 14) - 1, (1 << 15) - 1, (1 << 15) - 1,
                                    (1 << 16) - 1};
constexpr uint64_t kRefer = 1 << 13, kTruncate = 1 << 14, kDevice = 1 << 15;
constexpr uint64_t kConnectTcp = 1 << 1;                          // 4
constexpr uint64_t kAbstractSockets = 1 << 0, kSignals = 1 << 1;  // 6

struct Ruleset {
  uint64_t files = 0, network = 0, scoped = 0;
};
struct [[gnu::packed]] BeneathPath {
  uint64_t allowed = 0;
  int32_t parent = -1;
};
struct ToPort {
  uint64_t allowed = kConnectTcp, port = 0;
};
constexpr int kRulePort = 2;
constexpr uint16_t kNamesPort = 53;  // of long answers of name servers

constexpr uint64_t kRead = kReadFile | kReadDir;
constexpr uint64_t kWrite =
    kRead | kWriteFile | kRemoveDir | kRemoveFile | kMakeDir | kMakeFile | kRefer | kTruncate;
constexpr uint64_t kOfFiles = kReadFile | kWriteFile | kTruncate | kExecute | kDevice;

// What every program reads: libraries, name resolution, time zones, the machine.
constexpr const char* kEveryProgram[] = {"/usr",
                                         "/lib",
                                         "/lib64",
                                         "/proc",
                                         "/sys",
                                         "/dev",
                                         "/etc/hosts",
                                         "/etc/ssl",
                                         "/etc/gai.conf",
                                         "/etc/resolv.conf",
                                         "/etc/services",
                                         "/etc/localtime",
                                         "/etc/hostname",
                                         "/etc/host.conf",
                                         "/etc/nsswitch.conf",
                                         "/etc/protocols",
                                         "/etc/ld.so.cache"};

void allow(int ruleset, const std::string& path, uint64_t what, uint64_t handled) {
  const int found = open(path.c_str(), O_PATH | O_CLOEXEC);
  if (found < 0) return;
  struct stat status{};
  const bool is_folder = fstat(found, &status) == 0 && S_ISDIR(status.st_mode);
  const BeneathPath rule{.allowed = what & handled & (is_folder ? ~uint64_t{0} : kOfFiles),
                         .parent = found};
  syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
  close(found);
}

void allow_all(int ruleset, const SandboxFiles& files, uint64_t handled) {
  for (const char* path : kEveryProgram) allow(ruleset, path, kRead, handled);
  allow(ruleset, "/dev/null", kRead | kWriteFile, handled);
  allow(ruleset, "/proc/self/task", kRead | kWriteFile, handled);  // names of threads
  std::error_code none;
  const auto program = std::filesystem::canonical("/proc/self/exe", none);
  allow(ruleset, program.parent_path().parent_path(), kRead, handled);
  for (const std::string& path : files.read) allow(ruleset, path, kRead, handled);
  for (const std::string& path : files.write) allow(ruleset, path, kWrite, handled);
  for (const std::string& path : files.sockets) {
    allow(ruleset, path, kMakeSocket | kRemoveFile, handled);
  }
}

void allow_connections(int ruleset, std::vector<uint16_t> ports) {
  if (!ports.empty()) ports.push_back(kNamesPort);
  for (const uint16_t port : ports) {
    const ToPort rule{.port = port};
    syscall(SYS_landlock_add_rule, ruleset, kRulePort, &rule, 0);
  }
}

std::string enter_landlock(const SandboxFiles& files) {
  const long version =
      syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  if (version < 1) return fmt::format("no landlock ({})", std::strerror(errno));
  const size_t known = std::min<size_t>(static_cast<size_t>(version), std::size(kAllOfFiles));
  Ruleset wanted{.files = kAllOfFiles[known - 1]};
  size_t size = sizeof wanted.files;
  if (version >= 4) wanted.network = kConnectTcp, size = offsetof(Ruleset, scoped);
  if (version >= 6) wanted.scoped = kAbstractSockets | kSignals, size = sizeof wanted;
  const auto ruleset = static_cast<int>(syscall(SYS_landlock_create_ruleset, &wanted, size, 0));
  if (ruleset < 0) return fmt::format("no landlock ({})", std::strerror(errno));
  allow_all(ruleset, files, wanted.files);
  if (wanted.network != 0) allow_connections(ruleset, files.connects);
  const bool done = syscall(SYS_landlock_restrict_self, ruleset, 0) == 0;
  const std::string why = std::strerror(errno);
  close(ruleset);
  return done ? fmt::format("landlock {}", version) : fmt::format("no landlock ({})", why);
}

// System calls that no server makes: they run programs, inspect other processes or change
// privileges, or the kernel was attacked through them most often.
constexpr const char* kRefused[] = {
    // programs, and other processes
    "execve", "execveat", "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp",
    "process_madvise",
    // users, rights and name spaces
    "setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setgroups", "setfsuid",
    "setfsgid", "capset", "unshare", "setns", "personality",
    // the file system as a whole
    "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig",
    "fsmount", "mount_setattr", "open_by_handle_at", "swapon", "swapoff", "quotactl", "acct",
    "mknod", "mknodat",
    // the machine
    "reboot", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module",
    "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname",
    "iopl", "ioperm", "syslog", "vhangup",
    // parts of the kernel with a long history
    "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter",
    "io_uring_register", "add_key", "request_key", "keyctl", "lookup_dcookie", "fanotify_init",
    "modify_ldt", "vmsplice"};

std::string enter_seccomp() {
  const std::unique_ptr<void, decltype(&seccomp_release)> filter(seccomp_init(SCMP_ACT_ALLOW),
                                                                 seccomp_release);
  if (filter == nullptr) return "no seccomp";
  seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_OPTIMIZE, 2);  // a tree, not a list
  for (const char* name : kRefused) {
    const int number = seccomp_syscall_resolve_name(name);
    if (number == __NR_SCMP_ERROR) continue;  // libseccomp is older than the call
    seccomp_rule_add(filter.get(), SCMP_ACT_ERRNO(EPERM), number, 0);
  }
  // Only sockets of the network and of this machine; netlink lists addresses.
  for (const int family : {AF_PACKET, AF_VSOCK, AF_ALG, AF_BLUETOOTH, AF_CAN, AF_TIPC, AF_RDS}) {
    const scmp_arg_cmp first_is_family{
        .arg = 0, .op = SCMP_CMP_EQ, .datum_a = static_cast<scmp_datum_t>(family)};
    seccomp_rule_add_array(filter.get(), SCMP_ACT_ERRNO(EPERM), SCMP_SYS(socket), 1,
                           &first_is_family);
  }
  const int failed = seccomp_load(filter.get());
  return failed == 0 ? "seccomp" : fmt::format("no seccomp ({})", std::strerror(-failed));
}

}  // namespace

void confine_thread(const std::vector<std::string>& readable) {
#ifndef RECURVE_SANITIZED
  enter_landlock({.read = readable});
#else
  static_cast<void>(readable);
#endif
}

std::string enter_sandbox(const SandboxFiles& files) {
#ifdef RECURVE_SANITIZED
  // Sanitizers run programs and inspect the process when they report.
  static_cast<void>(enter_landlock);
  static_cast<void>(enter_seccomp);
  return files.read.empty() ? "" : "none: the program has sanitizers";
#else
  const std::string landlock = enter_landlock(files);
  return landlock + ", " + enter_seccomp();
#endif
}

}  // namespace recurve
