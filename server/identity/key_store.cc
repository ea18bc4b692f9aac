#include "server/identity/key_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace recurve {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw std::runtime_error(fmt::format("\"{}\" cannot be used as the file of keys: {}", path, why));
}

fs::path folder_of(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

// Held while a file of the folder is changed.
class Turn {
 public:
  explicit Turn(const std::string& path)
      : folder_(open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (folder_ < 0 || flock(folder_, LOCK_EX) != 0) fail(path, std::strerror(errno));
  }
  ~Turn() { close(folder_); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  void sync() const { fsync(folder_); }

 private:
  const int folder_;
};

void write_whole(const std::string& path, const std::string& text, const Turn& turn) {
  struct stat old {};
  const mode_t mode = stat(path.c_str(), &old) == 0 ? old.st_mode & 0777 : 0600;
  std::string made = path + ".XXXXXX";
  const int file = mkstemp(made.data());
  if (file < 0) fail(path, std::strerror(errno));
  bool written = fchmod(file, mode) == 0;
  for (size_t done = 0; written && done < text.size();) {
    const ssize_t more = write(file, text.data() + done, text.size() - done);
    written = more > 0;
    if (written) done += static_cast<size_t>(more);
  }
  written = written && fsync(file) == 0;
  const int error = errno;
  close(file);
  if (written && rename(made.c_str(), path.c_str()) == 0) return turn.sync();
  const int why = written ? errno : error;
  unlink(made.c_str());
  fail(path, std::strerror(why));
}

}  // namespace

KeyFile read_key_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in.is_open() || in.bad()) fail(path, std::strerror(errno));
  try {
    return parse_key_file(text);
  } catch (const std::runtime_error& error) {
    fail(path, error.what());
  }
}

std::string add_key(const std::string& path, const std::string& tenant, Role role,
                    std::optional<KeyTime> expires) {
  if (!is_tenant_name(tenant)) throw std::runtime_error(tenant_name_rule(tenant));
  const Turn turn(path);
  KeyFile file = fs::exists(path) ? read_key_file(path) : KeyFile{};
  const NewKey made = make_key();
  file.keys.push_back({.id = made.id,
                       .tenant = tenant,
                       .role = role,
                       .hash = hash_of(made.key),
                       .expires = expires});
  write_whole(path, to_text(file), turn);
  return made.key;
}

bool remove_key(const std::string& path, const std::string& id) {
  const Turn turn(path);
  KeyFile file = read_key_file(path);
  if (std::erase_if(file.keys, [&](const auto& key) { return key.id == id; }) == 0) return false;
  write_whole(path, to_text(file), turn);
  return true;
}

}  // namespace recurve
