#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace recurve {

// Commands of an operator for the keys of states: see state_keys.h. A server that uses the folder
// may be running. All throw std::runtime_error with a sentence.

// Creates a file with one new key. Fails if the file exists.
void make_state_keys(const std::string& path);

// Puts a new key at the front of the file, and wraps all keys of these folders with it. drops_old
// removes the previous keys from the file: then no other folder may need them. Returns how many
// keys were wrapped. Changes nothing if one of them cannot be opened.
size_t rotate_state_keys(const std::string& path, const std::vector<std::string>& folders,
                         bool drops_old);

struct ListedKey {
  std::string file;          // in the folder
  std::string tenant;        // empty: the folder's key, or unknown
  std::string problem = {};  // why it cannot be used; empty: usable
};
// The keys of a folder.
std::vector<ListedKey> list_state_keys(const std::string& path, const std::string& folder);

// Removes all keys of that tenant from the folder. Its states there cannot be read any more, unless
// the files are restored. Returns the files' names; throws if there are none.
std::vector<std::string> drop_tenant_keys(const std::string& path, const std::string& folder,
                                          const std::string& tenant);

}  // namespace recurve
