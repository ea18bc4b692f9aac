#include "server/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace recurve::options_test {

using ::testing::HasSubstr;

struct Parsed {
  int status;
  Options options;
  std::string said;  // on standard error
};

Parsed parse(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"recurve-server", "--model", "m"});
  std::vector<char*> argv;
  for (std::string& flag : flags) argv.push_back(flag.data());
  Parsed parsed{};
  ::testing::internal::CaptureStderr();
  parsed.status = parse_options(static_cast<int>(argv.size()), argv.data(), &parsed.options);
  parsed.said = ::testing::internal::GetCapturedStderr();
  return parsed;
}

TEST(OptionsTest, AMessageSizeThatGrpcCannotCountIsRefused) {
  EXPECT_EQ(parse({"--max-message-bytes", "64MB"}).options.max_message_bytes, 64u << 20);
  EXPECT_EQ(parse({"--max-message-bytes", "2147483647"}).status, -1);
  for (const char* size : {"2GiB", "2147483648", "4GiB"}) {
    const Parsed parsed = parse({"--max-message-bytes", size});
    EXPECT_EQ(parsed.status, 2) << size;
    EXPECT_THAT(parsed.said, HasSubstr("--max-message-bytes"));
    EXPECT_THAT(parsed.said, HasSubstr("2147483647"));
  }
}

TEST(OptionsTest, SwitchesAreOnOrOff) {
  EXPECT_TRUE(parse({}).options.reflection);
  EXPECT_FALSE(parse({}).options.request_compression);
  EXPECT_FALSE(parse({"--reflection", "off"}).options.reflection);
  EXPECT_TRUE(parse({"--request-compression", "on"}).options.request_compression);
  EXPECT_EQ(parse({"--reflection", "perhaps"}).status, 2);
}

TEST(OptionsTest, ConnectionsAreANumberOrAuto) {
  EXPECT_EQ(parse({"--max-connections", "auto"}).options.max_connections, 0);
  EXPECT_EQ(parse({"--max-connections", "77"}).options.max_connections, 77);
  EXPECT_EQ(parse({"--max-connections-by-address", "7"}).options.max_connections_by_address, 7);
}

}  // namespace recurve::options_test
