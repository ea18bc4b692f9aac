#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "server/startup/options.h"

namespace recurve {

// Whether NAME of --model, or a table of a file of models, can have this name.
bool is_model_name(std::string_view text);

// The models of one --model: NAME=DIR, or DIR alone, separated by commas. A backslash makes the
// character after it part of a path, and NAME has only [A-Za-z0-9._-], so that a DIR with a slash
// before its first '=' needs none. Throws std::invalid_argument with a sentence.
std::vector<ModelEntry> read_models(std::string_view text);

// Those of one --initial-state or --adapter: [MODEL:]NAME=PATH, separated by commas, as above.
// Throws std::invalid_argument with a sentence.
std::vector<NamedPath> read_named_paths(const char* flag, std::string_view text);

// Refuses two models, initial states or adapters of one name, adapters with the name of a model,
// initial states and adapters of unknown models, and models that --name cannot be for. Throws
// std::invalid_argument.
void check_models(const Options& options);

// --name, or the name or the last part of the path of a model, without the suffix of a file.
std::string model_name(const Options& options);

std::vector<std::string> names_of_models(const Options& options);

// The options of each model as if it were served alone, with what a file of models has for it, and
// with its part of the memory and disk that the options limit in all; with --model-root, half of
// the disk is for models that are loaded later. A model that has a name has its states in the
// folder model-NAME of --state-dir.
std::vector<Options> options_of_models(const Options& options);

// The options of a model that is loaded while `running` others serve. The server chooses its sizes
// of memory, but for those that it has for itself, and it has half of what these leave of
// --state-disk.
Options options_of_further(const Options& options, const ModelEntry& model,
                           const std::vector<Options>& running);

}  // namespace recurve
