#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace recurve {

// Thrown by a reader if the key is missing that sealed the bytes; the message names the key. The
// bytes can be read once the key is restored.
class KeyMissing : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Thrown by a reader if bytes are missing or differ from those that were written.
class FileDamaged : public std::system_error {
  using std::system_error::system_error;
};

// The folder in which a store has its files; names have no slash. Each call throws
// std::system_error with a message if the system refuses. A call either completes or throws: the
// implementation handles short writes and interrupted calls. Any thread may call.
class FileSystem {
 public:
  // A file that is read. It stays readable after its name is removed. Any thread.
  class Reader {
   public:
    virtual ~Reader() = default;
    virtual uint64_t bytes() const = 0;
    virtual void read(uint64_t offset, std::span<std::byte> to) const = 0;
    // The same, with zeros for bytes that cannot be read.
    virtual void read_what_is_whole(uint64_t offset, std::span<std::byte> to) const;
  };
  // A file that is written from its beginning. One thread.
  class Writer {
   public:
    virtual ~Writer() = default;
    virtual void append(std::string_view bytes) = 0;
    // Appends parts that together belong to a tenant: if files are sealed, they are sealed with a
    // key of that tenant. Empty: they belong to no tenant.
    virtual void append_of(std::string_view tenant, std::span<const std::string_view> parts);
    // Appends bytes of another file of the folder, sealed as they are there. One call has appended
    // them to that file.
    virtual void append_from(const Reader& from, uint64_t offset, uint64_t bytes);
    // Everything that was appended survives a power failure. After it has thrown, the content of
    // the file is unknown: write a new file, and do not sync this one again.
    virtual void sync() = 0;
  };

  virtual ~FileSystem() = default;
  struct Entry {
    std::string name;
    uint64_t bytes = 0;
  };
  virtual std::vector<Entry> list() = 0;  // the folder's files, in any order
  virtual std::unique_ptr<Writer> create(const std::string& name) = 0;  // truncated if it exists
  // Throws before anything is appended, if append_of() would fail for the tenant.
  virtual void prepare_for(std::string_view /*tenant*/) {}
  virtual std::unique_ptr<Reader> open(const std::string& name) = 0;
  virtual void rename(const std::string& from, const std::string& to) = 0;  // replaces `to`
  virtual void remove(const std::string& name) = 0;
  // Makes creations, renames and removals in the folder survive a power failure.
  virtual void sync_folder() = 0;
  // Why written files may not be found by their names any more: the folder or its lock was deleted
  // or replaced. A message; empty: they are found.
  virtual std::string lost() { return {}; }
};

// A folder of the system, created if it is missing. No other process may use it at the same time.
// Throws std::runtime_error with a message if one does, or if it cannot be created.
std::unique_ptr<FileSystem> open_folder(const std::string& path);

}  // namespace recurve
