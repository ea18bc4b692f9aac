#pragma once
#include <memory>
#include <string>

#include "server/storage/file_system.h"

namespace recurve {

// A view of an encrypted folder: files are encrypted when written and decrypted when read. Without
// a key of the file at `keys_path` they cannot be read, and changes to them are detected. Names and
// sizes of files are visible, and replacing a whole file by an older version is not detected.
//
// The folder has a key, and each tenant has one for what is appended in its name. They are in the
// folder, wrapped with the first key of that file: see server/identity/state_keys.h, and
// encrypted_file.h for the files. A key that another one opens is wrapped again with the first: so
// an operator's key is replaced without changing a state. Data sealed with a missing tenant's key
// cannot be read (KeyMissing); all other data can.
//
// Throws std::runtime_error with a sentence if no key opens the folder, or it has files that are
// not encrypted.
std::unique_ptr<FileSystem> encrypt_folder(std::unique_ptr<FileSystem> folder,
                                           const std::string& keys_path);

// Whether keys are needed to use the folder.
bool is_encrypted(FileSystem& folder);

}  // namespace recurve
