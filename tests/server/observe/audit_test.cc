#include "server/observe/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <sstream>
#include <string>
#include <vector>

#include "server/observe/log.h"

namespace recurve::audit_test {

using ::testing::EndsWith;
using ::testing::HasSubstr;

template <typename Call>
std::vector<std::string> lines_of(Call&& call) {
  ::testing::internal::CaptureStderr();
  call();
  flush_log(std::chrono::seconds(10));
  std::istringstream said(::testing::internal::GetCapturedStderr());
  std::vector<std::string> lines;
  for (std::string line; std::getline(said, line);) lines.push_back(line);
  return lines;
}

TEST(Audit, HasCallerActionAndResult) {
  const auto lines = lines_of([] {
    audit("session_open", {"alice", "0123456789ab", "192.0.2.1"}, "OK", "a\nb\x1b[2Jc=d");
  });
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], EndsWith("event=audit what=session_open tenant=alice key_id=0123456789ab "
                                 "peer=192.0.2.1 result=OK name=\"a\\nb\\u001b[2Jc=d\" unsaid=0"));
}

TEST(Audit, LimitsLinesPerTenantAndKind) {
  const auto flood = lines_of([] {
    for (int i = 0; i < 1000; ++i)
      audit("limit", {"many", "", ""}, "RESOURCE_EXHAUSTED", "waiting");
  });
  EXPECT_GE(flood.size(), static_cast<size_t>(kAuditAtOnce));
  EXPECT_LE(flood.size(), static_cast<size_t>(kAuditAtOnce) + 20);
  const auto others = lines_of([] {
    audit("limit", {"one", "", ""}, "RESOURCE_EXHAUSTED", "waiting");
    audit("drain", {"many", "", ""}, "OK");
  });
  EXPECT_EQ(others.size(), 2U) << "another tenant and another kind have separate limits";
}

}  // namespace recurve::audit_test
