#pragma once
#include <string>
#include <vector>

namespace recurve {

// What a server needs of the file system after its start, beside what all programs do: paths, with
// all that lies beneath them. What is not there is left out.
struct SandboxFiles {
  std::vector<std::string> read = {};
  std::vector<std::string> write = {};    // and read, made and removed
  std::vector<std::string> sockets = {};  // folders in which a socket is made and removed
  bool connects = false;                  // it asks other machines, over TCP
};

// Takes from this process, and for ever, what a server has no use for, so that whoever comes to run
// code in it has little of it. Two things of the system's do it, each where the system has it:
//
//   Landlock   no file but these is opened, no program is run, and no connection over TCP is made;
//              the ends of signals and of abstract sockets are within the process (Linux 5.13 and
//              on; connections since 6.7, signals since 6.12)
//   seccomp    system calls that no server makes end with EPERM: refused_calls() of sandbox.cc
//
// Holds for the calling thread and those that it makes from then on. No new privileges are to be
// had already (PR_SET_NO_NEW_PRIVS). Returns which of the two holds, for the log, and why not.
std::string enter_sandbox(const SandboxFiles& files);

}  // namespace recurve
