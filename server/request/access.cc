#include "server/request/access.h"

#include <strings.h>

#include <algorithm>
#include <utility>

#include "server/observe/log.h"

namespace recurve {
namespace {

// Between two lines in the log about strangers of one kind.
constexpr std::chrono::milliseconds kSayAgain(1000);

// The key, where the header has one; the scheme may be in any case.
std::string_view bearer(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() <= kScheme.size() ||
      strncasecmp(authorization.data(), kScheme.data(), kScheme.size()) != 0) {
    return authorization;  // of another scheme: it is no key
  }
  authorization.remove_prefix(kScheme.size());
  authorization.remove_prefix(std::min(authorization.find_first_not_of(' '), authorization.size()));
  return authorization.substr(0, authorization.find_last_not_of(' ') + 1);
}

}  // namespace

Identity Access::identify(std::string_view authorization, std::string_view subject,
                          std::string_view peer) {
  if (keys_ == nullptr) return kAnyone;
  const std::string_view key = bearer(authorization);
  const Keyring::Found found = keys_->find(key, subject);
  if (found.why != Keyring::Finding::kKnown) say_stranger(found.why, key, peer);
  return found.identity;
}

void Access::say_stranger(Keyring::Finding why, std::string_view key, std::string_view peer) {
  int times = 0;
  {
    std::lock_guard lock(mutex_);
    Strangers& strangers = strangers_[why];
    ++strangers.since;
    const auto now = std::chrono::steady_clock::now();
    if (now - strangers.said < kSayAgain) return;
    strangers.said = now;
    times = std::exchange(strangers.since, 0);
  }
  log_event(
      LogLevel::kWarning, "stranger",
      {{"peer", peer}, {"reason", name_of(why)}, {"key_id", key_id_of(key)}, {"times", times}});
}

Refused check_role(const Identity& caller, Role least) {
  if (caller.role >= least) return {};
  if (caller.role == Role::kNobody) {
    return Refusal{.code = Refusal::Code::kStranger,
                   .message =
                       "a key is needed that this server knows and that has not expired: "
                       "send the header \"authorization: Bearer KEY\""};
  }
  return Refusal{
      .code = Refusal::Code::kForbidden,
      .message = fmt::format("this takes a key of the role {}, and the one that was sent "
                             "has the role {}",
                             name_of(least), name_of(caller.role))};
}

}  // namespace recurve
