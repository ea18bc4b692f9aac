#pragma once
#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace recurve {

// Every flag of a program may stand in its environment: RECURVE_SERVER_MAX_QUEUE=16 is
// --max-queue 16, unless the command line has that flag. An empty variable counts as none. The
// name's first word keeps a server's TLS files apart from those of the clients on its machine,
// which have RECURVE_TLS_CERT.
struct EnvironmentFlags {
  std::vector<std::string> arguments;  // "--max-queue=16"
  std::vector<std::string> variables;  // "RECURVE_SERVER_MAX_QUEUE", of each argument
  // Variables with that first word and no such flag, which are refused: what was meant to be set
  // would silently not be. Those that Kubernetes makes of a service's name are not counted.
  std::vector<std::string> unknown;
};

inline constexpr const char* kServerVariables = "RECURVE_SERVER_";

// Names each option's variable, which --help then shows, and reads those that the command line,
// without the program's name, does not overrule.
EnvironmentFlags read_environment(CLI::App& app, const std::vector<std::string>& command_line);

}  // namespace recurve
