#pragma once
#include <memory>
#include <string>

#include "server/storage/file_system.h"

namespace recurve {

// What lies in the folder is encrypted, and nothing of it can be read, or changed unseen, without
// one of the keys of the file at `keys_path`; whoever uses it sees files as they were written.
// Their names and how many bytes they have can be seen, and that an older version of a whole file
// was put in its place cannot be.
//
// The folder has a key of its own, and each tenant has one for what is appended in its name: they
// are kept in the folder, wrapped with the first of those keys: see server/identity/state_keys.h,
// and encrypted_file.h for the files. Where another one opens them, they are wrapped anew with the
// first: so a key is replaced without a state being touched. What a tenant's key that is missing
// has sealed is not read (KeyMissing); all else is.
//
// Throws std::runtime_error with a sentence where no key opens the folder, or there are files in it
// that are not encrypted.
std::unique_ptr<FileSystem> encrypt_folder(std::unique_ptr<FileSystem> folder,
                                           const std::string& keys_path);

// Whether only one who has keys can use the folder.
bool is_encrypted(FileSystem& folder);

}  // namespace recurve
