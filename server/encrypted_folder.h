#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/storage/file_system.h"

namespace recurve {

using FolderKey = std::array<uint8_t, 32>;  // of AES-256

// The keys of a file of them: 64 hexadecimal digits a line, as `openssl rand -hex 32` writes them.
// The first is for what is written from now on, the others open what was written with them. Throws
// std::runtime_error with a sentence.
std::vector<FolderKey> read_folder_keys(const std::string& path);

// What lies in the folder is encrypted, and nothing of it can be read, or changed unseen, without
// one of the keys; whoever uses it sees files as they were written. Their names and how many bytes
// they have can be seen, and that an older version of a whole file was put in its place cannot be.
//
// The folder has a key of its own, which it keeps in the file "state-key", encrypted with the first
// of `keys`. Where another of them opens it, it is written anew with the first: so a key is
// replaced without a state being touched. A file is
//
//   8 bytes  "RCRVCRPT"
//   16       salt; the file's key is HMAC-SHA-256 of it with the folder's (SP 800-108, one block)
//   pieces   u32 n, up to 65536, little-endian; n bytes of AES-256-GCM, whose nonce is the number
//   of
//            the piece in the file; 16 bytes, its tag
//
// What the end of the file cuts off of a piece is not there. Throws std::runtime_error with a
// sentence where no key opens the folder, or there are files in it that are not encrypted.
std::unique_ptr<FileSystem> encrypt_folder(std::unique_ptr<FileSystem> folder,
                                           const std::vector<FolderKey>& keys);

// Whether only one who has keys can use the folder.
bool is_encrypted(FileSystem& folder);

}  // namespace recurve
