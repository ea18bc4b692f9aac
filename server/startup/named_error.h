#pragma once
#include <fmt/format.h>

#include <exception>
#include <new>
#include <stdexcept>

#include "server/startup/options.h"

namespace recurve {

// Returns fn(), and adds flag, name and path to what it throws.
template <typename Fn>
auto with_name(const char* flag, const NamedPath& of, const Fn& fn) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw std::runtime_error(fmt::format("{} {}={}: {}", flag, of.name, of.path, error.what()));
  }
}

}  // namespace recurve
