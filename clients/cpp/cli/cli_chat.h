#pragma once
#include <CLI/App.hpp>
#include <functional>

#include "clients/cpp/cli/cli.h"

namespace recurve {

// Adds the flags of a chat to a command. Returns the chat, which runs after they are parsed and
// gives the exit code.
std::function<int()> add_chat_flags(CLI::App& command, CliContext& context);

}  // namespace recurve
