#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "server/startup/options.h"

namespace recurve {

// The models of one --model: NAME=DIR, or DIR alone, separated by commas. A backslash makes the
// character after it part of a path, and NAME has only [A-Za-z0-9._-], so that a DIR with a slash
// before its first '=' needs none. Throws std::invalid_argument with a sentence.
std::vector<ModelPath> read_models(std::string_view text);

// Refuses two models of one name and models that --name cannot be for. Throws
// std::invalid_argument.
void check_models(const Options& options);

// --name, or the name or the last part of the path of a model, without the suffix of a file.
std::string model_name(const Options& options);

std::vector<std::string> names_of_models(const Options& options);

// The options of each model as if it were served alone, with its part of the memory and disk that
// the options limit in all. A model that has a name has its states in the folder model-NAME of
// --state-dir.
std::vector<Options> options_of_models(const Options& options);

}  // namespace recurve
