#include "server/startup/adapters.h"

#include <memory>
#include <utility>

#include "server/startup/named_error.h"

namespace recurve {

namespace {

AdapterPtr with_backend(AdapterPtr adapter, std::shared_ptr<Backend> backend) {
  const Adapter* const weights = adapter.get();
  const auto release = [adapter = std::move(adapter),
                        backend = std::move(backend)](const Adapter*) mutable {
    adapter.reset();  // first
    backend.reset();
  };
  return {weights, release};
}

}  // namespace

size_t plan_adapters(const std::vector<NamedPath>& folders, const AdapterTargets& targets,
                     const Backend& backend) {
  size_t bytes = 0;
  for (const NamedPath& folder : folders) {
    bytes += with_name("--adapter", folder,
                       [&] { return adapter_bytes(targets, backend, folder.path); });
  }
  return bytes;
}

std::vector<BoundAdapterPtr> load_adapters(const std::vector<NamedPath>& folders,
                                           const AdapterTargets& targets,
                                           const std::shared_ptr<Backend>& backend) {
  std::vector<BoundAdapterPtr> adapters;
  for (const NamedPath& folder : folders) {
    AdapterPtr weights = with_name("--adapter", folder, [&] {
      return load_adapter(targets, *backend, folder.name, folder.path);
    });
    BoundId id{.name = folder.name, .digest = info_of(*weights).digest};
    adapters.push_back(std::make_shared<const BoundAdapter>(
        BoundAdapter{.id = std::move(id), .weights = with_backend(std::move(weights), backend)}));
  }
  return adapters;
}

}  // namespace recurve
