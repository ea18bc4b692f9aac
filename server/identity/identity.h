#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string_view>

namespace recurve {

// Whose sessions, requests and share of the server something is. Two tenants never see each other's
// names.
using TenantId = uint32_t;

// Where there are no keys, connections stand for tenants, and have numbers of their own: of the
// address that a connection comes from, and of the connection. What those of one address share is
// the group's; a tenant is a group by itself.
inline constexpr TenantId kVisitors = TenantId{1} << 31;
inline constexpr TenantId kThisMachine = kVisitors;  // the group of its own connections
inline constexpr int kConnectionBits = 15;
inline constexpr TenantId kConnections = (TenantId{1} << kConnectionBits) - 1;

inline constexpr bool is_visitor(TenantId share) { return (share & kVisitors) != 0; }
inline constexpr TenantId group_of(TenantId share) {
  return is_visitor(share) ? share & ~kConnections : share;
}
inline constexpr bool same_group(TenantId a, TenantId b) { return group_of(a) == group_of(b); }
inline constexpr TenantId last_of_group(TenantId share) {
  return is_visitor(share) ? share | kConnections : share;
}

// What a caller may do; each may do what those before it may.
enum class Role : uint8_t {
  kNobody,    // has shown no key that is known: asks for health, and for nothing else
  kUser,      // uses what is the tenant's own
  kObserver,  // looks at the whole server: load, metrics
  kAdmin,     // drains it, and ends anybody's requests
};

// What a tenant may have of the server. Plain numbers, which go with each request: a request keeps
// to those that held when it came.
struct TenantLimits {
  double weight = 1;              // of its share beside others' where slots are short; > 0
  double slot_share = 1;          // of all slots, at most; one it always may have
  int slots = kNone;              // at once, at most
  int waiting = kNone;            // requests that are not answered yet, at most
  int sessions = kNone;           // open at once, at most
  int priority = kNone;           // the highest one that a request may have
  int choices = kNone;            // n of a request, at most
  int prompt_tokens = kNone;      // of a request, at most
  int64_t tokens_per_minute = 0;  // of prompts and answers together, on average; 0: however many
  int64_t host_bytes = kNoBytes;  // that sessions and marks have reserved in host memory, at most
  int64_t disk_bytes = kNoBytes;  // of the states of durable sessions and their marks, at most

  static constexpr int kNone = std::numeric_limits<int>::max();
  static constexpr int64_t kNoBytes = std::numeric_limits<int64_t>::max();
};

// Of networks and connections, of which there may be very many: some may have one number. No
// connection is 0. network: as Peer has it; empty: this machine. connection: its number; 0: it
// comes by none, and is no visitor without a network.
inline TenantId visitor_of(std::string_view network, uint32_t connection) {
  if (network.empty() && connection == 0) return 0;
  constexpr TenantId kNetworks = (1 << 16) - 1;
  const auto hash = static_cast<TenantId>(std::hash<std::string_view>{}(network) % kNetworks);
  const TenantId number = network.empty() ? 0 : 1 + hash;
  const TenantId by = connection == 0 ? 1 : 1 + (connection - 1) % kConnections;
  return kVisitors | number << kConnectionBits | by;
}

// A few letters that are copied with what has them; more are cut off.
template <size_t kMost>
class ShortText {
 public:
  constexpr ShortText() = default;
  constexpr ShortText(std::string_view text) : size_(std::min(text.size(), kMost)) {
    std::copy_n(text.begin(), size_, text_.begin());
  }
  constexpr operator std::string_view() const { return {text_.data(), size_}; }

 private:
  std::array<char, kMost> text_ = {};
  size_t size_ = 0;
};

// Who asks: a door finds it out, and it goes with a request or a command wherever that goes.
struct Identity {
  TenantId tenant = 0;
  Role role = Role::kUser;
  std::string_view tenant_name = {};  // for logs; outlives all that is asked in its name
  TenantLimits limits = {};
  // For logs: the id of the key that was shown, and where from. Empty: none, unknown.
  ShortText<15> key_id = {};
  ShortText<47> peer = {};
  // Where there are no keys: which connection the call came by, as is_visitor() has it. 0: none.
  TenantId visitor = 0;

  // Who has a share of slots, of the queue, of text threads and of memory for messages.
  TenantId share() const { return visitor != 0 ? visitor : tenant; }
  // And of steps, which connections of one address have together.
  TenantId group() const { return group_of(share()); }
};

// Where the server has no keys, whoever reaches a door is this one. A keys file may name the tenant
// too, whose sessions it then has.
inline constexpr Identity kAnyone{.tenant = 0, .role = Role::kAdmin, .tenant_name = "default"};
// And where it has, whoever shows none.
inline constexpr Identity kStranger{
    .tenant = std::numeric_limits<TenantId>::max(), .role = Role::kNobody, .tenant_name = "none"};

}  // namespace recurve
