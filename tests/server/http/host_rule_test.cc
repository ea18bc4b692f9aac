#include <gtest/gtest.h>
#include <unistd.h>

#include "server/http/request_head.h"

namespace recurve::host_rule_test {

const std::vector<std::string> kAllowed = {"https://ui.example:8443", "name.example"};

bool fine(const std::string& host, const std::string& origin) {
  return origin_problem(host, origin, kAllowed).empty();
}

TEST(HostRule, PagesOfElsewhereMayNotAsk) {
  EXPECT_TRUE(fine("127.0.0.1:8000", ""));
  EXPECT_TRUE(fine("[::1]:8000", ""));
  EXPECT_TRUE(fine("localhost", "http://localhost"));
  EXPECT_TRUE(fine("ui.example", "https://ui.example:8443"));
  EXPECT_TRUE(fine("10.0.0.1", "https://ui.example:8443"));
  EXPECT_FALSE(fine("evil.example", ""));
  EXPECT_FALSE(fine("127.0.0.1.evil.example", ""));
  EXPECT_FALSE(fine("localhost:8000", "http://localhost:9000"));
  EXPECT_FALSE(fine("localhost", "null"));
  EXPECT_FALSE(fine("localhost", "https://ui.example"));
  EXPECT_FALSE(fine("", "http://"));
}

TEST(HostRule, ThePagesOwnSchemeIsTheServers) {
  EXPECT_EQ(origin_problem("localhost:8000", "https://localhost:8000", {}, "https"), "");
  EXPECT_NE(origin_problem("localhost:8000", "http://localhost:8000", {}, "https"), "");
  EXPECT_NE(origin_problem("localhost:8000", "https://localhost:8000", {}), "");
}

// A name that a page elsewhere could have is refused, so that its owner cannot make it lead here.
TEST(HostRule, ContainersAreCalledByTheirNames) {
  for (const char* host : {"recurve", "recurve:8000", "RECURVE", "recurve.default.svc:8000",
                           "recurve.default.svc.cluster.local", "host.docker.internal",
                           "app.localhost:3000", "localhost.", "name.example:80", ""}) {
    EXPECT_TRUE(fine(host, "")) << host;
  }
  char own[256] = {};
  ASSERT_EQ(gethostname(own, sizeof own - 1), 0);
  EXPECT_TRUE(fine(own, ""));
  for (const char* host :
       {"recurve.com", "svc.example", "svc.cluster.local.example", ".", "evil.local",
        "internal.example:80", "[::1", "other.name.example", "[::1]evil.example",
        "[::1].evil.example:80", "localhost:80.evil.example", "localhost:80@evil.example",
        "127.0.0.1:80:80", "name.example:evil.example", "localhost/evil", "a@localhost", ":80"}) {
    EXPECT_FALSE(fine(host, "")) << host;
  }
}

TEST(HostRule, EverybodyCanBeAllowed) {
  EXPECT_EQ(origin_problem("any.example", "https://other.example", {"*"}), "");
  EXPECT_NE(origin_problem("any.example", "", {}).find("--http-origin any.example"),
            std::string::npos)
      << "the sentence says what to do";
}

}  // namespace recurve::host_rule_test
