#pragma once
#include <string>

namespace recurve {

// A turn at changing files beside the one at `path`: of several processes that do so at once each
// has its own, and the next one waits for its end. Throws std::runtime_error with a sentence.
class FileTurn {
 public:
  explicit FileTurn(const std::string& path);
  ~FileTurn();
  FileTurn(const FileTurn&) = delete;
  FileTurn& operator=(const FileTurn&) = delete;

 private:
  const int folder_;
};

// Replaces the file as a whole, so that a reader, or a machine that has lost its power, finds the
// old one or the new one. A file that is new is its owner's alone to read. Throws
// std::runtime_error with a sentence.
void write_whole(const std::string& path, const std::string& text);
// What was renamed and removed beside it is so after a loss of power. Throws the same.
void sync_folder_of(const std::string& path);
// Throws std::runtime_error with a sentence.
std::string read_whole(const std::string& path);

}  // namespace recurve
