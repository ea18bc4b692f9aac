#pragma once
#include <memory>

#include "server/crypto/tenant_keys.h"
#include "server/storage/file_system.h"

namespace recurve {

// The files of an encrypted folder. A file is
//
//   8 bytes  "RCRVCRP2"
//   16       salt; the file's key is derived_key() of the folder's key with it
//   pieces   u32 n and flags, little-endian; n bytes, up to 65536, sealed; 16, their tag
//
// A piece without a flag belongs to no tenant and is sealed with the file's key. A piece with the
// flag 1 << 31 is sealed in the same way and starts a tenant's part: its text is 16 bytes, salt;
// 16, the ID of the tenant's key (state_keys.h) in hexadecimal digits; the tenant's name. The
// pieces of the part follow with the flag 1 << 30, sealed with derived_key() of that key with that
// salt, as numbers 0, 1, ...: so they can be copied to another file unchanged, and the rest of a
// file can be read without the tenant's key. The number of any other piece is how many of those
// precede it in the file.
//
// "RCRVCRPT" is the previous version, without flags, which can be read. An incomplete piece at the
// end of a file is ignored.

// Thrown for a file of another form.
class NotEncrypted : public FileDamaged {
  using FileDamaged::FileDamaged;
};

// folder and tenants outlive the results.
std::unique_ptr<FileSystem::Writer> encrypt_writer(std::unique_ptr<FileSystem::Writer> file,
                                                   const SecretKey& folder, TenantKeys& tenants);
// The file may grow.
std::unique_ptr<FileSystem::Reader> decrypt_reader(std::unique_ptr<FileSystem::Reader> file,
                                                   const SecretKey& folder, TenantKeys& tenants);

}  // namespace recurve
