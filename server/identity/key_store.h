#pragma once
#include <optional>
#include <string>

#include "server/identity/key_file.h"

namespace recurve {

// Throws std::runtime_error with a sentence that names the file and what is wrong with it.
KeyFile read_key_file(const std::string& path);

// What changes a file of keys replaces it as a whole, so that a reader finds the old one or the new
// one. Of several processes that do so at once each has its turn. A file that is new is its owner's
// alone to read. They throw std::runtime_error.
//
// Makes a key, puts its hash into the file, which need not be there yet, and returns the key: it is
// nowhere else.
std::string add_key(const std::string& path, const std::string& tenant, Role role,
                    std::optional<KeyTime> expires);
// Takes a key out of the file. False if there is none of that id.
bool remove_key(const std::string& path, const std::string& id);

}  // namespace recurve
