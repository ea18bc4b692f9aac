#pragma once
#include <memory>

#include "server/crypto/tenant_keys.h"
#include "server/storage/file_system.h"

namespace recurve {

// The files of a folder that is encrypted. A file is
//
//   8 bytes  "RCRVCRP2"
//   16       salt; the file's key is derived_key() of the folder's with it
//   pieces   u32 n and flags, little-endian; n bytes, up to 65536, sealed; 16, their tag
//
// A piece without a flag is nobody's: sealed with the file's key. With the flag 1 << 31 it is
// sealed so too and begins what is a tenant's: its text is 16 bytes, salt; 16, the ID of the
// tenant's key (state_keys.h) in hexadecimal digits; the tenant's name. Pieces with the flag 1 <<
// 30 follow, sealed with derived_key() of that key with that salt, as numbers 0, 1, ...: so they
// can be carried to another file as they are, and without their tenant's key the rest of a file can
// be read. The number of all other pieces is how many of these were before in the file.
//
// "RCRVCRPT" is the form of before, without flags: it is read. What the end of the file cuts off of
// a piece is not there.

// Thrown where a file is none of these.
class NotEncrypted : public FileDamaged {
  using FileDamaged::FileDamaged;
};

// Keys outlive what they are given to.
std::unique_ptr<FileSystem::Writer> encrypt_writer(std::unique_ptr<FileSystem::Writer> file,
                                                   const SecretKey& folder, TenantKeys& tenants);
// Of a file that may be growing.
std::unique_ptr<FileSystem::Reader> decrypt_reader(std::unique_ptr<FileSystem::Reader> file,
                                                   const SecretKey& folder, TenantKeys& tenants);

}  // namespace recurve
