#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/identity/identity.h"
#include "server/request/refusal.h"

namespace recurve {

// Loads and unloads models while the server serves, one change after another. Thread-safe.
class ModelLoader {
 public:
  // Called once unless the change is refused at once, on another thread: may only post.
  using Done = std::function<void(Refused)>;
  struct Load {
    Identity caller = kAnyone;
    std::string name = {};
    std::string path = {};                          // below --model-root
    std::map<std::string, std::string> flags = {};  // by the keys of a file of models
  };
  struct Unload {
    Identity caller = kAnyone;
    std::string name = {};
    std::optional<double> drain_seconds = {};  // for its requests; absent: the server's
  };

  // The model serves when it is done.
  virtual Refused load(Load load, Done done) = 0;
  // New requests do not find the model. Those that use it end by themselves or, after the time,
  // with kUnloading; clients that do not read the end are disconnected. Then the memory is free and
  // it is done.
  virtual Refused unload(Unload unload, Done done) = 0;
  // The names of models that are being loaded, or unloaded, or wait for that.
  struct Changing {
    std::vector<std::string> loading = {}, unloading = {};
  };
  virtual Changing changing() const = 0;

 protected:
  ~ModelLoader() = default;
};

}  // namespace recurve
