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

// What a reader throws where the key is missing that the bytes were sealed with, with a sentence
// that says which. Nothing is known to be wrong with them: they can be read once it is there again.
class KeyMissing : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What a reader throws where bytes are missing, or are not those that were written.
class FileDamaged : public std::system_error {
  using std::system_error::system_error;
};

// What a store asks of the folder that it keeps its files in; names have no slash. Each call throws
// std::system_error with a sentence where the system refuses. A call is whole or throws: short
// writes and interrupted calls are the implementation's affair. Any thread may call.
class FileSystem {
 public:
  // A file that is read, and stays readable once its name is removed. Any thread.
  class Reader {
   public:
    virtual ~Reader() = default;
    virtual uint64_t bytes() const = 0;
    virtual void read(uint64_t offset, std::span<std::byte> to) const = 0;
    // The same, with zeros for what cannot be read.
    virtual void read_what_is_whole(uint64_t offset, std::span<std::byte> to) const;
  };
  // A file that is being written, from its beginning on. One thread.
  class Writer {
   public:
    virtual ~Writer() = default;
    virtual void append(std::string_view bytes) = 0;
    // Parts of what belongs to a tenant as a whole: where files are sealed, by a key of that
    // tenant's. Empty: it belongs to none.
    virtual void append_of(std::string_view tenant, std::span<const std::string_view> parts);
    // Bytes of another file of the folder, sealed as they are there. They are what was appended to
    // it in one call.
    virtual void append_from(const Reader& from, uint64_t offset, uint64_t bytes);
    // All that was appended is there after a loss of power. Once it has thrown, nothing is known of
    // what was appended: the file is to be written anew elsewhere, and not to be synced again.
    virtual void sync() = 0;
  };

  virtual ~FileSystem() = default;
  struct Entry {
    std::string name;
    uint64_t bytes = 0;
  };
  virtual std::vector<Entry> list() = 0;  // the folder's files, in any order
  virtual std::unique_ptr<Writer> create(const std::string& name) = 0;  // empty, if it was there
  // Throws before anything is appended of a tenant for which append_of() would fail.
  virtual void prepare_for(std::string_view /*tenant*/) {}
  virtual std::unique_ptr<Reader> open(const std::string& name) = 0;
  virtual void rename(const std::string& from, const std::string& to) = 0;  // replaces `to`
  virtual void remove(const std::string& name) = 0;
  // What was created, renamed and removed in the folder is so after a loss of power.
  virtual void sync_folder() = 0;
  // Why what is written may not be found by its name any more, as the folder or its lock was
  // deleted or replaced: a sentence. Empty: it is found.
  virtual std::string lost() { return {}; }
};

// A folder of the system, made if it is not there, which no other process may use meanwhile. Throws
// std::runtime_error with a sentence if one does, or if it cannot be made.
std::unique_ptr<FileSystem> open_folder(const std::string& path);

}  // namespace recurve
