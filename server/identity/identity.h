#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace recurve {

// Whose sessions, requests and share of the server something is. Two tenants never see each other's
// names.
using TenantId = uint32_t;

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
  // Where there are no keys, and one address of the network stands for another's: which. 0: none.
  TenantId network = 0;

  // Who has a share of slots and steps.
  TenantId share() const { return network != 0 ? network : tenant; }
};

// Where the server has no keys, whoever reaches a door is this one. A keys file may name the tenant
// too, whose sessions it then has.
inline constexpr Identity kAnyone{.tenant = 0, .role = Role::kAdmin, .tenant_name = "default"};
// And where it has, whoever shows none.
inline constexpr Identity kStranger{
    .tenant = std::numeric_limits<TenantId>::max(), .role = Role::kNobody, .tenant_name = "none"};

}  // namespace recurve
