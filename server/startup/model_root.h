#pragma once
#include <string>

#include "server/request/refusal.h"

namespace recurve {

// --model-root: the folder with the checkpoints that a running server may load.
class ModelRoot {
 public:
  // Throws std::runtime_error with a sentence if the folder cannot be opened.
  explicit ModelRoot(const std::string& folder);
  ~ModelRoot();
  ModelRoot(const ModelRoot&) = delete;
  ModelRoot& operator=(const ModelRoot&) = delete;

  // Sets `path` to the checkpoint at `below`, a path below the folder. Refuses one that leads out
  // of it or over a link, and one with an entry that leads out of the folder or is no file.
  Refused find(const std::string& below, std::string* path) const;
  const std::string& folder() const { return folder_; }

 private:
  Refused check_entries(const std::string& below, int directory) const;
  Refused refusal(const std::string& below, int error) const;

  const std::string folder_;
  const int root_;
};

}  // namespace recurve
