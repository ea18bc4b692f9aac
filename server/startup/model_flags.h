#pragma once
#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "server/startup/options.h"

namespace recurve {

// The values of flags that a file of models has too.

std::vector<std::string> weights_values();
std::map<std::string, MapWeights> map_weights_values();

// These replace "auto" by a number, and return an error message or nothing.
std::string count_or_auto(std::string& value);
std::string size_or_auto(std::string& value);

// A flag whose default is "auto". `kind`: the type of its other values in the help.
CLI::Option* or_auto(CLI::Option* flag, std::string (*read)(std::string&), const char* kind);

}  // namespace recurve
