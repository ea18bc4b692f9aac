#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/identity/keyring.h"
#include "server/startup/options.h"

namespace recurve {

// The keys that clients need; null: none. Throws std::runtime_error with a sentence.
std::shared_ptr<Keyring> make_keys(const Options& options);

// Throws std::runtime_error, with a sentence that names the flags, if other machines can reach an
// address without TLS, or without a key or a certificate.
void check_network(const Options& options);

// Throws std::runtime_error with a sentence if a file of keys is in --state-dir or below it: a copy
// of the folder would have its key, and a change of the file would wait for the server's lock on
// the folder.
void check_key_files(const Options& options);

// Except on a GPU, neither this process nor one that it starts can gain privileges. With keys, no
// core file is written, as it would have tenants' texts. With --sandbox, enters the sandbox. Call
// it before threads are started; returns what is in force, for the log.
std::string give_up_privileges(const Options& options);

// Paths that a server needs after its start, with everything below them, in addition to what every
// program needs. A path that does not exist is ignored.
struct SandboxFiles {
  std::vector<std::string> read = {};
  std::vector<std::string> write = {};    // read, write, create and remove
  std::vector<std::string> sockets = {};  // folders in which a socket is created and removed
  std::vector<uint16_t> connects = {};    // TCP ports of other machines that it connects to
};

// Takes from this process, permanently, what a server does not need, so that an attacker who runs
// code in it can do little. Each of the two is used if the system has it:
//
//   Landlock   no other file is opened, no program is run, and no other TCP connection is opened;
//              signals and abstract sockets reach this process only (Linux 5.13 and later;
//              connections since 6.7, signals since 6.12)
//   seccomp    system calls that no server makes fail with EPERM: kRefused in sandbox.cc
//
// It applies to the calling thread and to the threads that it starts afterwards, and needs
// PR_SET_NO_NEW_PRIVS. Returns which of the two is in force, for the log, and why the other is not.
std::string enter_sandbox(const SandboxFiles& files);

// The same by Landlock alone, for the calling thread and those that it starts. They may change no
// files.
void confine_thread(const std::vector<std::string>& readable);

}  // namespace recurve
