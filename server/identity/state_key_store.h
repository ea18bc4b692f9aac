#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace recurve {

// What an operator does with the keys of states: see state_keys.h. A server that uses the folder
// may run meanwhile. All throw std::runtime_error with a sentence.

// Writes a file with one new key, where there is none yet.
void make_state_keys(const std::string& path);

// Puts a new key in front of the file's, and wraps all keys of these folders with it. What was
// there before goes from the file where drops_old: then no other folder may need it. Returns how
// many keys were wrapped anew. Refused before anything is changed if one of them cannot be opened.
size_t rotate_state_keys(const std::string& path, const std::vector<std::string>& folders,
                         bool drops_old);

struct ListedKey {
  std::string file;          // of the folder
  std::string tenant;        // empty: the folder's own, or not known
  std::string problem = {};  // why it cannot be used; empty: it can
};
// The keys of a folder.
std::vector<ListedKey> list_state_keys(const std::string& path, const std::string& folder);

// Removes all keys of that tenant from the folder: its states there cannot be read any more, unless
// the files are put back. Returns their names; throws where there are none.
std::vector<std::string> drop_tenant_keys(const std::string& path, const std::string& folder,
                                          const std::string& tenant);

}  // namespace recurve
