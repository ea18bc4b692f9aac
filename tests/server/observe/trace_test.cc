// Headers of W3C Trace Context, and URLs of collectors. tests/deploy/traces_test.py tests sending.
#include "server/observe/trace.h"

#include <gtest/gtest.h>

#include "server/observe/otlp.h"

namespace recurve::trace_test {

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736", kSpan = "00f067aa0ba902b7";

TEST(Traceparent, IsParsed) {
  const auto context = parse_traceparent("00-" + kTrace + "-" + kSpan + "-01");
  ASSERT_TRUE(context);
  EXPECT_EQ(to_hex(context->trace), kTrace);
  EXPECT_EQ(to_hex(context->span), kSpan);
  EXPECT_TRUE(context->sampled);
  EXPECT_FALSE(parse_traceparent("00-" + kTrace + "-" + kSpan + "-02")->sampled);
  // Later versions may have more fields.
  EXPECT_TRUE(parse_traceparent("01-" + kTrace + "-" + kSpan + "-01"));
  EXPECT_TRUE(parse_traceparent("cc-" + kTrace + "-" + kSpan + "-01-what-follows"));
}

TEST(Traceparent, InvalidOnesAreIgnored) {
  const std::string zeros(32, '0'), upper = "4BF92F3577B34DA6A3CE929D0E0E4736";
  for (const std::string& header :
       {std::string(), std::string("00"), "00-" + kTrace + "-" + kSpan,
        "00-" + kTrace + "-" + kSpan + "-1", "00-" + kTrace + "-" + kSpan + "-01-more",
        "cc-" + kTrace + "-" + kSpan + "-01.", "ff-" + kTrace + "-" + kSpan + "-01",
        "00-" + zeros + "-" + kSpan + "-01", "00-" + kTrace + "-" + zeros.substr(16) + "-01",
        "00-" + upper + "-" + kSpan + "-01", "0g-" + kTrace + "-" + kSpan + "-01",
        "00_" + kTrace + "-" + kSpan + "-01", "00-" + kTrace + "-" + kSpan + "-zz"}) {
    EXPECT_FALSE(parse_traceparent(header)) << header;
  }
}

TEST(OtlpUrl, HasDefaults) {
  const auto parts = [](const std::string& url) {
    const OtlpTarget target = parse_otlp_url(url);
    return target.host + " " + target.port + " " + target.path;
  };
  EXPECT_EQ(parts("http://collector"), "collector 4318 /v1/traces");
  EXPECT_EQ(parts("http://collector:80/"), "collector 80 /v1/traces");
  EXPECT_EQ(parts("http://[::1]:80/otlp"), "::1 80 /otlp");
  EXPECT_EQ(parts("http://[fe80::1]"), "fe80::1 4318 /v1/traces");
}

}  // namespace recurve::trace_test
