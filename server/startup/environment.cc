#include "server/startup/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>
#include <string_view>

namespace recurve {
namespace {

// "--max-queue": RECURVE_SERVER_MAX_QUEUE.
std::string variable_of(std::string_view flag) {
  std::string name = kServerVariables;
  for (const char c : flag.substr(2)) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

bool has_flag(const std::vector<std::string>& command_line, const std::string& flag) {
  return std::any_of(command_line.begin(), command_line.end(), [&](const std::string& argument) {
    return argument == flag || argument.starts_with(flag + "=");
  });
}

// For a service "recurve-server", its pods find RECURVE_SERVER_PORT, ..._SERVICE_HOST and more.
bool made_by_kubernetes(std::string_view variable) {
  const std::string_view rest = variable.substr(std::string_view(kServerVariables).size());
  return rest == "PORT" || rest.starts_with("PORT_") || rest.starts_with("SERVICE_");
}

}  // namespace

EnvironmentFlags read_environment(CLI::App& app, const std::vector<std::string>& command_line) {
  EnvironmentFlags found;
  std::set<std::string> known;
  for (CLI::Option* option : app.get_options()) {
    const std::string flag = option->get_name();  // the long one, where there is one
    if (!flag.starts_with("--") || flag == "--help" || flag == "--version") continue;
    const std::string variable = variable_of(flag);
    option->envname(variable);
    known.insert(variable);
    const char* value = std::getenv(variable.c_str());
    if (value == nullptr || *value == '\0' || has_flag(command_line, flag)) continue;
    found.arguments.push_back(flag + "=" + value);
    found.variables.push_back(variable);
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view whole = *entry;
    const std::string variable(whole.substr(0, whole.find('=')));
    if (variable.starts_with(kServerVariables) && !known.contains(variable) &&
        !made_by_kubernetes(variable)) {
      found.unknown.push_back(variable);
    }
  }
  return found;
}

}  // namespace recurve
