#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "model/adapters/adapter.h"
#include "server/request/binding.h"
#include "server/startup/options.h"

namespace recurve {

// Adapters of a model (--adapter): see model/adapters/adapter.h. Both functions throw
// std::runtime_error with the flag and what is wrong with the folder.

// Bytes of the backend's memory of all of them. Takes no memory for values.
size_t plan_adapters(const std::vector<NamedPath>& folders, const AdapterTargets& targets,
                     const Backend& backend);

// Their memory is the backend's, which lives as long as they do.
std::vector<BoundAdapterPtr> load_adapters(const std::vector<NamedPath>& folders,
                                           const AdapterTargets& targets,
                                           const std::shared_ptr<Backend>& backend);

}  // namespace recurve
