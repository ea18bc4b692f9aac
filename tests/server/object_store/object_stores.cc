// The client at stores of others, which object_stores.py starts. It takes S3_URL, S3_ENDPOINT and
// AWS's variables from the environment, and GoogleTest's flags.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/object_store/object_store.h"
#include "tests/support/temp_dir.h"

namespace recurve::object_stores_test {

using Outcome = ObjectResult::Outcome;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string variable(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

struct Client {
  explicit Client(AwsEnvironment environment)
      : environment(std::move(environment)),
        credentials(find_aws_credentials(this->environment, variable("STS_ENDPOINT"), http)),
        store(parse_object_store(variable("S3_URL"), variable("S3_ENDPOINT"),
                                 this->environment.region),
              this->environment.region, *credentials, http,
              {.patience = std::chrono::seconds(20)}) {}
  Client() : Client(AwsEnvironment::read([](const char* name) { return getenv(name); })) {}

  AwsEnvironment environment;
  HttpClient http{{.ca_file = environment.ca_file}};
  std::unique_ptr<AwsCredentialSource> credentials;
  ObjectStore store;
};

TEST(Stores, WriteReadAndRemove) {
  Client client;
  const std::string key = "objects/A-z_0.9/x";
  const std::string text("\0\r\n\xff text", 9);
  const std::string large(size_t{5} << 20, 'x');  // by 100-continue
  const std::string_view parts[] = {text, large}, other[] = {"other"};

  EXPECT_EQ(client.store.get(key, 10).outcome, Outcome::kMissing);
  const ObjectResult made = client.store.put(key, parts);
  ASSERT_TRUE(made.done()) << made.error;
  const ObjectResult got = client.store.get(key, text.size() + large.size());
  EXPECT_TRUE(got.done()) << got.error;
  EXPECT_TRUE(got.body == text + large);
  EXPECT_EQ(got.etag, made.etag);
  EXPECT_EQ(client.store.get(key, 100).outcome, Outcome::kFailed);

  ASSERT_TRUE(client.store.put(key, other).done());
  EXPECT_EQ(client.store.get(key, 10).body, "other");
  EXPECT_TRUE(client.store.remove(key).done());
  EXPECT_TRUE(client.store.remove(key).done());
  EXPECT_EQ(client.store.get(key, 10).outcome, Outcome::kMissing);
}

TEST(Stores, ApplyConditions) {
  Client client;
  const std::string_view first[] = {"first"}, second[] = {"second"};
  const auto put = [&](const auto& text, const PutCondition& condition) {
    return client.store.put("conditions", text, condition);
  };
  EXPECT_EQ(put(first, PutCondition::matches("\"none\"")).outcome, Outcome::kNotMet);
  const ObjectResult made = put(first, PutCondition::is_new());
  ASSERT_TRUE(made.done()) << made.error;
  EXPECT_EQ(put(second, PutCondition::is_new()).outcome, Outcome::kNotMet);
  EXPECT_TRUE(put(second, PutCondition::matches(made.etag)).done());
  EXPECT_EQ(put(first, PutCondition::matches(made.etag)).outcome, Outcome::kNotMet);
  EXPECT_EQ(client.store.get("conditions", 10).body, "second");
  EXPECT_TRUE(client.store.remove("conditions").done());
}

TEST(Stores, LetOneOfManyWritersWin) {
  constexpr int kWriters = 8;
  std::vector<std::thread> writers;
  std::atomic<int> won = 0, lost = 0;
  Client client;
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&, name = std::to_string(writer)] {
      const std::string_view text[] = {name};
      const ObjectResult result = client.store.put("race", text, PutCondition::is_new());
      won += result.done();
      lost += result.outcome == Outcome::kNotMet;
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(won, 1);
  EXPECT_EQ(lost, kWriters - 1);
  EXPECT_TRUE(client.store.remove("race").done());
}

TEST(Stores, AreChecked) {
  Client client;
  EXPECT_EQ(error_of([&] { client.store.check(); }), "");
}

TEST(Stores, RefuseAnotherSecret) {
  Client client;
  AwsEnvironment environment = client.environment;
  ASSERT_FALSE(environment.secret.empty());
  environment.secret += "x";
  Client wrong(environment);
  EXPECT_THAT(
      error_of([&] { wrong.store.check(); }),
      AllOf(HasSubstr("HTTP 403 SignatureDoesNotMatch"), Not(HasSubstr(environment.secret))));
}

TEST(WebIdentity, GivesKeysThatTheStoreAccepts) {
  Client client;
  EXPECT_TRUE(client.environment.secret.empty());
  EXPECT_EQ(error_of([&] { client.store.check(); }), "");
  EXPECT_FALSE(client.credentials->current().session_token.empty());
}

TEST(LyingStore, IsRefusedByName) {
  Client client;
  EXPECT_THAT(error_of([&] { client.store.check(); }),
              HasSubstr(variable("S3_ENDPOINT") + " ignores If-None-Match: two servers"));
}

TEST(Certificate, ThatNoAuthoritySignedIsRefused) {
  Client client;
  EXPECT_THAT(error_of([&] { client.store.check(); }), HasSubstr("certificate"));
}

}  // namespace recurve::object_stores_test
