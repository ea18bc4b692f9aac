#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "server/startup/options.h"

namespace recurve {

// Sets what a model has instead of a flag, by its key in a file of models and its text there.
// Throws std::invalid_argument with a sentence that names the key.
void set_own_flag(std::string_view key, const std::string& text, OwnFlags* own);

// The models of a TOML file, in its order. Each is a table NAME with `path`, with `adapters` and
// `initial_states`, tables of names and paths, and with the keys of OwnFlags, whose values are
// those of the flags. Paths are relative to the folder of the file. Throws std::invalid_argument
// with a sentence that has the file and the line.
std::vector<ModelEntry> read_models_file(const std::string& file);

}  // namespace recurve
