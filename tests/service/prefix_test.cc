// Prompts that begin alike, as clients send them: where their states are left, and what is said of
// it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/generate_outcome.h"
#include "tests/support/server_process.h"

namespace recurve::testing::service_prefix_test {

using ::testing::HasSubstr;

class ServedPrefix : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = std::make_unique<ServerProcess>(std::vector<std::string>{
        "--model", std::string(RECURVE_SOURCE_DIR) + "/weights_tools/demo/xlstm-books",
        "--chat-template", "chatml", "--threads", "1"});
  }
  static void TearDownTestSuite() { server_.reset(); }

  struct Said {
    std::vector<int32_t> ids;
    v1::Usage usage;
  };
  Said ask(v1::GenerateRequest request) {
    request.mutable_stop()->set_max_tokens(4);
    request.mutable_sampling()->set_temperature(0);
    Said said;
    said.usage = client_
                     .generate(request,
                               [&](const v1::GenerateResponse& response) {
                                 const auto& ids = response.chunk().ids();
                                 said.ids.insert(said.ids.end(), ids.begin(), ids.end());
                               })
                     .usage();
    return said;
  }
  // The same tokens, to the bit of what was drawn from, as if all of it were absorbed.
  Said expect_cold(v1::GenerateRequest request) {
    Said said = ask(request);
    request.set_prefix(v1::PREFIX_MODE_OFF);
    EXPECT_EQ(ask(request).ids, said.ids);
    return said;
  }

  static std::unique_ptr<ServerProcess> server_;
  Client client_{server_->address()};
};
std::unique_ptr<ServerProcess> ServedPrefix::server_;

std::string text_of(const std::string& about, int sentences) {
  std::string text;
  for (int i = 0; i < sentences; ++i) {
    text += "It was a cold evening in the " + about + ", number " + std::to_string(i) + ". ";
  }
  return text;
}

v1::GenerateRequest messages(const std::vector<std::pair<std::string, std::string>>& said) {
  v1::GenerateRequest request;
  for (const auto& [role, content] : said) {
    v1::Messages::Message& message = *request.mutable_messages()->add_messages();
    message.set_role(role);
    message.set_content(content);
  }
  return request;
}

TEST_F(ServedPrefix, BeginsWhereTheClientSays) {
  const std::string document = text_of("library", 200);
  const auto asked = [&](const std::string& about) {
    return generate_request(document + text_of(about, 30), 4);
  };
  v1::GenerateRequest first = asked("garden");
  first.add_prefix_points(static_cast<int64_t>(document.size()));
  EXPECT_EQ(ask(first).usage.prefix_miss(), v1::PREFIX_MISS_NEW);
  const v1::Usage usage = expect_cold(asked("kitchen")).usage;
  const int64_t chunk = client_.model_info().chunk_tokens();
  EXPECT_GT(usage.prefix_tokens(), 1000);
  EXPECT_EQ(usage.prefix_tokens() % chunk, 0);
  EXPECT_EQ(usage.prefix_lost_tokens(), 0);
  EXPECT_LE(usage.prefix_replayed_tokens(), chunk);
  EXPECT_EQ(usage.prefix_miss(), v1::PREFIX_MISS_NONE);
}

TEST_F(ServedPrefix, SaysWhatIsReplayedAsNoStateWasLeftThere) {
  const std::string document = text_of("station", 200);
  ask(generate_request(document + text_of("east", 30), 4));
  const v1::Usage usage = expect_cold(generate_request(document + text_of("west", 30), 4)).usage;
  EXPECT_EQ(usage.prefix_tokens(), 0);
  EXPECT_GT(usage.prefix_replayed_tokens(), 1000);
  EXPECT_EQ(usage.prefix_lost_tokens(), 0);
  EXPECT_EQ(usage.prefix_miss(), v1::PREFIX_MISS_NOT_KEPT);
}

// A conversation begins behind the system prompt of one before it.
TEST_F(ServedPrefix, BeginsBehindTheSystemPrompt) {
  const std::string system = text_of("office", 100);
  const auto conversation = [&](const std::string& about) {
    return messages({{"system", system}, {"user", text_of(about, 30)}});
  };
  EXPECT_EQ(ask(conversation("morning")).usage.prefix_tokens(), 0);
  const v1::Usage usage = expect_cold(conversation("night")).usage;
  EXPECT_GT(usage.prefix_tokens(), 500);
  v1::GenerateRequest named = conversation("noon");
  named.add_prefix_points(2);
  EXPECT_GT(ask(named).usage.prefix_tokens(), 500);
  named.add_prefix_points(3);
  try {
    ask(named);
    ADD_FAILURE() << "there are two messages";
  } catch (const ClientError& error) {
    EXPECT_EQ(error.code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(error.what(), HasSubstr("prefix_points must be in [1, 2], got 3"));
  }
}

// A question that is put otherwise is all that is absorbed anew of a conversation.
TEST_F(ServedPrefix, BeginsBeforeTheLastQuestion) {
  const auto conversation = [&](const std::string& question) {
    return messages({{"user", text_of("orchard", 60)},
                     {"assistant", text_of("cellar", 60)},
                     {"user", question + text_of("attic", 20)}});
  };
  EXPECT_EQ(ask(conversation("What then? ")).usage.prefix_tokens(), 0);
  const v1::Usage usage = expect_cold(conversation("Why so? ")).usage;
  EXPECT_GT(usage.prefix_tokens(), 600);
  EXPECT_LE(usage.prefix_replayed_tokens(), client_.model_info().chunk_tokens());
}

}  // namespace recurve::testing::service_prefix_test
