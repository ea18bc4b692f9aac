#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string_view>

namespace recurve {

// Tenants own sessions and requests and share the server. A tenant cannot see another's names.
using TenantId = uint32_t;

// On a server without keys connections share the server as tenants do. The number of such a visitor
// has the peer's network and the connection; the visitors of one network are a group. A tenant is
// its own group.
inline constexpr TenantId kVisitors = TenantId{1} << 31;
inline constexpr TenantId kThisMachine = kVisitors;  // the group of local connections
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

// What a caller may do. Each role includes the previous ones.
enum class Role : uint8_t {
  kAnonymous,  // without a known key: health only
  kUser,       // the tenant's requests and sessions
  kObserver,   // reads load and metrics of the server
  kAdmin,      // drains the server, aborts requests of any tenant
};

// A tenant's limits. Each request has a copy: those at its arrival apply to it.
struct TenantLimits {
  double weight = 1;              // relative to other tenants when slots are short; > 0
  double slot_share = 1;          // of all slots, at most; at least one slot
  int slots = kNone;              // concurrent
  int waiting = kNone;            // requests not answered yet
  int sessions = kNone;           // open at the same time
  int priority = kNone;           // the highest of a request
  int choices = kNone;            // n of a request
  int prompt_tokens = kNone;      // of a request
  int64_t tokens_per_minute = 0;  // of prompts and answers, on average; 0: unlimited
  int64_t host_bytes = kNoBytes;  // reserved by sessions and marks in host memory
  // Of pages of states that grow: what its running requests may come to need. Idle sessions are not
  // counted, as they give up their pages first.
  int64_t page_bytes = kNoBytes;
  int64_t disk_bytes = kNoBytes;   // states of durable sessions and their marks
  int64_t store_bytes = kNoBytes;  // the same, in a store that servers share, of all these

  static constexpr int kNone = std::numeric_limits<int>::max();
  static constexpr int64_t kNoBytes = std::numeric_limits<int64_t>::max();
};

// The number of a visitor, never 0 for a connection. There are more networks and connections than
// numbers, so some share one. network: Peer::network; empty: this machine. connection:
// Peer::number; 0: none, and without a network no visitor.
inline TenantId visitor_of(std::string_view network, uint32_t connection) {
  if (network.empty() && connection == 0) return 0;
  constexpr TenantId kNetworks = (1 << 16) - 1;
  const auto hash = static_cast<TenantId>(std::hash<std::string_view>{}(network) % kNetworks);
  const TenantId number = network.empty() ? 0 : 1 + hash;
  const TenantId by = connection == 0 ? 1 : 1 + (connection - 1) % kConnections;
  return kVisitors | number << kConnectionBits | by;
}

// A short text stored inline. Longer ones are cut.
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

// The caller, as a frontend has authenticated it. Every request and command has one.
struct Identity {
  TenantId tenant = 0;
  Role role = Role::kUser;
  std::string_view tenant_name = {};  // for logs; outlives the tenant's requests
  TenantLimits limits = {};
  // For logs: the id of the key, and the peer's address. Empty: none, unknown.
  ShortText<15> key_id = {};
  ShortText<47> peer = {};
  // On a server without keys: of visitor_of(); 0: none.
  TenantId visitor = 0;

  // Owns a share of slots, of the queue, of text threads and of memory for messages.
  TenantId share() const { return visitor != 0 ? visitor : tenant; }
  // Owns a share of steps: the connections of one network have one together.
  TenantId group() const { return group_of(share()); }
};

// Every caller of a server without keys. A keys file may name this tenant too, and get its
// sessions.
inline constexpr Identity kAnyone{.tenant = 0, .role = Role::kAdmin, .tenant_name = "default"};
// A caller without a known key, on a server with keys.
inline constexpr Identity kStranger{.tenant = std::numeric_limits<TenantId>::max(),
                                    .role = Role::kAnonymous,
                                    .tenant_name = "none"};

}  // namespace recurve
