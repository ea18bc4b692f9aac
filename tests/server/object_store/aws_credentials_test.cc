// Where credentials come from, and when they are read or asked for again.
#include "server/object_store/aws_credentials.h"

#include <fmt/chrono.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <memory>
#include <string>

#include "server/object_store/http_client.h"
#include "tests/server/object_store/scripted_server.h"
#include "tests/support/temp_dir.h"

namespace recurve::aws_credentials_test {

using std::chrono::system_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

AwsEnvironment environment(const std::map<std::string, std::string>& set) {
  return AwsEnvironment::read([&](const char* name) {
    const auto found = set.find(name);
    return found == set.end() ? nullptr : found->second.c_str();
  });
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
}

TEST(AwsCredentials, OfTheEnvironmentComeFirst) {
  HttpClient http({});
  const auto source = find_aws_credentials(environment({{"AWS_ACCESS_KEY_ID", "AKID"},
                                                        {"AWS_SECRET_ACCESS_KEY", "secret"},
                                                        {"AWS_SESSION_TOKEN", "token"},
                                                        {"AWS_SHARED_CREDENTIALS_FILE", "/none"}}),
                                           "", http);
  EXPECT_EQ(source->current().key_id, "AKID");
  EXPECT_EQ(source->current().secret, "secret");
  EXPECT_EQ(source->current().session_token, "token");
}

TEST(AwsCredentials, TheEnvironmentHasDefaults) {
  EXPECT_EQ(environment({}).region, "us-east-1");
  EXPECT_EQ(environment({{"AWS_DEFAULT_REGION", "eu-1"}}).region, "eu-1");
  EXPECT_EQ(environment({{"AWS_DEFAULT_REGION", "eu-1"}, {"AWS_REGION", "eu-2"}}).region, "eu-2");
  EXPECT_EQ(environment({{"HOME", "/home/me"}}).credentials_file, "/home/me/.aws/credentials");
  EXPECT_EQ(environment({}).profile, "default");
}

TEST(AwsCredentials, OfAProfileAreReadAgainWhenTheFileChanges) {
  const TempDir folder;
  const std::string file = folder / "credentials";
  write_file(file,
             "# two profiles\n[default]\naws_access_key_id = A1\naws_secret_access_key=S1\n"
             "[ work ]\r\n aws_access_key_id=A2\r\naws_secret_access_key = S=2\r\n"
             "aws_session_token= T2\nother = x\n");
  HttpClient http({});
  const auto of = [&](const std::string& profile) {
    return find_aws_credentials(
        environment({{"AWS_SHARED_CREDENTIALS_FILE", file}, {"AWS_PROFILE", profile}}), "", http);
  };
  EXPECT_EQ(of("")->current().key_id, "A1");
  const auto work = of("work");
  EXPECT_EQ(work->current().key_id, "A2");
  EXPECT_EQ(work->current().secret, "S=2");
  EXPECT_EQ(work->current().session_token, "T2");
  EXPECT_THAT(error_of([&] { of("none")->current(); }),
              HasSubstr("credentials: profile \"none\" lacks aws_access_key_id"));

  write_file(file, "[work]\naws_access_key_id = A3\naws_secret_access_key = a longer one\n");
  EXPECT_EQ(work->current().key_id, "A3");
  std::filesystem::remove(file);
  EXPECT_THAT(error_of([&] { work->current(); }), HasSubstr("cannot read " + file));
}

// A security token service that gives keys for so long, the next ones at each request.
std::string given_keys(int number, std::chrono::seconds life) {
  const auto expires =
      std::chrono::time_point_cast<std::chrono::seconds>(system_clock::now() + life);
  return ScriptedServer::answer(
      "200 OK", fmt::format("<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult>"
                            "<Credentials><AccessKeyId>ASIA{}</AccessKeyId>"
                            "<SecretAccessKey>secret</SecretAccessKey><SessionToken>token"
                            "</SessionToken><Expiration>{:%Y-%m-%dT%H:%M:%S}.000Z</Expiration>"
                            "</Credentials></AssumeRoleWithWebIdentityResult>"
                            "</AssumeRoleWithWebIdentityResponse>",
                            number, fmt::gmtime(system_clock::to_time_t(expires))));
}

struct WebIdentity {
  explicit WebIdentity(ScriptedServer::Answer answer) : server(std::move(answer)) {
    write_file(folder / "token", "ey.web/identity+=\n");
    source = find_aws_credentials(environment({{"AWS_WEB_IDENTITY_TOKEN_FILE", folder / "token"},
                                               {"AWS_ROLE_ARN", "arn:aws:iam::1:role/r"},
                                               {"AWS_ROLE_SESSION_NAME", "me"}}),
                                  server.url(), http);
  }
  TempDir folder;
  ScriptedServer server;
  HttpClient http{{}};
  std::unique_ptr<AwsCredentialSource> source;
};

TEST(AwsCredentials, OfAWebIdentityAreUsedUntilTheyAreRefused) {
  WebIdentity web([](const ScriptedServer::Request&, int number) {
    return given_keys(number, std::chrono::hours(1));
  });
  EXPECT_EQ(web.source->current().key_id, "ASIA1");
  EXPECT_EQ(web.source->current().session_token, "token");
  const auto requests = web.server.requests();
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_THAT(requests[0].head, HasSubstr("POST / HTTP/1.1\r\n"));
  EXPECT_EQ(requests[0].body,
            "Action=AssumeRoleWithWebIdentity&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr"
            "&RoleSessionName=me&Version=2011-06-15&WebIdentityToken=ey.web%2Fidentity%2B%3D");

  web.source->refuse({.key_id = "another"});
  EXPECT_EQ(web.source->current().key_id, "ASIA1");
  web.source->refuse(web.source->current());
  EXPECT_EQ(web.source->current().key_id, "ASIA2");
}

TEST(AwsCredentials, OfAWebIdentityAreRenewedBeforeTheyExpire) {
  WebIdentity web([](const ScriptedServer::Request&, int number) {
    return given_keys(number, std::chrono::seconds(number == 1 ? 0 : 3600));
  });
  EXPECT_EQ(web.source->current().key_id, "ASIA1");
  EXPECT_EQ(web.source->current().key_id, "ASIA2");
  EXPECT_EQ(web.source->current().key_id, "ASIA2");
}

TEST(AwsCredentials, OfAWebIdentityThatIsRefusedAreNamedWithoutTheToken) {
  WebIdentity web([](const ScriptedServer::Request&, int) {
    return ScriptedServer::error("403 Forbidden", "AccessDenied");
  });
  EXPECT_THAT(
      error_of([&] { web.source->current(); }),
      AllOf(HasSubstr("no credentials for role arn:aws:iam::1:role/r: HTTP 403 AccessDenied"),
            Not(HasSubstr("ey.web"))));
}

}  // namespace recurve::aws_credentials_test
