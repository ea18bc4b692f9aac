#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "server/identity/identity.h"

namespace recurve {

// Which sequence gives its pages, or its slot, to others when too few are free. Pure functions: no
// clock, no locks.

// A sequence that has pages.
struct PageHolder {
  TenantId tenant = 0;  // Identity::share()
  double weight = 1;    // of the tenant, see TenantLimits
  int priority = 0;     // of the request
  int64_t started = 0;  // when it got its slot: ticks of any clock
  int32_t pages = 0;
  bool may = true;  // false: it keeps its pages until it ends
};

// A request that waits for pages or for a slot.
struct Need {
  TenantId tenant = 0;
  double weight = 1;
  int32_t pages = 0;  // 0: a slot
};

// How often a request gives up its slot, at most. After that it gets all pages that it may come to
// need at once, and keeps them: one such request at a time, or as many as leave half of the slots
// and half of the pages to requests that give way.
inline constexpr int kMostPreemptions = 3;

// The sequence whose pages are taken so that running sequences continue: of the group, then of its
// tenant, with the most pages for its weight that has a sequence to give; of that tenant's the one
// of the lowest priority, and of equals the youngest. Empty if none may give its pages.
std::optional<size_t> choose_victim(std::span<const PageHolder> holders);
// The same for a request that waits. Only another group's, which has more pages for its weight than
// the group of the request would have with what it needs. If it needs a slot, each holder has one
// page.
std::optional<size_t> choose_victim_for(const Need& need, std::span<const PageHolder> holders);

}  // namespace recurve
