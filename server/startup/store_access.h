#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/object_store/object_store.h"
#include "server/object_store/store_seal.h"
#include "server/startup/options.h"

namespace recurve {

// Ports that --state-store needs, and files and folders with credentials, for the sandbox. None
// without the flag, or if its value is wrong.
struct StoreNeeds {
  std::vector<uint16_t> ports = {};
  std::vector<std::string> files = {};
};
StoreNeeds needs_of_store(const Options& options);

// Throws std::runtime_error with a sentence if --state-endpoint would send states and signatures to
// another machine without TLS.
void check_store_network(const Options& options);

// The object store of --state-store, with credentials as AWS's tools find them.
class StoreAccess {
 public:
  // Throws std::runtime_error with a sentence that names the flag if the store cannot be used, or
  // logs it with --state-store-optional.
  explicit StoreAccess(const Options& options);

  ObjectStore& store() { return *store_; }
  // The same, whose calls are not repeated for long: for states that prompts can do without.
  ObjectStore& impatient_store() { return *impatient_store_; }
  // Calls in progress, and later ones, are not repeated any more.
  void stop();
  bool is_checked() const { return is_checked_; }
  StoreSeal* seal() { return seal_.get(); }  // null without --state-keys

 private:
  const AwsEnvironment environment_;
  HttpClient http_;
  std::unique_ptr<AwsCredentialSource> credentials_;
  std::unique_ptr<ObjectStore> store_, impatient_store_;
  std::unique_ptr<StoreSeal> seal_;
  bool is_checked_ = false;
};

}  // namespace recurve
