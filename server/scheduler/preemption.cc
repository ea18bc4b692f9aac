#include "server/scheduler/preemption.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace recurve {
namespace {

// Pages for each unit of weight.
class Use {
 public:
  void add(double weight, int32_t pages) {
    weight_ = std::max(weight_, weight);
    pages_ += pages;
  }
  double of_weight() const { return static_cast<double>(pages_) / weight_; }

 private:
  double weight_ = 0;
  int64_t pages_ = 0;
};

using Uses = std::map<TenantId, Use>;

Uses uses_of_groups(std::span<const PageHolder> holders) {
  Uses groups;
  for (const PageHolder& one : holders) groups[group_of(one.tenant)].add(one.weight, one.pages);
  return groups;
}

}  // namespace

std::optional<size_t> choose_victim(std::span<const PageHolder> holders) {
  const Uses groups = uses_of_groups(holders);
  Uses tenants;
  for (const PageHolder& one : holders) tenants[one.tenant].add(one.weight, one.pages);
  const auto rank = [&](const PageHolder& one) {
    return std::tuple(-groups.at(group_of(one.tenant)).of_weight(), group_of(one.tenant),
                      -tenants.at(one.tenant).of_weight(), one.tenant, one.priority, -one.started);
  };
  std::optional<size_t> victim;
  for (size_t i = 0; i < holders.size(); ++i) {
    if (!holders[i].may || holders[i].pages == 0) continue;
    if (!victim || rank(holders[i]) < rank(holders[*victim])) victim = i;
  }
  return victim;
}

std::optional<size_t> choose_victim_for(const Need& need, std::span<const PageHolder> holders) {
  const std::optional<size_t> victim = choose_victim(holders);
  if (!victim) return std::nullopt;
  Uses groups = uses_of_groups(holders);
  const TenantId own = group_of(need.tenant), other = group_of(holders[*victim].tenant);
  groups[own].add(need.weight, std::max(need.pages, 1));
  const bool has_more = own != other && groups.at(other).of_weight() > groups.at(own).of_weight();
  return has_more ? victim : std::nullopt;
}

}  // namespace recurve
