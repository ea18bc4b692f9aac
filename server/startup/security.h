#pragma once
#include <memory>
#include <string>

#include "server/identity/keyring.h"
#include "server/startup/options.h"

namespace recurve {

// What stands between the server and strangers, as the command line has it.

// The keys that clients need; null: none. Throws std::runtime_error with a sentence.
std::shared_ptr<Keyring> make_keys(const Options& options);

// Throws std::runtime_error, with a sentence that names the flags, where other machines reach an
// address and there is no TLS, or nothing that clients have to show.
void check_network(const Options& options);

// Neither this process nor one that it starts gets more rights than it has, but on a GPU; and where
// there are keys, no core file has what tenants have said. With --sandbox, see sandbox.h. Before
// the threads that it holds for; returns what holds now, for the log.
std::string give_up_privileges(const Options& options);

}  // namespace recurve
