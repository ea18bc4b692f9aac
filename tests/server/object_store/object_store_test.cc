// What an object store's answers, and missing ones, mean. object_stores.cc tests with real stores.
#include "server/object_store/object_store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>

#include "tests/server/object_store/scripted_server.h"
#include "tests/support/temp_dir.h"

namespace recurve::object_store_test {

using Outcome = ObjectResult::Outcome;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Request = ScriptedServer::Request;

const std::string kOk = ScriptedServer::answer("200 OK", "", "ETag: \"e1\"\r\n");
const std::string kNotMet = ScriptedServer::error("412 Precondition Failed", "PreconditionFailed");
const std::string kBusy = ScriptedServer::error("503 Service Unavailable", "SlowDown");
constexpr std::string_view kText[] = {"one ", "", "two"};

// A store at a server that answers the requests with these, one after the other, and then with
// the last one. Empty: it reads the request and closes the connection.
struct Scripted {
  explicit Scripted(std::vector<std::string> answers, ObjectStore::Options options = fast())
      : server([answers = std::move(answers)](const Request&, int number) {
          return answers[std::min<size_t>(static_cast<size_t>(number), answers.size()) - 1];
        }),
        store(parse_object_store("s3://bucket/some/where", server.url(), "eu-1"), "eu-1",
              *credentials, http, options) {}
  static ObjectStore::Options fast() {
    return {.patience = std::chrono::milliseconds(3000),
            .first_pause = std::chrono::milliseconds(1),
            .longest_pause = std::chrono::milliseconds(2)};
  }
  size_t count() const { return server.requests().size(); }

  ScriptedServer server;
  HttpClient http{{}};
  std::unique_ptr<AwsCredentialSource> credentials = find_aws_credentials(
      {.key_id = "AKID", .secret = "do-not-show", .session_token = "session"}, "", http);
  ObjectStore store;
};

TEST(ObjectStore, SendsSignedRequestsOverOneConnection) {
  Scripted scripted({ScriptedServer::answer("200 OK", "", "ETag: \"e1\"\r\n"),
                     ScriptedServer::answer("200 OK", "text", "etag:  \"e2\" \r\n"),
                     ScriptedServer::answer("204 No Content")});
  const ObjectResult put = scripted.store.put("a/b-c", kText, ObjectCondition::matches("\"e0\""));
  EXPECT_EQ(put.outcome, Outcome::kDone) << put.error;
  EXPECT_EQ(put.etag, "\"e1\"");
  const ObjectResult got = scripted.store.get("a/b-c", 4);
  EXPECT_EQ(got.body, "text");
  EXPECT_EQ(got.etag, "\"e2\"");
  EXPECT_TRUE(scripted.store.remove("a/b-c").done());

  const auto requests = scripted.server.requests();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_THAT(
      requests[0].head,
      AllOf(HasSubstr("PUT /bucket/some/where/a/b-c HTTP/1.1\r\n"),
            HasSubstr("If-Match: \"e0\"\r\n"), HasSubstr("Content-Length: 7\r\n"),
            HasSubstr("x-amz-security-token: session\r\n"), HasSubstr("/eu-1/s3/aws4_request"),
            // of "one two", by sha256sum
            HasSubstr("x-amz-content-sha256: "
                      "8ab63e29a4ba14e4e1688f9c15e5af90"
                      "895421358c945b0431f85d66977bd3d2")));
  EXPECT_EQ(requests[0].body, "one two");
  EXPECT_THAT(requests[1].head, HasSubstr("GET /bucket/some/where/a/b-c HTTP/1.1\r\n"));
  EXPECT_THAT(requests[2].head, HasSubstr("DELETE /bucket/some/where/a/b-c HTTP/1.1\r\n"));
  for (const Request& request : requests) EXPECT_EQ(request.connection, 1);
}

TEST(ObjectStore, RepeatsWhatMaySucceedLater) {
  Scripted scripted({kBusy, "", ScriptedServer::error("500 Error", "InternalError"), kOk});
  EXPECT_TRUE(scripted.store.put("key", kText).done());
  EXPECT_EQ(scripted.count(), 4u);
  for (const Request& request : scripted.server.requests()) EXPECT_EQ(request.body, "one two");
}

TEST(ObjectStore, DoesNotRepeatWhatIsRefused) {
  for (const auto& [status, code, advice] :
       {std::tuple("403 Forbidden", "RequestTimeTooSkewed", "set this machine's clock"),
        std::tuple("403 Forbidden", "AccessDenied", "check the credentials and their rights"),
        std::tuple("507 Insufficient Storage", "XMinioStorageFull", "the store is full"),
        std::tuple("403 Forbidden", "QuotaExceeded", "the store is full")}) {
    Scripted scripted({ScriptedServer::error(status, code), kOk});
    const ObjectResult result = scripted.store.put("key", kText, ObjectCondition::is_new());
    EXPECT_EQ(result.outcome, Outcome::kFailed);
    EXPECT_THAT(result.error, AllOf(HasSubstr("PUT of key in bucket bucket at http://127.0.0.1:"),
                                    HasSubstr(fmt::format("{}: {}", code, advice)),
                                    Not(HasSubstr("do-not-show"))));
    EXPECT_EQ(scripted.count(), 1u);
  }
}

TEST(ObjectStore, AnAnswerThatWasLostIsUnknown) {
  // The first was carried out, and its answer lost; or another writer came in between.
  Scripted lost({"", kNotMet});
  EXPECT_EQ(lost.store.put("key", kText, ObjectCondition::is_new()).outcome, Outcome::kUnknown);
  Scripted failed({ScriptedServer::error("502 Bad Gateway", ""), kNotMet});
  EXPECT_EQ(failed.store.put("key", kText, ObjectCondition::is_new()).outcome, Outcome::kUnknown);
  // The first was not carried out.
  Scripted not_lost({"", kOk});
  EXPECT_EQ(not_lost.store.put("key", kText, ObjectCondition::is_new()).outcome, Outcome::kDone);
  Scripted refused({ScriptedServer::error("409 Conflict", "ConditionalRequestConflict"), kNotMet});
  EXPECT_EQ(refused.store.put("key", kText, ObjectCondition::is_new()).outcome, Outcome::kNotMet);
}

// libcurl repeats a request on a connection that was closed while it was idle: not unseen by us.
TEST(ObjectStore, AnAnswerThatWasLostOnAnOldConnectionIsUnknown) {
  Scripted scripted({kOk, "", kNotMet});
  ASSERT_TRUE(scripted.store.put("key", kText).done());
  EXPECT_EQ(scripted.store.put("key", kText, ObjectCondition::matches("\"e1\"")).outcome,
            Outcome::kUnknown);
  EXPECT_EQ(scripted.count(), 3u);
}

TEST(ObjectStore, EndsInTime) {
  Scripted scripted({""}, {.patience = std::chrono::milliseconds(100),
                           .first_pause = std::chrono::milliseconds(5),
                           .longest_pause = std::chrono::milliseconds(20)});
  EXPECT_EQ(scripted.store.put("key", kText, ObjectCondition::is_new()).outcome, Outcome::kUnknown);
  EXPECT_EQ(scripted.store.put("key", kText).outcome, Outcome::kFailed);
  EXPECT_GT(scripted.count(), 2u);
}

TEST(ObjectStore, ATimeThatTheStoreNamesIsRespected) {
  Scripted scripted({ScriptedServer::answer("503 Slow", "", "Retry-After: 60\r\n"), kOk});
  EXPECT_EQ(scripted.store.get("key", 10).outcome, Outcome::kFailed);
  EXPECT_EQ(scripted.count(), 1u);
}

TEST(ObjectStore, IsStopped) {
  Scripted scripted({kBusy}, {.patience = std::chrono::hours(1),
                              .first_pause = std::chrono::hours(1),
                              .longest_pause = std::chrono::hours(1)});
  std::thread caller([&] { EXPECT_EQ(scripted.store.get("key", 1).outcome, Outcome::kFailed); });
  scripted.store.stop();
  caller.join();
}

TEST(ObjectStore, AnswersAreBounded) {
  Scripted scripted({ScriptedServer::answer("200 OK", "12345")});
  const ObjectResult result = scripted.store.get("key", 4);
  EXPECT_EQ(result.outcome, Outcome::kFailed);
  EXPECT_THAT(result.error, HasSubstr("more than 4 bytes"));
  EXPECT_EQ(scripted.count(), 1u);
  EXPECT_TRUE(scripted.store.get("key", 5).done());
}

TEST(ObjectStore, ATruncatedAnswerIsReadAgain) {
  Scripted scripted({"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\n12345",
                     ScriptedServer::answer("200 OK", "123456789")});
  EXPECT_EQ(scripted.store.get("key", 9).body, "123456789");
  EXPECT_EQ(scripted.count(), 2u);
}

TEST(ObjectStore, MissingObjectsAndBucketsDiffer) {
  Scripted scripted({ScriptedServer::error("404 Not Found", "NoSuchKey"),
                     ScriptedServer::error("404 Not Found", "NoSuchKey"),
                     ScriptedServer::error("404 Not Found", "NoSuchBucket")});
  EXPECT_EQ(scripted.store.get("key", 9).outcome, Outcome::kMissing);
  EXPECT_EQ(scripted.store.put("key", kText, ObjectCondition::matches("\"e\"")).outcome,
            Outcome::kNotMet);
  const ObjectResult result = scripted.store.get("key", 9);
  EXPECT_EQ(result.outcome, Outcome::kFailed);
  EXPECT_THAT(result.error, HasSubstr("NoSuchBucket: create the bucket"));
}

TEST(ObjectStore, RedirectsAreNotFollowed) {
  Scripted scripted({ScriptedServer::answer("307 Temporary Redirect", "",
                                            "Location: http://127.0.0.1:9/\r\n"
                                            "x-amz-bucket-region: eu-2\r\n")});
  const ObjectResult result = scripted.store.get("key", 9);
  EXPECT_EQ(result.outcome, Outcome::kFailed);
  EXPECT_THAT(result.error, HasSubstr("HTTP 307 : set AWS_REGION to eu-2"));
}

TEST(ObjectStore, AnUnreachableOneIsNamed) {
  HttpClient http({});
  const auto credentials = find_aws_credentials({.key_id = "a", .secret = "b"}, "", http);
  std::string url;
  {
    url = ScriptedServer([](const Request&, int) { return std::string(); }).url();
  }
  ObjectStore store(parse_object_store("s3://bucket", url, ""), "eu-1", *credentials, http,
                    {.patience = std::chrono::milliseconds(20)});
  EXPECT_THAT(error_of([&] { store.check(); }),
              AllOf(HasSubstr("cannot create an object: PUT of probe/"), HasSubstr(url)));
}

TEST(ObjectStore, KeysHavePlainCharactersOnly) {
  Scripted scripted({kOk});
  for (const char* key :
       {"", "/a", "a/", "a//b", "a/../b", ".", "a b", "a?b", "a%2fb", "\xc3\xa9"}) {
    EXPECT_THROW(scripted.store.get(key, 1), std::invalid_argument) << key;
  }
  EXPECT_EQ(scripted.count(), 0u);
}

TEST(ObjectStoreTarget, IsParsed) {
  const ObjectStoreTarget target =
      parse_object_store("s3://my.bucket/a/b/", "http://[::1]:8333/", "eu-1");
  EXPECT_EQ(target.bucket, "my.bucket");
  EXPECT_EQ(target.prefix, "a/b/");
  EXPECT_EQ(target.endpoint, "http://[::1]:8333");
  EXPECT_EQ(parse_object_store("s3://bucket", "", "eu-1").endpoint,
            "https://s3.eu-1.amazonaws.com");
  for (const char* url : {"", "bucket", "s3://", "s3:///a", "s3://bucket/../x", "s3://bucket//a",
                          "s3://bucket/a?b", "http://bucket"}) {
    EXPECT_THROW(parse_object_store(url, "", "eu-1"), std::invalid_argument) << url;
  }
  for (const char* endpoint : {"host", "ftp://host", "http://", "http://host/path",
                               "http://user:secret@host", "file:///etc"}) {
    EXPECT_THROW(parse_object_store("s3://bucket", endpoint, ""), std::invalid_argument)
        << endpoint;
  }
}

}  // namespace recurve::object_store_test
